"""The server: one process, one model, one queue before it; the page at / and the API beside it."""

__all__: list[str] = []
