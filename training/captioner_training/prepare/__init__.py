"""Convert data sets of many formats to resized images in tar shards with a manifest."""

__all__: list[str] = []
