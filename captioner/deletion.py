"""The deletion test: whether it mattered for a word that the model looked where it looked.

The decoder's state before the word is kept. The fewest cells that hold half of the word's attention
are replaced by the mean of the grid, attention is computed again, and the word is scored again: how
far does its log-probability fall, against random draws of as many cells? Insertion goes the other
way: from a grid that is its mean everywhere, with only these cells as they were. (Petsiuk et al.
2018, RISE, section 4.1, for pictures; here for a word, one step, and the attention's own map.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from captioner.decoders.state import (
    State,
    StepDecoder,
    StepOutput,
    check_numbers,
    log_probabilities,
)

__all__ = [
    "Draws",
    "WordEffect",
    "attended_cells",
    "random_cells",
    "repeated_cells",
    "sentence_effects",
    "word_effects",
]

_SHARE = 0.5  # of a word's attention that the deleted cells hold
_DRAWS = 8  # enough to know a word's chance level; the mean over words is sharper by far
_ROWS = 64  # grids that are changed at once: their copies are what a step takes most memory for

# Takes how many cells (R,) to draw and the cells L of a grid; gives masks (draws, R, L).
Draws = Callable[[Tensor, int], Tensor]


class WordEffect(NamedTuple):
    """What the test found of one word, in nats.

    caption, place: which caption, and which of its words; cells: how many were replaced.
    deletion: how far the log-probability falls without the attended cells; insertion: how far it
    rises with them alone (NaN where nobody asked). random_...: the same for random cells.
    entropy: of the attention; gate: in 0..1, None where the decoder has none.
    """

    caption: int
    place: int
    cells: int
    deletion: float
    random_deletion: float
    insertion: float
    random_insertion: float
    entropy: float
    gate: float | None

    @property
    def effect(self) -> float:
        """How much more the attended cells mattered than random ones."""
        return self.deletion - self.random_deletion


def attended_cells(attention: Tensor) -> Tensor:
    """Mark the fewest cells that hold half of the attention: (R, L) weights to a mask (R, L)."""
    ordered, order = attention.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    # The tolerance is for sums that reach the share but for rounding.
    kept = before < _SHARE * attention.sum(dim=-1, keepdim=True) - 1e-6
    return torch.zeros_like(kept).scatter(-1, order, kept)


def random_cells(generator: torch.Generator, *, draws: int = _DRAWS) -> Draws:
    """Draw cells by chance, without replacement, anew for every word."""
    return partial(_draw, generator, draws, True)


def repeated_cells() -> Draws:
    """Draw cells by chance, for all captions the same at the same place.

    So what is found of a photo does not depend on the photos beside it, nor on the day.
    """
    return partial(_draw, torch.Generator().manual_seed(0), _DRAWS, False)


def _draw(generator: torch.Generator, draws: int, anew: bool, counts: Tensor, cells: int) -> Tensor:
    """Mark as many cells as are counted (R,), in an order by chance: (draws, R, L)."""
    numbers = torch.rand(draws, len(counts) if anew else 1, cells, generator=generator)
    ranks = numbers.argsort(dim=-1).argsort(dim=-1)
    return ranks.to(counts.device) < counts[None, :, None]


@torch.inference_mode()
def word_effects(
    decoder: StepDecoder,
    features: Tensor,
    captions: Sequence[Sequence[int]],
    *,
    draws: Draws,
    starts: Sequence[int],
    images: Sequence[int] | None = None,
    insertion: bool = True,
) -> list[WordEffect]:
    """Test every word of captions.

    Args:
        decoder: that attends.
        features: (B, L, D), the grids.
        captions: the tokens that were said, without <end>.
        draws: of the cells to compare with.
        starts: of each caption, the token that it began with.
        images: of each caption, its grid; None: there is one for each grid, in order.
        insertion: whether that is measured too, which doubles the work.

    Returns:
        The words, in the order of their places; none where the decoder does not attend.

    Raises GenerationError: the decoder's scores are not numbers.
    """
    found: list[WordEffect] = []
    device = features.device
    rows = torch.arange(len(captions), device=device)
    state = decoder.start(features)
    if images is not None:
        state = state.take(torch.tensor(images, device=device))
    tokens = torch.tensor(starts, device=device).unsqueeze(1)
    for place in range(max(map(len, captions), default=0)):
        alive = [at for at, row in enumerate(rows.tolist()) if place < len(captions[row])]
        if len(alive) < len(rows):
            keep = torch.tensor(alive, device=device)
            rows, tokens, state = rows[keep], tokens[keep], state.take(keep)
        said = torch.tensor([captions[row][place] for row in rows.tolist()], device=device)
        output = decoder.step(tokens, state)
        if output.attention is None:
            return []
        weights = output.attention[:, 0].float()
        mask = attended_cells(weights)
        masks = torch.cat([mask[None], draws(mask.sum(dim=-1), mask.shape[-1])])
        score = partial(_score, decoder, tokens, state, said)
        falls = _said(output, said) - score(masks)
        rises = torch.full_like(falls, math.nan)
        if insertion:
            rises = score(~masks) - score(torch.ones_like(masks[:1]))
        entropy = -(weights * weights.clamp(min=1e-12).log()).sum(dim=-1)
        parts = (falls[0], falls[1:].mean(0), rises[0], rises[1:].mean(0), entropy)
        columns = rows.tolist(), mask.sum(-1).tolist(), torch.stack(parts, dim=1).tolist()
        gates = [None] * len(rows) if output.gate is None else output.gate[:, 0].tolist()
        for row, cells, numbers, gate in zip(*columns, gates, strict=True):
            found.append(WordEffect._make([row, place, cells, *numbers, gate]))
        tokens, state = said.unsqueeze(1), output.state
    return found


def sentence_effects(
    decoder: StepDecoder,
    features: Tensor,
    sentences: Sequence[Sequence[Sequence[int]]],
    *,
    start: int,
) -> list[list[list[float] | None]]:
    """Find the effect of every word of the sentences of each grid, all together.

    Sentences, any number of each grid, are tokens without <end>; all began with `start`. Gives of
    each the effects of its words; None where the decoder does not attend. Else as `word_effects`.
    """
    places = [(image, at) for image, each in enumerate(sentences) for at in range(len(each))]
    found = word_effects(
        decoder,
        features,
        [sentences[image][at] for image, at in places],
        draws=repeated_cells(),
        starts=[start] * len(places),
        images=[image for image, _ in places],
        insertion=False,
    )
    effects: list[list[list[float] | None]] = [[None] * len(each) for each in sentences]
    for one in found:  # in the order of their places
        image, at = places[one.caption]
        effects[image][at] = [*(effects[image][at] or []), one.effect]
    return effects


def _score(
    decoder: StepDecoder, tokens: Tensor, state: State, said: Tensor, masks: Tensor
) -> Tensor:
    """Score the words (R,) with the grid's mean in the cells of masks (M, R, L): (M, R)."""
    means = {name: part.mean(dim=1, keepdim=True) for name, part in state.image.items()}
    scores = []
    for some in torch.split(masks, max(1, _ROWS // masks.shape[1])):
        times = len(some)
        image = {  # masks have the dimensions of a part (R, L, ...) behind the first
            name: torch.where(
                some.reshape(*some.shape, *[1] * (part.dim() - 2)), means[name], part
            ).flatten(0, 1)
            for name, part in state.image.items()
        }
        others = (
            {name: part.repeat(times, *[1] * (part.dim() - 1)) for name, part in parts.items()}
            for parts in (state.hypothesis, state.words)
        )
        output = decoder.step(tokens.repeat(times, 1), State(image, *others))
        scores.append(_said(output, said.repeat(times)).view(times, -1))
    return torch.cat(scores)


def _said(output: StepOutput, said: Tensor) -> Tensor:
    """Take the log-probabilities (R,) of the words (R,)."""
    logs = log_probabilities(output.logits)[:, 0].gather(-1, said.unsqueeze(-1)).squeeze(-1)
    check_numbers(bool(logs.isnan().any()))
    return logs
