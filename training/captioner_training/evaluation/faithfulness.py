"""The deletion test: whether it mattered for a word that the model looked where it looked.

The decoder's state before the word is kept. The fewest cells that hold half of the word's attention
are replaced by the mean of the grid, attention is computed again, and the word is scored again: how
far does its log-probability fall, against random draws of as many cells? Insertion goes the other
way: from a grid that is its mean everywhere, with only these cells as they were. (Petsiuk et al.
2018, RISE, section 4.1, for pictures; here for a word, one step, and the attention's own map.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from captioner.decoders.state import State, StepDecoder, StepOutput
from captioner.vocabulary import START

__all__ = ["Draws", "WordEffect", "attended_cells", "random_cells", "word_effects"]

SHARE = 0.5  # of a word's attention that the deleted cells hold
DRAWS = 8  # enough to know a word's chance level; the mean over words is sharper by far

# Takes how many cells (R,) to draw and the cells L of a grid; gives masks (draws, R, L).
Draws = Callable[[Tensor, int], Tensor]


class WordEffect(NamedTuple):
    """What the test found of one word, in nats.

    image, place: which caption, and which of its words; cells: how many were replaced.
    deletion: how far the log-probability falls without the attended cells; insertion: how far it
    rises with them alone. random_deletion and random_insertion: the same for random cells.
    entropy: of the attention; gate: in 0..1, None where the decoder has none.
    """

    image: int
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


def attended_cells(attention: Tensor, *, share: float = SHARE) -> Tensor:
    """Mark the fewest cells that hold a share of the attention: (R, L) weights to a mask (R, L)."""
    ordered, order = attention.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    # The tolerance is for sums that reach the share but for rounding.
    kept = before < share * attention.sum(dim=-1, keepdim=True) - 1e-6
    return torch.zeros_like(kept).scatter(-1, order, kept)


def random_cells(generator: torch.Generator, *, draws: int = DRAWS) -> Draws:
    """Draw cells by chance, without replacement."""

    def draw(counts: Tensor, cells: int) -> Tensor:
        numbers = torch.rand(draws, len(counts), cells, generator=generator)
        ranks = numbers.argsort(dim=-1).argsort(dim=-1)
        return ranks.to(counts.device) < counts[None, :, None]

    return draw


@torch.inference_mode()
def word_effects(
    decoder: StepDecoder, features: Tensor, captions: Sequence[Sequence[int]], *, draws: Draws
) -> list[WordEffect]:
    """Test every word of a caption for each of B images.

    Args:
        decoder: that attends.
        features: (B, L, D), the grids.
        captions: of each image, the tokens that were said, without <end>.
        draws: of the cells to compare with.

    Returns:
        The words, in the order of their places; none where the decoder does not attend.

    """
    found: list[WordEffect] = []
    state = decoder.start(features)
    device = features.device
    rows = torch.arange(len(captions), device=device)
    tokens = torch.full((len(captions), 1), START, device=device)
    for place in range(max(map(len, captions), default=0)):
        alive = [at for at, row in enumerate(rows.tolist()) if place < len(captions[row])]
        keep = torch.tensor(alive, device=device)
        rows, tokens, state = rows[keep], tokens[keep], state.take(keep)
        said = torch.tensor([captions[row][place] for row in rows.tolist()], device=device)
        output = decoder.step(tokens, state)
        if output.attention is None:
            return []
        tested = _test_step(decoder, tokens, state, output, said, draws)
        for row, numbers in zip(rows.tolist(), tested, strict=True):
            found.append(WordEffect(row, place, *numbers))
        tokens, state = said.unsqueeze(1), output.state
    return found


def _test_step(
    decoder: StepDecoder,
    tokens: Tensor,
    state: State,
    output: StepOutput,
    said: Tensor,
    draws: Draws,
) -> Iterator[tuple[int, float, float, float, float, float, float | None]]:
    """Test the words (R,) of one step, a row for each photo; yields the fields of WordEffect."""
    attention = output.attention
    if attention is None:
        return
    weights = attention[:, 0].float()
    mask = attended_cells(weights)
    others = draws(mask.sum(dim=-1), mask.shape[-1])
    means = {name: part.mean(dim=1, keepdim=True) for name, part in state.image.items()}

    def score(replaced: Tensor) -> Tensor:
        """Score the words (R,) with the cells of a mask (R, L) replaced by the grid's mean."""
        image = {
            name: torch.where(_like(replaced, part), means[name], part)
            for name, part in state.image.items()
        }
        return _said(decoder.step(tokens, State(image, state.hypothesis)), said)

    whole, nothing = _said(output, said), score(torch.ones_like(mask))
    falls = torch.stack([whole - score(one) for one in (mask, *others)])
    rises = torch.stack([score(~one) - nothing for one in (mask, *others)])
    entropy = -(weights * weights.clamp(min=1e-12).log()).sum(dim=-1)
    columns = torch.stack([falls[0], falls[1:].mean(0), rises[0], rises[1:].mean(0), entropy], 1)
    gates = [None] * len(said) if output.gate is None else output.gate[:, 0].tolist()
    for cells, numbers, gate in zip(mask.sum(-1).tolist(), columns.tolist(), gates, strict=True):
        fall, random_fall, rise, random_rise, spread = numbers
        yield cells, fall, random_fall, rise, random_rise, spread, gate


def _like(mask: Tensor, part: Tensor) -> Tensor:
    """Give a mask (R, L) the dimensions of an image's tensor (R, L, ...)."""
    return mask.reshape(*mask.shape, *[1] * (part.dim() - 2))


def _said(output: StepOutput, said: Tensor) -> Tensor:
    """Take the log-probabilities (R,) of the words (R,)."""
    return output.log_probabilities()[:, 0].gather(-1, said.unsqueeze(-1)).squeeze(-1)
