"""Load a model from the Hub, its cache or a folder, and describe its image processor."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from captioner.errors import (
    CheckpointError,
    CheckpointFormatError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    ConfigError,
    MissingExtraError,
)
from captioner.hub import download_files
from captioner.huggingface.families import FAMILIES
from captioner.paths import HUGGING_FACE, expanded
from captioner.vision.transform import BicubicTransformConfig, TransformConfig

_CONFIG = "config.json"
_FILES = ("*.json", "*.txt", "*.model", "model.safetensors", "model-*-of-*.safetensors")
_RESAMPLING = {2: TransformConfig, 3: BicubicTransformConfig}  # by Pillow's numbers


class LoadedModel(NamedTuple):
    """A model of transformers.

    name, version: the model's name and version in records.
    source: the name that loads the same model again.
    """

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
        folder = download_files(name, [_CONFIG])
        version = folder.name[:8]
    try:
        kind = _class_in(folder)
        if not is_local:  # the weights of unsupported classes may be large
            folder = download_files(name, _FILES)
        parts = _load_parts(folder, kind)
    except CheckpointNotFoundError:
        raise
    except CheckpointError as error:
        raise type(error)(f"{name}: {error.detail}") from error
    except Exception as error:  # from several libraries, without a common base class
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]
        raise CheckpointFormatError(f"{name} cannot be loaded: {reason}") from error
    return LoadedModel(name, version, HUGGING_FACE + source, *parts)


def _load_parts(folder: Path, kind: str) -> tuple[Any, Any, TransformConfig]:
    """Load the model, the tokenizer and the transform, without running code from the folder."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if not any(folder.glob("model*.safetensors")):
        raise CheckpointFormatError(
            "it has no model.safetensors: weights in pickle files could run code and are not "
            "read. Convert them at https://huggingface.co/spaces/safetensors/convert"
        )
    model, report = getattr(transformers, kind).from_pretrained(
        folder, use_safetensors=True, ignore_mismatched_sizes=True, output_loading_info=True
    )
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
    """Return the class of a model from its config.json.

    Raises CheckpointFormatError: there is no valid config.json, or the class is not supported.
    """
    if not (folder / _CONFIG).is_file():
        raise CheckpointFormatError(f"it has no {_CONFIG}, as a model of transformers has")
    try:
        config = json.loads((folder / _CONFIG).read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointFormatError(f"its {_CONFIG} is not JSON: download it again") from error
    if not isinstance(config, dict):
        raise CheckpointFormatError(f"its {_CONFIG} is not a JSON object: download it again")
    kind = str((config.get("architectures") or [config.get("model_type")])[0])
    if kind not in FAMILIES or config.get("num_image_with_embedding"):
        kind = "GIT video" if kind in FAMILIES else kind
        raise CheckpointFormatError(
            f"{kind} models are not supported; use one of {', '.join(FAMILIES)}"
        )
    return kind


def _transform_of(processor: Any) -> TransformConfig:
    """Describe an image processor of transformers as a transform.

    Raises CheckpointFormatError: the processor does something that a transform cannot do.
    """
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
