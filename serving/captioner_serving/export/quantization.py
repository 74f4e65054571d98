"""The graphs of an exported model in whole numbers of 8 bits: a quarter of the size, and faster.

The encoder's convolutions, and what comes between them, compute with whole numbers whose ranges
were seen on a few squares (static quantisation). A range leaves out one number in 100,000 on each
side: before a SiLU a channel reaches far for the sake of very few. The products of encoder and step
find the range of what comes in each time (dynamic quantisation).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from captioner.paths import sample_photos
from captioner_serving.export.graphs import quietly

__all__ = ["quantize"]

_SMALL = 1024  # numbers: below it nothing is saved
_STATIC = ["Conv", "Sigmoid", "Mul"]  # a SiLU is the last two
_SEEN = 99.999  # percent of the numbers that are inside of their range
_CROPS = (1.0, 0.8, 0.6)  # of a photo's sides


def quantize(folder: Path) -> None:
    """Replace encoder.onnx and step.onnx of an exported folder by their quantised selves."""
    from onnxruntime.quantization import (
        CalibrationMethod,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    encoder, step = folder / "encoder.onnx", folder / "step.onnx"
    options: dict[str, Any] = {"per_channel": True, "weight_type": QuantType.QInt8}
    with tempfile.TemporaryDirectory() as scratch, quietly():
        ready, half = Path(scratch, "ready.onnx"), Path(scratch, "half.onnx")
        quant_pre_process(encoder, ready, skip_symbolic_shape=True)
        static = partial(
            quantize_static,
            ready,
            half,
            op_types_to_quantize=_STATIC,
            activation_type=QuantType.QUInt8,
            extra_options={"CalibPercentile": _SEEN},
            **options,
        )
        try:
            static(_Squares(folder), calibrate_method=CalibrationMethod.Percentile)
        except ValueError:  # numbers that are all but equal, as of an untrained model, have no bins
            static(_Squares(folder), calibrate_method=CalibrationMethod.MinMax)
        quantize_dynamic(half, encoder, op_types_to_quantize=["MatMul"], **options)
        quant_pre_process(step, ready, skip_symbolic_shape=True)
        quantize_dynamic(
            ready,
            step,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=_without_channels(ready),
            **options,
        )
    _keep_whole_numbers(encoder)
    _embed_from_scores(step)


class _Squares:
    """Squares for the calibration: corners and, mirrored, middles of the sample photos."""

    def __init__(self, folder: Path) -> None:
        from captioner_serving.export.parity import load_app

        self.app = load_app(folder).Captioner(folder)
        self.left = self._all()

    def get_next(self) -> dict[str, Any] | None:
        """Give the next one, as onnxruntime asks for it."""
        return next(self.left, None)

    def _all(self) -> Iterator[dict[str, Any]]:
        for path in sample_photos().values():
            photo = self.app.open(path)
            for part in _CROPS:
                width, height = (round(part * side) for side in photo.size)
                x, y = photo.width - width, photo.height - height
                corner = photo.crop((0, y, width, y + height))
                middle = photo.crop((x // 2, y // 2, x // 2 + width, y // 2 + height))
                for image in (corner, middle.transpose(Image.Transpose.FLIP_LEFT_RIGHT)):
                    pixels = np.asarray(self.app.square(image)).transpose(2, 0, 1)
                    yield {"pixels": np.ascontiguousarray(pixels[np.newaxis])}


def _keep_whole_numbers(path: Path) -> None:
    """Keep matrices as whole numbers with a scale a channel; they meet when the graph is loaded."""
    import onnx

    model = onnx.load(path)
    kept, nodes = [], []
    for one in model.graph.initializer:
        weights = onnx.numpy_helper.to_array(one)
        if weights.dtype != np.float32 or weights.ndim < 2 or weights.size < _SMALL:
            kept.append(one)
            continue
        within = 0 if weights.ndim == 2 else tuple(range(1, weights.ndim))
        scale = np.maximum(np.abs(weights).max(axis=within, keepdims=True) / 127, 1e-12)
        whole, factors, numbers = (f"{one.name}_{part}" for part in ("whole", "scale", "numbers"))
        kept += [
            onnx.numpy_helper.from_array(np.rint(weights / scale).astype(np.int8), whole),
            onnx.numpy_helper.from_array(scale, factors),
        ]
        nodes += [
            _node("Cast", [whole], numbers, to=onnx.TensorProto.FLOAT),
            _node("Mul", [numbers, factors], one.name),
        ]
    nodes.extend(model.graph.node)
    _replace(model, nodes, kept, path)


def _without_channels(path: Path) -> list[str]:
    """Name the products with vectors, which have no channels to be quantised by."""
    import onnx

    graph = onnx.load(path).graph
    vectors = {one.name for one in graph.initializer if len(one.dims) < 2}
    products = (node for node in graph.node if node.op_type == "MatMul")
    return [node.name for node in products if vectors & set(node.input)]


def _embed_from_scores(path: Path) -> None:
    """Let words be embedded with the matrix that scores them, which is the same (tied weights).

    Quantised, they would be two: one in floats, which is read by rows, and one for the product.
    """
    import onnx

    model = onnx.load(path)
    graph = model.graph
    matrices = {one.name: tuple(one.dims) for one in graph.initializer if len(one.dims) == 2}
    reads = [node for node in graph.node if node.op_type == "Gather" and node.input[0] in matrices]
    if len(reads) != 1:
        return
    (read,) = reads
    words, tokens, embedded = read.input[0], read.input[1], read.output[0]
    same = [name for name, dims in matrices.items() if dims == matrices[words][::-1]]
    scores = [name for name in same if name.endswith("_quantized")]
    if len(scores) != 1:
        return
    scale = scores[0].removesuffix("_quantized") + "_scale"
    own = [
        _node("Gather", [scores[0], tokens], "embedding_columns", axis=1),
        _node("Transpose", ["embedding_columns"], "embedding_whole", perm=(1, 2, 0)),
        _node("Cast", ["embedding_whole"], "embedding_numbers", to=onnx.TensorProto.FLOAT),
        _node("Gather", [scale, tokens], "embedding_scales"),
        _node("Unsqueeze", ["embedding_scales", "embedding_axis"], "embedding_factors"),
        _node("Mul", ["embedding_numbers", "embedding_factors"], embedded),
    ]
    nodes = [other for each in graph.node for other in (own if each is read else [each])]
    kept = [one for one in graph.initializer if one.name != words]
    kept.append(onnx.numpy_helper.from_array(np.array([-1]), "embedding_axis"))
    _replace(model, nodes, kept, path)


def _node(kind: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    import onnx

    return onnx.helper.make_node(kind, inputs, [output], name=output, **attributes)


def _replace(model: Any, nodes: list[Any], initializers: list[Any], path: Path) -> None:
    """Write a model with other nodes and initializers."""
    import onnx

    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(initializers)
    onnx.save(model, path)
