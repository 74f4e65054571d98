"""What a run learns from: data sets, images, cached grids, batches, drawn scenes."""
