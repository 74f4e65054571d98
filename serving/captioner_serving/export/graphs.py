"""The two graphs of an exported model: the encoder, and a step of beam search.

encoder.onnx    pixels, uint8 (B, 3, size, size)  ->  the initial state, with one hypothesis per
                image, and the features (B, L, D)
step.onnx       tokens, totals, forbidden, beam and the state  ->  the fields of `Step`; attention,
                gate and heads if the decoder has them; and the hypotheses' next state. An output
                that corresponds to the input NAME is called next_NAME

Both accept any number of images (B), hypotheses (K) and forbidden words (F); see
captioner/generation/beam_search.py.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from captioner.checkpoint import Checkpoint
from captioner.errors import CheckpointError, MissingExtraError
from captioner.generation.beam_search import BeamStep, Step
from captioner.inference.decoders import fast_decoder
from captioner.inference.prepare import prepare_encoder
from captioner.model.decoder import Decoder, State
from captioner.photos.transform import Transform

_FIELDS = tuple(name for name in Step._fields if name not in ("output", "state"))
_OPTIONAL = ("attention", "gate", "heads")
_IMAGES, _HYPOTHESES, _WORDS, _BEAM = 2, 3, 4, 5  # sizes of the example input


class _Encoder(nn.Module):
    """Encodes squares, and returns the initial state of the decoder."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.model, self.transform = checkpoint.model, Transform(checkpoint.transform)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        features = self.model.encode(self.transform.normalize(pixels)).features
        image, hypothesis = self.model.decoder.start(features)
        return (*image.values(), *hypothesis.values(), features)


class _Step(nn.Module):
    """A step of beam search, with the state as separate tensors."""

    def __init__(self, step: BeamStep, image: tuple[str, ...], hypothesis: tuple[str, ...]) -> None:
        super().__init__()
        self.step, self.image, self.hypothesis = step, image, hypothesis

    def forward(
        self, tokens: Tensor, totals: Tensor, forbidden: Tensor, beam: Tensor, *parts: Tensor
    ) -> tuple[Tensor, ...]:
        named = dict(zip((*self.image, *self.hypothesis), parts, strict=True))
        state = State(
            {name: named[name] for name in self.image},
            {name: named[name] for name in self.hypothesis},
        )
        width = beam.item()
        torch._check(width >= 1)
        step = self.step(tokens, totals, forbidden, state, beam=cast(int, width))
        optional = (getattr(step.output, name) for name in _OPTIONAL)
        return (
            *(getattr(step, name) for name in _FIELDS),
            *(part for part in optional if part is not None),
            *(step.state.hypothesis[name] for name in self.hypothesis),
        )


@torch.no_grad()
def export_graphs(checkpoint: Checkpoint, folder: Path) -> dict[str, Any]:
    """Write encoder.onnx and step.onnx into a folder; modifies the checkpoint's model.

    Returns the names of the state tensors (`state`) and the size of the grid, for captioner.json.

    Raises:
        CheckpointError: a part of the model cannot be exported.
        MissingExtraError: the extra `onnx` is not installed.
    """
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("captioner export", "onnx") from error
    model, size = checkpoint.model.float().eval(), checkpoint.transform.size
    # Tables would triple the file.
    model.decoder = fast_decoder(model.decoder, tables=False)
    prepare_encoder(model.encoder, device=torch.device("cpu"), dtype=torch.float32)
    pixels = torch.zeros(_IMAGES, 3, size, size, dtype=torch.uint8)
    grid = model.encode(Transform(checkpoint.transform).normalize(pixels))
    state = model.decoder.start(grid.features)
    kind = model.config.decoder.kind
    after = model.decoder.step(torch.zeros(_IMAGES, 1, dtype=torch.long), state).state
    if any(after.hypothesis[name].shape != part.shape for name, part in state.hypothesis.items()):
        raise CheckpointError(
            f"the decoder {kind} cannot be exported, because its state grows with every word: use "
            "lstm or top_down"
        )
    # A prefix, because the graph may have nodes of the same names.
    names = tuple(f"state_{name}" for name in (*state.image, *state.hypothesis))
    _export(
        _Encoder(checkpoint),
        {"pixels": pixels},
        ({0: torch.export.Dim("images")},),
        outputs=(*names, "features"),
        path=folder / "encoder.onnx",
        part=f"the encoder {model.config.encoder.name}",
    )
    _export_step(model.decoder, state, names, path=folder / "step.onnx", part=f"the decoder {kind}")
    return {"state": names, "grid": {"rows": grid.rows, "columns": grid.columns}}


def _export_step(
    decoder: Decoder, state: State, names: tuple[str, ...], *, path: Path, part: str
) -> None:
    """Write the step; `names` are the names of the state in the graph."""
    image, hypothesis = tuple(state.image), tuple(state.hypothesis)
    tokens = torch.zeros(_IMAGES, _HYPOTHESES, dtype=torch.long)
    widened = {name: part.repeat(1, _HYPOTHESES, 1) for name, part in state.hypothesis.items()}
    inputs = {
        "tokens": tokens,
        "totals": torch.zeros(_IMAGES, _HYPOTHESES),
        "forbidden": tokens.unsqueeze(-1).repeat(1, 1, _WORDS),
        "beam": torch.tensor(_BEAM),
        **dict(zip(names, (*state.image.values(), *widened.values()), strict=True)),
    }
    images, both = (
        {at: torch.export.Dim(name) for at, name in enumerate(dims)}
        for dims in (("images",), ("images", "hypotheses"))
    )
    parts = (*(images for _ in image), *(both for _ in hypothesis))
    words = {**both, 2: torch.export.Dim("words")}
    example = decoder.step(tokens, state.expand(_HYPOTHESES))
    _export(
        _Step(BeamStep(decoder), image, hypothesis).eval(),
        inputs,
        (both, both, words, {}, parts),
        outputs=(
            *(f"next_{name}" if name in inputs else name for name in _FIELDS),
            *(name for name in _OPTIONAL if getattr(example, name) is not None),
            *(f"next_{name}" for name in names[len(image) :]),
        ),
        path=path,
        part=part,
    )


def _export(
    module: nn.Module,
    inputs: dict[str, Tensor],
    shapes: tuple[Any, ...],
    *,
    outputs: tuple[str, ...],
    path: Path,
    part: str,
) -> None:
    """Write a module as a graph.

    Raises CheckpointError: the module cannot be exported; the message begins with `part`.
    """
    try:
        with _quietly():
            traced = torch.export.export(
                module, tuple(inputs.values()), dynamic_shapes=shapes, strict=False
            )
            program = cast(  # None only without dynamo
                torch.onnx.ONNXProgram,
                torch.onnx.export(
                    traced,
                    dynamo=True,
                    input_names=list(inputs),
                    output_names=list(outputs),
                    verbose=False,
                ),
            )
            program.save(path)
    except (torch.onnx.errors.OnnxExporterError, RuntimeError, ValueError, TypeError) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise CheckpointError(f"{part} cannot be exported: {reason}") from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the exporter's progress output and warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
