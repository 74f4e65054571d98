"""What attention is worth: the same training with every variant of it, measured side by side."""
