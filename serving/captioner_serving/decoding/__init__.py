"""Untrusted photos are opened here, in processes that may die."""
