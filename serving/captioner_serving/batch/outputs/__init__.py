"""Outputs of a batch: tables of records, sidecars, embedded texts, attention maps."""
