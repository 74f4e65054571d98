"""Export of a model to ONNX graphs and a folder that captions without PyTorch."""

import os

# Disables onnxruntime's telemetry and its device id in ~/.cache.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
