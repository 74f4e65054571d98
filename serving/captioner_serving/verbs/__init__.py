"""The verbs of the `captioner` command that serve."""
