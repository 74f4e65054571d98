"""Data sets of any origin, turned into compact ones: resized images in tar shards, a manifest."""

__all__: list[str] = []
