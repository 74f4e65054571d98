"""Who captions: this machine, or a cluster."""
