"""The server: one process, one model, one queue before it; the page at / and the API beside it."""
