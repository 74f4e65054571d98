"""Training for Captioner: data sets, recipes, losses, the engine and its metrics."""
