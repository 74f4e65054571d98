"""From the scores of words to sentences: beam search, greedy, sampling."""
