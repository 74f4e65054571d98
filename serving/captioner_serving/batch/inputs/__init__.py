"""Inputs of a batch: folders, globs, archives, lists, tables and URLs."""
