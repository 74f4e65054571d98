"""What is made of the records: tables, sidecars, maps."""
