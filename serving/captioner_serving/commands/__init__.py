"""The commands `captioner batch`, `convert`, `export` and `serve`."""
