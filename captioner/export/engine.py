"""The bundled checkpoint in onnxruntime: captions without waiting for PyTorch.

The export is kept in a folder of the user's cache (or of CAPTIONER_CACHE, unless that is empty),
whose name is a digest of the checkpoint and its trust; what older versions left there goes. The
search is that of every exported folder (captioner/export/app/caption.py). docs/export.md has what
it is worth.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import os
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from captioner.captioning import BaseCaptioner, Written
from captioner.device import cores
from captioner.errors import CaptionerError, CheckpointNotFoundError, ConfigError
from captioner.files import file_digest
from captioner.generation.config import GenerationConfig
from captioner.generation.hypothesis import Hypothesis
from captioner.paths import bundled_checkpoint, expanded
from captioner.trust import Trust, trust_file
from captioner.vision.transform import TransformConfig
from captioner.vocabulary import SPECIAL_TOKENS, Vocabulary

__all__ = ["ExportedCaptioner", "ExportedModel", "find_export", "keep_export", "open_export"]

T = TypeVar("T")

_EXPORT = 2  # goes up when what is made of the same checkpoint changes
_KEPT = 30 * 86400.0  # seconds that another version's export stays beside a new one


class ExportedModel:
    """An exported folder, opened.

    Args:
        folder: that `captioner.export.folder.write_folder` wrote.
        threads: of onnxruntime.
    """

    def __init__(self, folder: Path, *, threads: int) -> None:
        from captioner.export.app.caption import Captioner as App

        self.app = App(folder, threads=threads)

    def write(self, pixels: NDArray[np.uint8], config: GenerationConfig) -> Written:
        """Caption squares, uint8 (B, 3, size, size), by greedy or beam search, one by one."""
        app = copy.copy(self.app)
        app.settings = asdict(config)
        style = config.style or next(iter(app.about["styles"]), None)
        made, features = [], []
        for square in pixels:
            encoded = app.encode(np.ascontiguousarray(square[np.newaxis]))
            found = app.search(encoded, config.beam_size, config.captions, style)
            made.append([_hypothesis(one, config) for one in found])
            features.append(encoded["features"])
        effects: list[list[list[float] | None]] = [[None] * len(each) for each in made]
        return Written(made, effects, np.concatenate(features), **app.about["grid"])


def _hypothesis(sentence: Any, config: GenerationConfig) -> Hypothesis:
    total = sentence.score * len(sentence.tokens) ** config.length_penalty
    looks = {"attention": sentence.attention, "gate": sentence.gates}
    parts: dict[str, Any] = {name: np.array(each) for name, each in looks.items() if each}
    logs: Any = np.array([*sentence.logs, total - sum(sentence.logs)], np.float32)
    return Hypothesis(
        tokens=list(sentence.tokens[:-1]),
        score=sentence.score,
        log_probabilities=logs,
        **parts,
    )


class ExportedCaptioner(BaseCaptioner):
    """Captions photos as `Captioner` does in float32, but for sampling and the deletion test.

    Args:
        folder: an export.
        checkpoint: that it was made of.
        threads: of onnxruntime; None: as many as there are cores.
        reading: max_pixels, seconds and in_process; see BaseCaptioner.
    """

    def __init__(
        self, folder: Path, checkpoint: Path, *, threads: int | None = None, **reading: Any
    ) -> None:
        self.model = ExportedModel(folder, threads=threads or cores())
        about = self.model.app.about
        words, styles = about["vocabulary"][len(SPECIAL_TOKENS) :], about["styles"]
        super().__init__(
            transform=TransformConfig(**about["transform"]),
            vocabulary=Vocabulary(
                words[: len(words) - len(styles)], tokenizer=about["tokenizer"], styles=styles
            ),
            generation=GenerationConfig(**about["generation"]),
            name=about["name"],
            version=about["version"],
            trust=Trust.beside(checkpoint),
            **reading,
        )

    def write(
        self, pixels: NDArray[np.uint8], config: GenerationConfig, *, check_attention: bool = False
    ) -> Written:
        """See BaseCaptioner."""
        if check_attention or config.sample:
            raise ConfigError("the exported model neither samples nor checks attention: use torch")
        return self.model.write(pixels, config)


def find_export(checkpoint: Path, *, device: str, dtype: str) -> Path | None:
    """Find the export that may take torch's place.

    None: it was not kept yet, there is a GPU, another checkpoint, device or dtype is asked for, or
    the extra `onnx` is not installed.
    """
    folder = _place(checkpoint, device=device, dtype=dtype)
    return folder if folder and folder.is_dir() else None


def open_export(
    folder: Path | None, build: Callable[[Path], T], *, say: Callable[[str], None]
) -> T | None:
    """Build something of an export; None: there is none, or it is damaged, and then goes away."""
    if folder is None:
        return None
    try:
        return build(folder)
    except CaptionerError:
        raise
    except Exception as error:  # a cleaner of caches, or a cut of power; those of onnxruntime vary
        say(f"{folder} cannot be opened ({_first_line(error)}): PyTorch does it")
        shutil.rmtree(folder, ignore_errors=True)
        return None


def keep_export(
    checkpoint: Path, *, device: str, dtype: str, say: Callable[[str], None]
) -> Path | None:
    """Find the export, or make it, in a process of its own; None as for `find_export`.

    None also where nothing can be written; another reason why not it says, and keeps in a note, so
    that it is not tried at every start.
    """
    folder = _place(checkpoint, device=device, dtype=dtype)
    if folder is None or folder.is_dir():
        return folder
    note = folder.with_suffix(".txt")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    if note.exists() or not os.access(folder.parent, os.W_OK):
        return None
    say(f"once, for every start after this: a model for onnxruntime, in {folder.parent} (20 s)")
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
            reason = apart.submit(_export, checkpoint, folder).result()
    except Exception as error:  # it was killed, or cannot start
        reason = _first_line(error)
    if not reason or folder.is_dir():  # another command made it meanwhile
        _sweep(folder)
        return folder
    with suppress(OSError):
        note.write_text(reason + "\n", encoding="utf-8")
    say(f"there is none ({reason}): PyTorch goes on; to try again, remove {note}")
    return None


def _sweep(folder: Path) -> None:
    """Remove what older versions have left beside an export that was just made.

    What is not old may be of another installation, which is in use too.
    """
    for other in folder.parent.iterdir():
        with suppress(OSError):
            old = other.stat().st_mtime < time.time() - _KEPT
            if old and re.fullmatch(r"[0-9a-f]{16}-\d+(\.txt)?", other.name):
                other.unlink() if other.is_file() else shutil.rmtree(other)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _export(checkpoint: Path, folder: Path) -> str:
    """Make the export; gives the reason why not, or ""."""
    try:
        from captioner.export.folder import new_folder, write_folder
        from captioner.export.parity import check_parity

        with new_folder(folder) as made:
            write_folder(checkpoint, made)
            check_parity(checkpoint, made)
    except Exception as error:  # in words: not every error passes from process to process
        return _first_line(error)
    return ""


def _place(checkpoint: Path, *, device: str, dtype: str) -> Path | None:
    """Name the folder of a checkpoint's export; None where onnxruntime is not to be used."""
    if dtype != "auto" or device not in ("auto", "cpu") or not _is_bundled(checkpoint):
        return None
    gpus = Path("/dev/nvidiactl"), Path("/dev/kfd")  # NVIDIA's and AMD's: torch may have one
    if device == "auto" and (shutil.which("nvidia-smi") or any(gpu.exists() for gpu in gpus)):
        return None
    if not all(map(importlib.util.find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        return None
    own = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "captioner")
    cache = os.environ.get("CAPTIONER_CACHE", str(own))
    if not cache:
        return None
    # What chooses among sentences lies beside the checkpoint, and is exported with it.
    made_of = [one for one in (checkpoint, trust_file(checkpoint)) if one.is_file()]
    digest = hashlib.sha256(" ".join(map(file_digest, made_of)).encode()).hexdigest()
    return expanded(cache) / f"{digest[:16]}-{_EXPORT}"


def _is_bundled(checkpoint: Path) -> bool:
    try:
        return checkpoint == bundled_checkpoint()
    except CheckpointNotFoundError:  # this installation has none: who named another may go on
        return False
