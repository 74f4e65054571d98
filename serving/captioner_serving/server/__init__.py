"""The server: the web page and the HTTP API, in one process, with a queue per model."""

__all__: list[str] = []
