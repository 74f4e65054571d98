"""The command `captioner caption`."""
