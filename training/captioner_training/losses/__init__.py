"""The losses that a stage minimizes, one class per file; objective.py has their base class."""
