"""A model without PyTorch: two ONNX graphs, and a folder that captions with them."""
