"""The two graphs of an exported model: from squares to a decoder's state, and a step of the search.

encoder.onnx    pixels, uint8 (B, 3, size, size)  ->  the state of one hypothesis an image, by name,
                and the features (B, L, D) that it is made of
step.onnx       tokens, totals, forbidden, beam and the state  ->  the fields of `Step`, attention,
                gate and heads where the decoder has them, and the hypotheses' state; what is an
                input too is called next_NAME

Both take any B, K and F (captioner/generation/step.py says what these are).
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from captioner.checkpoint import Checkpoint
from captioner.decoders.decoder import Decoder
from captioner.decoders.state import State
from captioner.errors import CheckpointError, MissingExtraError
from captioner.generation.step import BeamStep, Step
from captioner.vision.encoder import prepare_encoder
from captioner.vision.transform import Transform

__all__ = ["Graphs", "export_graphs"]

# What a step gives beside the decoder's own.
_FIELDS = tuple(name for name in Step._fields if name not in ("output", "state"))
_LOOKS = ("attention", "gate", "heads")
_IMAGES, _HYPOTHESES, _WORDS, _BEAM = 2, 3, 4, 5  # of the example; the graphs take any


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """What an exported model is like: its state's names, and the sides of its grid."""

    state: tuple[str, ...]
    rows: int
    columns: int


class _Encoder(nn.Module):
    """Squares to the state that their captions begin with."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.model, self.transform = checkpoint.model, Transform(checkpoint.transform)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        features = self.model.encode(self.transform.normalize(pixels)).features
        image, hypothesis, _ = self.model.decoder.start(features)
        return (*image.values(), *hypothesis.values(), features)


class _Step(nn.Module):
    """The step of beam search, with the state as single tensors."""

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
        found = self.step(tokens, totals, forbidden, state, beam=cast(int, width))
        looks = (getattr(found.output, name) for name in _LOOKS)
        return (
            *(getattr(found, name) for name in _FIELDS),
            *(look for look in looks if look is not None),
            *(found.state.hypothesis[name] for name in self.hypothesis),
        )


@torch.no_grad()
def export_graphs(
    checkpoint: Checkpoint, folder: Path, *, report: Callable[[str], None] = lambda _: None
) -> Graphs:
    """Write encoder.onnx and step.onnx into a folder; the checkpoint's model is used up.

    `report` is called with each step before it begins.

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
    # Not tabulated: what a step saves by its tables is not worth three times the file.
    prepare_encoder(model.encoder, device=torch.device("cpu"), dtype=torch.float32)
    pixels = torch.zeros(_IMAGES, 3, size, size, dtype=torch.uint8)
    grid = model.encode(Transform(checkpoint.transform).normalize(pixels))
    state = model.decoder.start(grid.features)
    kind = model.config.decoder.kind
    if state.words:
        raise CheckpointError(
            f"the decoder {kind} cannot be exported: its state grows with every word; "
            "the kinds lstm and top_down can"
        )
    # Their own names may be those of nodes inside.
    names = tuple(f"state_{name}" for name in (*state.image, *state.hypothesis))
    report("1 of 2: exporting the encoder ...")
    _export(
        _Encoder(checkpoint),
        {"pixels": pixels},
        ({0: torch.export.Dim("images")},),
        outputs=(*names, "features"),
        path=folder / "encoder.onnx",
        part=f"the encoder {model.config.encoder.name}",
    )
    report("2 of 2: exporting the decoder ...")
    _export_step(model.decoder, state, names, path=folder / "step.onnx", part=f"the decoder {kind}")
    return Graphs(state=names, rows=grid.rows, columns=grid.columns)


def _export_step(
    decoder: Decoder, state: State, names: tuple[str, ...], *, path: Path, part: str
) -> None:
    """Write a step; `names` are those of the state's parts in the graph."""
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
    looks = decoder.step(tokens, state.expand(_HYPOTHESES))
    _export(
        _Step(BeamStep(decoder), image, hypothesis).eval(),
        inputs,
        (both, both, words, {}, parts),
        outputs=(
            *(f"next_{name}" if name in inputs else name for name in _FIELDS),
            *(name for name in _LOOKS if getattr(looks, name) is not None),
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

    Raises CheckpointError: it cannot be exported; the error names the part.
    """
    try:
        with _quietly():
            traced = torch.export.export(
                module, tuple(inputs.values()), dynamic_shapes=shapes, strict=False
            )
            program = cast(  # None is given by the exporter of before, without dynamo
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
