"""A model without PyTorch: two ONNX graphs, and a folder that captions with them."""

import os

# onnxruntime would keep a number of this device in ~/.cache, and tell its maker what is run.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
