"""Helpers without torch, used by all packages."""
