"""Captioner at work for others: the page, the HTTP API, and batch captioning."""
