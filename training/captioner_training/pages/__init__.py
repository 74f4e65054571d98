"""The report of an evaluation as files: for programs, for a terminal, and to be read."""
