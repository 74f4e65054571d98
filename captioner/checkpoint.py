"""Checkpoints: weights, configuration, vocabulary and transform in one safetensors file.

The tensors are the model's state dict. Everything else is one JSON document in the file's metadata.
Loading runs no code from the file and needs neither pickle nor a network.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from captioner.errors import (
    CheckpointFormatError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CheckpointVersionError,
    ConfigError,
)
from captioner.generation.config import GenerationConfig
from captioner.model.config import DecoderConfig
from captioner.model.encoder import EncoderConfig, without_weights
from captioner.model.model import CaptionModel, ModelConfig
from captioner.photos.transform import TransformConfig
from captioner.shared.files import HEADER_KEY, replace_file
from captioner.shared.paths import HUGGING_FACE, checkpoint_file
from captioner.vocabulary import Vocabulary, is_printable

FORMAT_VERSION = 1
"""Incremented when older code would misread a new file."""

# Parts of the names of a decoder's tensors in files of versions 0.1 and 0.2.
_OLD_NAMES = {
    "read": "self_attention",
    "read_output": "self_attention_output",
    "think": "feed_forward",
    "look": "cross_attention",
    "look_output": "cross_attention_output",
    "enter": "input_projection",
    "place": "position_projection",
    "enter_grid": "grid_projection",
    "enter_word": "word_projection",
    "place_word": "position_projection",
    "look_word": "attention_lstm_word",
    "look_mean": "attention_lstm_mean",
    "look_language": "attention_lstm_language",
    "look_hidden": "attention_lstm_hidden",
    "speak_look": "language_lstm_attention",
    "speak_context": "language_lstm_context",
    "speak_hidden": "language_lstm_hidden",
}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model and everything else that captioning needs.

    name: the name of the model in records and model cards.
    version: the version of its training.
    metrics: scores by name.
    generation: the default settings of generation.
    """

    model: CaptionModel
    vocabulary: Vocabulary
    transform: TransformConfig
    name: str
    version: str = "1"
    metrics: Mapping[str, float] = field(default_factory=dict)
    generation: GenerationConfig = field(default_factory=GenerationConfig)

    def save(self, path: str | os.PathLike[str], *, dtype: torch.dtype = torch.float16) -> None:
        """Write the checkpoint into an existing folder.

        Matrices are stored in `dtype`. Vectors (BatchNorm statistics, biases) stay float32, because
        some would overflow in float16. Integers stay integers.

        Raises OutputError: the file cannot be written.
        """
        tensors = {}
        for name, tensor in self.model.state_dict().items():
            is_matrix = tensor.is_floating_point() and tensor.ndim > 1
            tensors[name] = tensor.to(dtype if is_matrix else tensor.dtype).cpu().contiguous()
        with replace_file(path) as file:
            file.write(save(tensors, metadata={HEADER_KEY: json.dumps(self._header())}))

    def fingerprint(self) -> str:
        """Return a digest of weights, vocabulary and transform."""
        settings = repr((self.vocabulary.words, self.transform))
        return digest_tensors(settings, self.model.state_dict().values())

    def _header(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "version": self.version,
            "encoder": asdict(self.model.config.encoder),
            "decoder": asdict(self.model.config.decoder),
            "transform": asdict(self.transform),
            "vocabulary": self.vocabulary.ordinary_words,
            "tokenizer": self.vocabulary.tokenizer,
            "lowercase": self.vocabulary.lowercase,
            "styles": self.vocabulary.styles,
            "metrics": dict(self.metrics),
            "generation": asdict(self.generation),
        }


