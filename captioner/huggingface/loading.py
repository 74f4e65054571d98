"""Load a model from the Hub, its cache or a folder, and describe its image processor."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError

from captioner.errors import (
    CheckpointError,
    CheckpointFormatError,
    CheckpointMismatchError,
    MissingExtraError,
)
from captioner.hub import explain_access
from captioner.huggingface.families import family_of
from captioner.paths import HUGGING_FACE, expanded
from captioner.vision.transform import BicubicTransformConfig, TransformConfig

__all__ = ["LoadedModel", "load_model", "transform_of"]

_RESAMPLING = {2: TransformConfig, 3: BicubicTransformConfig}  # by Pillow's numbers


class LoadedModel(NamedTuple):
    """A model of transformers; name and version are for records, source loads it again."""

    name: str
    version: str
    source: str
    model: Any
    tokenizer: Any
    transform: TransformConfig


def load_model(name: str) -> LoadedModel:
    """Load OWNER/MODEL, OWNER/MODEL@REVISION or a folder; "hf:" may stand in front.

    Raises:
        CheckpointError: it is missing, gated, of another class, or has no safetensors.
        MissingExtraError: transformers is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("a checkpoint hf:...", "huggingface") from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    name = name.removeprefix(HUGGING_FACE)
    source, revision = str(expanded(name)), None
    if is_folder := expanded(name).is_dir():
        name = expanded(name).name
    else:
        source, _, revision = name.partition("@")
    options: dict[str, Any] = {"revision": revision or None}
    try:
        config = transformers.AutoConfig.from_pretrained(source, **options)
        model, report = getattr(transformers, family_of(config).name).from_pretrained(
            source, use_safetensors=True, output_loading_info=True, **options
        )
        # Some are published without the pooler, which captioning does not use.
        if missing := [key for key in report["missing_keys"] if ".pooler." not in key]:
            raise CheckpointMismatchError(f"its weights lack {min(missing)}: download it again.")
        processor = transformers.AutoImageProcessor.from_pretrained(source, **options)
        return LoadedModel(
            name,
            "local" if is_folder else _commit(source, revision),
            HUGGING_FACE + (source if is_folder else name),
            model,
            transformers.AutoTokenizer.from_pretrained(source, **options),
            transform_of(processor),
        )
    except CheckpointError as error:
        raise type(error)(f"{name}: {error.detail}") from error
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise _explain(name, error) from error


def _commit(name: str, revision: str | None) -> str:
    """Return the first digits of the commit that the cache holds."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(name, "config.json", revision=revision or None)
    return Path(path).parent.name[:8] if isinstance(path, str) else "unknown"


def transform_of(processor: Any) -> TransformConfig:
    """Describe an image processor of transformers as a transform.

    Raises CheckpointFormatError: it does what no transform does.
    """
    size, crop = dict(processor.size or {}), dict(processor.crop_size or {})
    height, width, shortest = (size.get(key) for key in ("height", "width", "shortest_edge"))
    shape: dict[str, Any] = {}
    if not processor.do_center_crop and height and height == width:
        shape = {"mode": "squash", "size": height}
    elif processor.do_center_crop and shortest:
        height, width = crop.get("height"), crop.get("width")
        if height and height == width and height <= shortest:
            shape = {"mode": "crop", "size": height, "resize": shortest}
    kind = _RESAMPLING.get(int(processor.resample))
    scaled = processor.do_rescale and math.isclose(processor.rescale_factor, 1 / 255)
    padded = getattr(processor, "do_pad", None)
    if not (shape and kind and scaled and processor.do_resize) or padded:
        raise CheckpointFormatError(
            f"its image processor (size {size}, crop {crop}) is not supported: it must resize to "
            "a square, or crop one from the middle, bilinear or bicubic."
        )
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if processor.do_normalize:
        mean, std = tuple(processor.image_mean), tuple(processor.image_std)
    return kind(**shape, mean=mean, std=std)


def _explain(name: str, error: Exception) -> CheckpointError:
    """Say why a model could not be loaded, and what to do."""
    if (access := explain_access(name, error)) is not None:
        return access
    if "model.safetensors" in str(error):
        return CheckpointFormatError(
            f"{name} has no model.safetensors: weights in pickle files could run code and are not "
            "read."
        )
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return CheckpointFormatError(f"{name} cannot be loaded: {reason}")
