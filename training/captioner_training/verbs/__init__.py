"""The verbs of the `captioner` command that training brings."""
