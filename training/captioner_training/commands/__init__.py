"""The training commands: `captioner train` and others."""
