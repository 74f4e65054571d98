"""How long each variant takes to caption."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

import torch

from captioner.decoders.decoder import Decoder
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate

__all__ = ["decoding_times"]

_IMAGES, _BEAM, _WORDS = 16, 5, 12
_CELLS = 49


def decoding_times(
    decoders: Mapping[str, Decoder], *, grid_dim: int, device: torch.device, rounds: int = 9
) -> dict[str, float]:
    """Time beam search over grids: milliseconds a photo, float32.

    16 grids of 49 cells, beam 5, captions of 12 words, so that every variant says as much. They are
    timed in turn, round by round, so that a disturbance meets all of them; the median counts.

    Args:
        decoders: by the name of their variant.
        grid_dim: D, the features of a cell.
        device: where they are timed.
        rounds: how often each is.

    """
    features = torch.randn(_IMAGES, _CELLS, grid_dim, device=device)
    config = GenerationConfig(beam_size=_BEAM, minimum_length=_WORDS, maximum_length=_WORDS)
    times: dict[str, list[float]] = {name: [] for name in decoders}
    for decoder in decoders.values():
        decoder.to(device).eval().tabulate()
        generate(decoder, features, config)
    for _ in range(rounds):
        for name, decoder in decoders.items():
            begin = time.perf_counter()
            generate(decoder, features, config)  # its result is on the CPU: nothing is under way
            times[name].append(time.perf_counter() - begin)
    return {name: 1e3 * statistics.median(each) / _IMAGES for name, each in times.items()}
