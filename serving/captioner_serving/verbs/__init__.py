"""The verbs `batch`, `convert`, `export` and `serve` of the `captioner` command."""
