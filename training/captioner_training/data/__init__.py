"""Training data: data sets, images, captions, cached grids, batches, synthetic scenes."""