def digest_tensors(settings: str, tensors: Iterable[Tensor]) -> str:
    """Return a digest of settings and of weights rounded to bfloat16."""
    digest = hashlib.sha256(settings.encode())
    for tensor in tensors:
        digest.update(tensor.bfloat16().cpu().contiguous().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Load a checkpoint on the CPU, in float32, in evaluation mode.

    Raises:
        CheckpointNotFoundError: there is no such file.
        CheckpointFormatError: the file is damaged, or not a Captioner checkpoint.
        CheckpointVersionError: the file was written by an incompatible version of Captioner.
        CheckpointMismatchError: the tensors do not fit the configuration in the file.
        MissingExtraError: the encoder needs timm, which is not installed.
    """
    path = checkpoint_file(path)
    header = read_header(path)
    try:
        # Older files have two more settings, and did not scale positions.
        dropped = {"vocabulary_size", "grid_dim"}
        decoder = {key: value for key, value in header["decoder"].items() if key not in dropped}
        decoder.setdefault("scaled_positions", decoder.get("positions", "none") == "none")
        vocabulary = Vocabulary(
            header["vocabulary"],
            tokenizer=header.get("tokenizer", "words"),  # not in older files
            lowercase=bool(header.get("lowercase", True)),
            styles=header.get("styles", ()),
        )
        generation = GenerationConfig(**current_settings(header.get("generation", {})))
        vocabulary.start(generation.style)
        config = ModelConfig(
            encoder=EncoderConfig(**header["encoder"]), decoder=DecoderConfig(**decoder)
        )
        return Checkpoint(
            model=_load_model(config, len(vocabulary), path),
            vocabulary=vocabulary,
            transform=TransformConfig(**header["transform"]),
            name=_plain(header["name"]),
            version=_plain(header["version"]),
            metrics=header["metrics"],
            generation=generation,
        )
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointFormatError(
            f"{path} has a header that this Captioner cannot use ({error!s}): "
            "it is damaged, from another version, or has a custom score or decoder"
        ) from error


def current_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Rename settings of generation of older versions, and drop those that are gone."""
    renamed = {"different_around": "no_repeat_around"}
    return {renamed.get(name, name): value for name, value in settings.items() if name != "exact"}


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the header of a checkpoint: everything but the tensors.

    Raises:
        CheckpointNotFoundError: there is no such file.
        CheckpointFormatError: the file is damaged, or not a Captioner checkpoint.
        CheckpointVersionError: the file was written by an incompatible version of Captioner.
    """
    path = checkpoint_file(path)
    _check_kind(path)
    try:
        with safe_open(path, framework="np") as file:
            text = (file.metadata() or {}).get(HEADER_KEY)
        if text is None:
            raise CheckpointFormatError(
                f"{path} has no Captioner configuration: it is not a Captioner checkpoint"
            )
        header = json.loads(text)
    except SafetensorError as error:
        raise CheckpointFormatError(
            f"{path} is cut off, damaged or not a safetensors file ({error}): copy it again"
        ) from error
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointFormatError(f"{path} cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointFormatError(f"{path} has a header that is not a JSON object")
    if (version := header.get("format_version")) != FORMAT_VERSION:
        raise CheckpointVersionError(
            f"{path} has checkpoint format {version!r}; this Captioner reads format "
            f"{FORMAT_VERSION}: install the Captioner that wrote it"
        )
    return header


def _check_kind(path: Path) -> None:
    """Raise a CheckpointError for common mistakes, such as a folder or a pickle."""
    if str(path).startswith(HUGGING_FACE):
        raise CheckpointFormatError(
            f"{path} is a Hugging Face model: this command needs a Captioner checkpoint"
        )
    try:
        if path.is_fifo():  # opening it would wait for a writer
            raise CheckpointFormatError(f"{path} is a pipe: write the checkpoint to a file first")
        with path.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(f"there is no checkpoint {path}") from error
    except IsADirectoryError as error:
        raise CheckpointNotFoundError(
            f"{path} has no best.safetensors: no run has finished an epoch there"
        ) from error
    except OSError as error:
        raise CheckpointNotFoundError(f"{path} cannot be read: {error.strerror}") from error
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04")):
        raise CheckpointFormatError(
            f"{path} is a pickle (torch.save), which can run code when loaded: Captioner reads "
            "only .safetensors files"
        )
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointFormatError(f"{path} is a Git LFS pointer: run git lfs pull")


def _plain(text: object) -> str:
    """Return a name or version unchanged; raise ValueError if it is not printable text."""
    if not (isinstance(text, str) and is_printable(text)):
        raise ValueError(f"the name or version {text!a} is not plain text")
    return text


def _load_model(config: ModelConfig, vocabulary_size: int, path: Path) -> CaptionModel:
    """Build the model and load its tensors."""
    make = partial(CaptionModel, config, vocabulary_size=vocabulary_size)
    model = without_weights(make)
    expected = model.state_dict()
    try:
        with safe_open(path, framework="pt") as file:
            stored = {_current_name(name, expected): name for name in file.keys()}  # noqa: SIM118
            tensors = {name: file.get_tensor(stored[name]) for name in expected if name in stored}
    except (SafetensorError, OSError) as error:
        raise CheckpointFormatError(f"{path} cannot be read: {error}") from error
    problems = [f"no {name}" for name in expected if name not in stored]
    problems += [f"an extra {name[:99]}" for name in sorted(stored.keys() - expected.keys())]
    for name, tensor in tensors.items():
        target = expected[name]
        if tensor.shape != target.shape:
            problems.append(f"{name} of shape {_shape(tensor)} instead of {_shape(target)}")
        floats = tensor.is_floating_point() and target.is_floating_point()
        if tensor.dtype != target.dtype and not floats:
            problems.append(f"{name} of {tensor.dtype} instead of {target.dtype}")
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CheckpointMismatchError(
            f"{path} does not fit its own configuration: it has {', '.join(problems[:3])}{more}"
        )
    # Copies: the file may be overwritten while the model runs.
    weights = {
        name: tensor.to(torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)
        for name, tensor in tensors.items()
    }
    model.load_state_dict(weights, assign=True)
    if any(buffer.is_meta for buffer in model.buffers()):  # not in the state dict
        model = make()
        model.load_state_dict(weights)
    return model.requires_grad_(False).eval()


def _current_name(name: str, expected: Container[str]) -> str:
    """Return the name of a tensor in this version, given its name in a file."""
    if name in expected or not name.startswith("decoder."):
        return name
    return ".".join(_OLD_NAMES.get(part, part) for part in name.split("."))


def _shape(tensor: Tensor) -> str:
    """Return a shape as short text, because a damaged file may claim a million dimensions."""
    return str(tuple(tensor.shape)) if tensor.ndim < 10 else f"{tensor.ndim} dimensions"
