"""What a run minimises: cross-entropy and its terms, self-critical training, CIDEr-D."""
