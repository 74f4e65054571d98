"""How much a photo is like those that a checkpoint has learned from.

The mean of a photo's grid is a point; the points of the training photos make a cloud. How far a
photo lies from its middle is measured by how wide the cloud is in each direction (Mahalanobis
distance; Lee et al. 2018, section 2.1). The widest directions are kept one by one, all others share
one width (probabilistic PCA), so that the statistics are small. Familiarity is the share of photos
that were kept back from the cloud and lie farther out: 0.5 is an ordinary photo, and 0 one that is
farther out than all of them.

The statistics are in a file beside the checkpoint, CHECKPOINT.familiarity.safetensors, which
`captioner familiarity` writes. Without it, nothing is said of familiarity.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from captioner.checkpoint import HEADER_KEY
from captioner.errors import CheckpointFormatError
from captioner.files import replace_file
from captioner.paths import expanded

__all__ = ["UNFAMILIAR", "Familiarity", "digest_encoder", "familiarity_file"]

UNFAMILIAR = 0.01
"""Below it a photo counts as unlike those of the training: one in a hundred of that kind does too.

A warning that ordinary photos get more often would be overlooked where it is true.
"""

_KEY = "familiarity"
_DIRECTIONS = 64  # 160 kB


@dataclass(frozen=True, kw_only=True, eq=False)
class Familiarity:
    """The cloud of the training photos.

    mean: (D,), its middle; directions: (D, K), its K widest, orthonormal; widths: (K,), the
    variances along them; rest: (), the mean variance along all others; quantiles: (Q,), distances
    of photos kept back, rising from the nearest to the farthest. encoder: see digest_encoder.
    """

    mean: Tensor
    directions: Tensor
    widths: Tensor
    rest: Tensor
    quantiles: Tensor
    encoder: str

    @classmethod
    def fit(cls, seen: Tensor, kept_back: Tensor, *, encoder: str) -> Familiarity:
        """Describe the cloud of `seen` (N, D), means of grids; `kept_back` (M, D) are of others."""
        seen = seen.double()
        mean = seen.mean(dim=0)
        values, vectors = torch.linalg.eigh(torch.cov((seen - mean).T))
        # Of N photos the widths of the last of N - 1 directions are noise: half of them are kept.
        count = max(1, min(_DIRECTIONS, len(values) - 1, (len(seen) - 1) // 2))
        cloud = cls(
            mean=mean.half(),
            directions=vectors[:, -count:].half(),
            widths=values[-count:].clamp(min=1e-12).float(),
            rest=values[:-count].mean().clamp(min=1e-12).float(),
            quantiles=torch.zeros(1),
            encoder=encoder,
        )
        steps = torch.linspace(0, 1, min(201, len(kept_back)))
        quantiles = torch.quantile(cloud.distances(kept_back), steps)
        return cls(**{**cloud.__dict__, "quantiles": quantiles})

    def distances(self, means: Tensor) -> Tensor:
        """Measure how far out photos lie, from the means (B, D) of their grids: (B,)."""
        offset = means.float().cpu() - self.mean.float()
        along = offset @ self.directions.float()
        beside = offset.square().sum(dim=-1) - along.square().sum(dim=-1)
        squares = (along.square() / self.widths).sum(dim=-1) + beside.clamp(min=0) / self.rest
        return squares.sqrt()

    def of(self, features: Tensor) -> list[float]:
        """Give the familiarity of photos from their grids (B, L, D)."""
        far = self.distances(features.float().mean(dim=1))
        shares = np.linspace(0, 1, len(self.quantiles))
        nearer = np.interp(far.numpy(), self.quantiles.numpy(), shares, right=1)
        found: list[float] = (1 - np.nan_to_num(nearer, nan=1)).tolist()
        return found

    def save(self, path: Path) -> None:
        """Write the statistics.

        Raises OutputError: the file cannot be written.
        """
        values = {**self.__dict__}
        metadata = {_KEY: json.dumps({"encoder": values.pop("encoder")})}
        tensors = {name: one.contiguous() for name, one in values.items()}
        with replace_file(path) as file:
            file.write(save(tensors, metadata=metadata))

    @classmethod
    def beside(cls, path: str | os.PathLike[str]) -> Familiarity | None:
        """Read the statistics of a checkpoint; None where none are, or those of another encoder.

        Raises CheckpointFormatError: the file is damaged.
        """
        checkpoint, path = expanded(path), familiarity_file(path)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                # Earlier versions named the checkpoint, and not its encoder.
                encoder = json.loads((file.metadata() or {})[_KEY]).get("encoder")
                if encoder != digest_encoder(checkpoint):
                    return None
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return cls(**tensors, encoder=encoder)
        except (
            SafetensorError,
            OSError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise CheckpointFormatError(
                f"{path} is damaged or holds something else ({error}): remove it, or write it "
                "again with `captioner familiarity`"
            ) from error


def familiarity_file(checkpoint: str | os.PathLike[str]) -> Path:
    """Name the file of a checkpoint's statistics, beside it."""
    path = expanded(checkpoint)
    # A suffix of another kind may be half of a version: model-1.5 is not model-1.6.
    return path.with_name(path.name.removesuffix(".safetensors") + ".familiarity.safetensors")


def digest_encoder(checkpoint: Path) -> str:
    """Digest what makes a checkpoint's grids: its encoder's weights as they lie in the file.

    The settings of encoder and transform are in it too, but for those that are off, which older
    files leave out. Words and decoder are not: statistics of grids stay true for another decoder on
    the same encoder. 12 MB of weights take 20 ms.
    """
    with checkpoint.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(size))
        header = json.loads(entries.pop("__metadata__")[HEADER_KEY])
        settings = [
            sorted(
                (key, value) for key, value in header[part].items() if value not in (None, False)
            )
            for part in ("encoder", "transform")
        ]
        digest = hashlib.sha256(json.dumps(settings).encode())
        for name in sorted(name for name in entries if name.startswith("encoder.")):
            start, end = entries[name]["data_offsets"]
            file.seek(8 + size + start)
            digest.update(name.encode())
            digest.update(file.read(end - start))
    return digest.hexdigest()[:16]
