"""The deletion test: whether a word depends on the cells that it attended to.

The fewest cells that hold half of a word's attention are replaced by the mean of the grid. The step
is repeated, with new attention, from the decoder's state before the word. The test measures how far
the word's log-probability falls, compared with replacing the same number of random cells.

(Petsiuk et al. 2018, RISE, section 4.1, for classifiers and pixels. Here: one word, one step, and
the model's own attention.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from captioner.generation.beam_search import raise_if_nan
from captioner.model.decoder import State, StepDecoder, StepOutput, log_probabilities

_SHARE = 0.5  # the share of a word's attention in the deleted cells
_DRAWS = 8  # sets of random cells per word
_ROWS = 64  # changed grids in a batch, which limits the memory

Draws = Callable[[Tensor, int], Tensor]
"""A function that draws cells. It takes the numbers of cells (R,) to draw and the number L of cells
in a grid, and returns masks (draws, R, L)."""


class WordEffect(NamedTuple):
    """The result of the deletion test for one word, in nats.

    caption: the index of the caption.
    place: the index of the word.
    cells: the number of replaced cells.
    deletion: the fall of the log-probability without the attended cells.
    random_deletion: the mean fall without the same number of random cells.
    """

    caption: int
    place: int
    cells: int
    deletion: float
    random_deletion: float

    @property
    def effect(self) -> float:
        """`deletion` minus `random_deletion`."""
        return self.deletion - self.random_deletion


def attended_cells(attention: Tensor) -> Tensor:
    """Return a mask (R, L) of the fewest cells that hold half of the attention (R, L)."""
    ordered, order = attention.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    # The tolerance allows for rounding of the sums.
    kept = before < _SHARE * attention.sum(dim=-1, keepdim=True) - 1e-6
    return torch.zeros_like(kept).scatter(-1, order, kept)


def repeated_cells() -> Draws:
    """Return a function that draws the same random cells for every caption, from a fixed seed.

    Therefore the effects of a photo's words are reproducible and do not depend on the batch.
    """
    return partial(_draw, torch.Generator().manual_seed(0))


def _draw(generator: torch.Generator, counts: Tensor, cells: int) -> Tensor:
    """Return masks (draws, R, L) of random cells without replacement; row r has counts[r] cells."""
    numbers = torch.rand(_DRAWS, 1, cells, generator=generator)
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
) -> list[WordEffect]:
    """Run the deletion test on every word of captions.

    Args:
        decoder: the decoder that computes the attention.
        features: (B, L, D), the grids.
        captions: the tokens of each caption, without <end>.
        draws: the function that draws the random cells.
        starts: the start token of each caption.
        images: the index of each caption's grid; None: one caption for each grid.

    Returns:
        The effects of the words, ordered by `place`; empty if the decoder has no attention.
    """
    effects: list[WordEffect] = []
    device = features.device
    rows = torch.arange(len(captions), device=device)
    state = decoder.start(features)
    if images is not None:
        state = state.take(torch.tensor(images, device=device))
    tokens = torch.tensor(starts, device=device).unsqueeze(1)
    for place in range(max(map(len, captions), default=0)):
        unfinished = [at for at, row in enumerate(rows.tolist()) if place < len(captions[row])]
        if len(unfinished) < len(rows):
            keep = torch.tensor(unfinished, device=device)
            rows, tokens, state = rows[keep], tokens[keep], state.take(keep)
        words = torch.tensor([captions[row][place] for row in rows.tolist()], device=device)
        output = decoder.step(tokens, state)
        if output.attention is None:
            return []
        mask = attended_cells(output.attention[:, 0].float())
        masks = torch.cat([mask[None], draws(mask.sum(dim=-1), mask.shape[-1])])
        score = partial(_score, decoder, tokens, state, words)
        falls = _log_probabilities_of(output, words) - score(masks)
        parts = torch.stack([falls[0], falls[1:].mean(0)], dim=1).tolist()
        for row, cells, numbers in zip(rows.tolist(), mask.sum(-1).tolist(), parts, strict=True):
            effects.append(WordEffect(row, place, cells, *numbers))
        tokens, state = words.unsqueeze(1), output.state
    return effects


def sentence_effects(
    decoder: StepDecoder,
    features: Tensor,
    sentences: Sequence[Sequence[Sequence[int]]],
    *,
    start: int,
) -> list[list[list[float] | None]]:
    """Return the effects of all words, for any number of sentences per grid.

    Args:
        decoder: the decoder that generated the sentences.
        features: (B, L, D), the grids.
        sentences: for each grid, the tokens of its sentences, without <end>.
        start: the start token of all sentences.

    Returns:
        For each grid and sentence, the effects of the words; None if the decoder has no attention.

    Raises GenerationError: a score is NaN.
    """
    keys = [(image, at) for image, beam in enumerate(sentences) for at in range(len(beam))]
    results = word_effects(
        decoder,
        features,
        [sentences[image][at] for image, at in keys],
        draws=repeated_cells(),
        starts=[start] * len(keys),
        images=[image for image, _ in keys],
    )
    effects: list[list[list[float] | None]] = [[None] * len(beam) for beam in sentences]
    for result in results:  # ordered by the words' index
        image, at = keys[result.caption]
        effects[image][at] = [*(effects[image][at] or []), result.effect]
    return effects


def _score(
    decoder: StepDecoder, tokens: Tensor, state: State, words: Tensor, masks: Tensor
) -> Tensor:
    """Score words (R,) with the cells of masks (M, R, L) replaced by the mean: (M, R)."""
    means = {name: part.mean(dim=1, keepdim=True) for name, part in state.image.items()}
    scores = []
    for chunk in torch.split(masks, max(1, _ROWS // masks.shape[1])):
        times = len(chunk)
        image = {
            name: torch.where(
                chunk.reshape(*chunk.shape, *[1] * (part.dim() - 2)), means[name], part
            ).flatten(0, 1)
            for name, part in state.image.items()  # (R, L, ...)
        }
        hypothesis, cache = (
            {name: part.repeat(times, *[1] * (part.dim() - 1)) for name, part in parts.items()}
            for parts in (state.hypothesis, state.words)
        )
        output = decoder.step(tokens.repeat(times, 1), State(image, hypothesis, cache))
        scores.append(_log_probabilities_of(output, words.repeat(times)).view(times, -1))
    return torch.cat(scores)


def _log_probabilities_of(output: StepOutput, words: Tensor) -> Tensor:
    """Return the log-probabilities (R,) of the words (R,)."""
    logs = log_probabilities(output.logits)[:, 0].gather(-1, words.unsqueeze(-1)).squeeze(-1)
    raise_if_nan(logs)
    return logs
