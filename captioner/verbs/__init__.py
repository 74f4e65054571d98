"""The verbs of the `captioner` command that the library itself brings."""
