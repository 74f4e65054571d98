"""HTML reports: of an evaluation and of a training run. Each is one file without external links."""
