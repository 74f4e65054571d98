"""The verbs of the `captioner` command that are part of this package."""
