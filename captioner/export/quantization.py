"""The graphs of an exported model in whole numbers of 8 bits: a quarter of the size.

The encoder keeps its weights so, and computes in floats with them: with whole numbers inside, its
features are wrong by a third (docs/export.md). The step multiplies whole numbers, for which what a
hypothesis is at is rounded anew at every word.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["quantize"]

_SMALL = 1024  # numbers: below it nothing is saved


def quantize(folder: Path) -> None:
    """Replace encoder.onnx and step.onnx of an exported folder by their quantised selves."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    encoder, step = folder / "encoder.onnx", folder / "step.onnx"
    _keep_whole_numbers(encoder)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            ready = Path(scratch) / "ready.onnx"
            quant_pre_process(step, ready, skip_symbolic_shape=True)
            quantize_dynamic(
                ready,
                step,
                per_channel=True,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=["MatMul", "Gemm"],
                nodes_to_exclude=_without_channels(ready),
            )
    finally:
        logging.disable(before)
    _embed_from_scores(step)


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
