"""The training verbs of the `captioner` command."""
