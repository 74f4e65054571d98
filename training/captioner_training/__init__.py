"""Training: data sets, recipes, losses, the training loop, evaluation and reports."""
