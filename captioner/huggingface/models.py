"""Models of transformers: the supported classes, and loading from the Hub or a folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from captioner.errors import (
    CheckpointError,
    CheckpointFormatError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    ConfigError,
    MissingExtraError,
)
from captioner.hub import download_files
from captioner.photos.transform import BicubicTransformConfig, TransformConfig
from captioner.shared.paths import HUGGING_FACE, expanded

_CONFIG, _ADAPTER = "config.json", "adapter_config.json"
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_FILES = ("*.json", "*.txt", "*.model", "model.safetensors", "model-*-of-*.safetensors")
_RESAMPLING = {2: TransformConfig, 3: BicubicTransformConfig}  # by Pillow's numbers

_Read = tuple[Tensor, Sequence[Tensor]]

_quiet = threading.Lock()  # the log level of transformers belongs to the process


def _read_blip(model: Any, images: Tensor, tokens: Tensor, cache: Any = None) -> _Read:
    # The whole model does not return cross-attention.
    output = model.text_decoder(
        tokens, encoder_hidden_states=images.squeeze(1), cache=cache, output_attentions=True
    )
    return output.logits, output.cross_attentions


def _read_encoder_decoder(model: Any, images: Tensor, tokens: Tensor, cache: Any = None) -> _Read:
    output = model(
        pixel_values=images, decoder_input_ids=tokens, cache=cache, output_attentions=True
    )
    return output.logits, output.cross_attentions


def _read_git(model: Any, images: Tensor, tokens: Tensor, cache: Any = None) -> _Read:
    output = model(tokens, pixel_values=images, cache=cache, output_attentions=True)
    count = images.shape[2]  # one sequence: image tokens, then text
    attention = [layer[:, :, count:, :count] for layer in output.attentions]
    return output.logits[:, count:], attention


class Family(NamedTuple):
    """A class of models in transformers.

    model_type: its name in config.json.
    encoder: the attribute of the image encoder.
    special: returns a model's start token and end token; the end token may be a list.
    read: takes the model, encoded images (R, 1, L', D), tokens (R, S) and a cache, or None. Returns
        the logits (R, S, V) of the next tokens, and for each layer the attention (R, H, S, L') to
        the image.
    """

    model_type: str
    encoder: str
    special: Callable[[Any], tuple[int, Any]]
    read: Callable[..., _Read]


FAMILIES = {
    "BlipForConditionalGeneration": Family(
        "blip",
        "vision_model",
        attrgetter("config.text_config.bos_token_id", "config.text_config.sep_token_id"),
        _read_blip,
    ),
    "VisionEncoderDecoderModel": Family(
        "vision-encoder-decoder",
        "encoder",
        attrgetter("generation_config.decoder_start_token_id", "generation_config.eos_token_id"),
        _read_encoder_decoder,
    ),
    "GitForCausalLM": Family(
        "git", "git.image_encoder", attrgetter("config.bos_token_id", "config.eos_token_id"),
        _read_git,
    ),
}  # fmt: skip
"""The supported families, by the name of the class."""


class EncodedImages(nn.Module):
    """Replaces a model's image encoder, so that `generate` does not encode an image per beam.

    Images (B, 1, L', D) that are encoded already are passed to it as pixels.
    """

    main_input_name = "pixel_values"

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config  # transformers compares its size with the decoder's

    def forward(self, pixel_values: Tensor, **_: Any) -> Any:
        """Return (B, L', D) as an encoder's output."""
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(last_hidden_state=pixel_values.squeeze(1))


class LoadedModel(NamedTuple):
    """A model of transformers, its name and version in records, and the name that loads it."""

    name: str
    version: str
    source: str
    model: Any
    tokenizer: Any
    transform: TransformConfig


def load_model(name: str) -> LoadedModel:
    """Load OWNER/MODEL, OWNER/MODEL@REVISION or a folder, with or without the prefix "hf:".

    Raises:
        CheckpointError: the model is missing, gated or of an unsupported class, or has no
            safetensors file.
        ConfigError: the name is empty.
        MissingExtraError: transformers is not installed.
    """
    name = name.removeprefix(HUGGING_FACE).strip()
    if not name:
        raise ConfigError("hf: has no name: use hf:OWNER/MODEL or hf:FOLDER")
    if find_spec("transformers") is None:
        raise MissingExtraError("a checkpoint hf:...", "huggingface")
    source, folder, version = name, expanded(name), "local"
    if is_local := folder.is_dir():
        source, name = str(folder), folder.resolve().name
    else:
        folder = download_files(name, [_CONFIG, _ADAPTER])
        version = folder.name[:8]
    try:
        kind = _class_in(folder)
        if not is_local:  # the weights of unsupported classes may be large
            folder = download_files(name, _FILES)
        with _silence():
            parts = _load_parts(folder, kind)
    except CheckpointNotFoundError:
        raise
    except CheckpointError as error:
        raise type(error)(f"{name}: {error.detail}") from error
    except Exception as error:  # from several libraries, without a common base class
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]
        raise CheckpointFormatError(f"{name} cannot be loaded: {reason}") from error
    return LoadedModel(name, version, HUGGING_FACE + source, *parts)


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the warnings and progress bars of transformers, and restore them."""
    from transformers.utils import logging

    hub: Any = import_module("huggingface_hub.utils")

    with _quiet, ExitStack() as stack:
        # Restored last, because transformers changes this setting with its own.
        had_bars = not hub.are_progress_bars_disabled()
        stack.callback(hub.enable_progress_bars if had_bars else hub.disable_progress_bars)
        if logging.is_progress_bar_enabled():
            stack.callback(logging.enable_progress_bar)
        stack.callback(logging.set_verbosity, logging.get_verbosity())
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield


def _load_parts(folder: Path, kind: str) -> tuple[Any, Any, TransformConfig]:
    """Load the model, the tokenizer and the transform, without running code from the folder."""
    import transformers

    if not any(folder.glob("model*.safetensors")):
        raise CheckpointFormatError(
            "it has no model.safetensors: weights in pickle files could run code and are not "
            "read. Convert them at https://huggingface.co/spaces/safetensors/convert"
        )
    if not any((folder / file).is_file() for file in _PROCESSORS):
        raise CheckpointFormatError(
            f"it has no {_PROCESSORS[0]}, which says how photos are resized: save the processor "
            "into it, for example with AutoProcessor.from_pretrained(BASE).save_pretrained(FOLDER)"
        )
    # The other implementations of attention do not return the weights.
    model, report = getattr(transformers, kind).from_pretrained(
        folder, use_safetensors=True, ignore_mismatched_sizes=True, output_loading_info=True,
        attn_implementation="eager",
    )  # fmt: skip
    # Some models are published without the pooler, which captioning does not use.
    wrong = [key for key in report["missing_keys"] if ".pooler." not in key]
    if wrong := [*wrong, *(key for key, *_ in report["mismatched_keys"])]:
        raise CheckpointMismatchError(
            f"{min(wrong)} is missing, or does not have the size in config.json: download it again"
        )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise CheckpointFormatError("it has no tokenizer with words: download it again")
    processor = transformers.AutoImageProcessor.from_pretrained(folder, trust_remote_code=False)
    return model, tokenizer, _transform_of(processor)


def _class_in(folder: Path) -> str:
    """Return the class of a model from its config.json; raise CheckpointFormatError."""
    if not (folder / _CONFIG).is_file():
        raise CheckpointFormatError(_without_config(folder))
    try:
        config = dict(json.loads((folder / _CONFIG).read_bytes()))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointFormatError(f"its {_CONFIG} is not JSON: download it again") from error
    types = {family.model_type: name for name, family in FAMILIES.items()}
    names = config.get("architectures") or config.get("model_type")
    kind = str(names[0] if isinstance(names, list) else names)
    kind = types.get(kind, kind)
    if kind not in FAMILIES or config.get("num_image_with_embedding"):
        kind = "GIT video" if kind in FAMILIES else kind
        raise CheckpointFormatError(
            f"{kind} models are not supported; use one of {', '.join(FAMILIES)}"
        )
    return kind


def _without_config(folder: Path) -> str:
    """Explain a folder without config.json: an adapter, or the folder of a Trainer."""
    if (folder / _ADAPTER).is_file():
        return (
            "it is an adapter: merge it into its model first, with merge_and_unload() of PEFT, and "
            "save the model with its processor"
        )
    states = [path for path in folder.glob("checkpoint-*") if (path / _CONFIG).is_file()]
    if states:
        last = max(states, key=lambda path: (len(path.name), path.name))
        return f"it has no {_CONFIG}: use {HUGGING_FACE}{last}"
    return f"it has no {_CONFIG}, as a model of transformers has"


def _transform_of(processor: Any) -> TransformConfig:
    """Describe an image processor of transformers as a transform."""
    size, crop = dict(processor.size or {}), dict(processor.crop_size or {})
    shape: dict[str, Any] = {"mode": "squash", "size": size.get("height")}
    if processor.do_center_crop:
        shape = {"mode": "crop", "size": crop.get("height"), "resize": size.get("shortest_edge")}
    kind = _RESAMPLING.get(int(processor.resample))
    steps = (processor.do_resize, processor.do_rescale, processor.do_normalize, *shape.values())
    is_square = (crop if processor.do_center_crop else size).get("width") == shape["size"]
    if kind is None or not all(steps) or not is_square or getattr(processor, "do_pad", None):
        raise CheckpointFormatError(
            f"its image processor (size {size}, crop {crop}) is not supported: it must resize to "
            "a square, or crop one from the middle, with bilinear or bicubic resampling"
        )
    return kind(mean=tuple(processor.image_mean), std=tuple(processor.image_std), **shape)
