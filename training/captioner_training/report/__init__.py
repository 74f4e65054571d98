"""HTML reports of evaluations and training runs. Each is one file without external links."""
