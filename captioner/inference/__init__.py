"""The same numbers, faster: devices, CUDA graphs and packed layers."""
