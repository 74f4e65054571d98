"""Generation: beam search, greedy search and sampling."""
