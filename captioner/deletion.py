"""The deletion test: whether a word depends on the cells that it attended to.

The fewest cells that hold half of a word's attention are replaced by the mean of the grid. The step
is repeated, with new attention, from the decoder's state before the word. The test measures how far
the word's log-probability falls, compared with replacing the same number of random cells.

(Petsiuk et al. 2018, RISE, section 4.1, for classifiers and pixels. Here: one word, one step, and
the model's own attention.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from captioner.generation.beam_search import raise_if_nan
from captioner.model.decoder import State, StepDecoder, StepOutput, log_probabilities

_SHARE = 0.5  # the share of a word's attention in the deleted cells
_DRAWS = 8  # sets of random cells per word
_ROWS = 64  # changed grids in a batch, which limits the memory


def attended_cells(attention: Tensor) -> Tensor:
    """Return a mask (R, L) of the fewest cells that hold half of the attention (R, L)."""
    ordered, order = attention.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    # The tolerance allows for rounding of the sums.
    kept = before < _SHARE * attention.sum(dim=-1, keepdim=True) - 1e-6
    return torch.zeros_like(kept).scatter(-1, order, kept)


def random_cells(generator: torch.Generator, counts: Tensor, cells: int) -> Tensor:
    """Draw sets of random cells for every row; row r gets counts[r] of them.

    Args:
        generator: seeded with 0 for every batch, so that effects are reproducible.
        counts: (R,), the numbers of cells.
        cells: the number L of cells in a grid.

    Returns masks (draws, R, L). All rows share the order of the cells, so the effects of a photo
    do not depend on the batch.
    """
    numbers = torch.rand(_DRAWS, 1, cells, generator=generator)
    ranks = numbers.argsort(dim=-1).argsort(dim=-1)
    return ranks.to(counts.device) < counts[None, :, None]


@torch.inference_mode()
def sentence_effects(
    decoder: StepDecoder,
    features: Tensor,
    sentences: Sequence[Sequence[Sequence[int]]],
    *,
    start: int,
) -> list[list[list[float] | None]]:
    """Return the effects of all words, for any number of sentences per grid.

    The effect is the fall of the log-probability, in nats, without the attended cells minus the
    mean fall without random cells.

    Args:
        decoder: the decoder that generated the sentences.
        features: (B, L, D), the grids.
        sentences: for each grid, the tokens of its sentences, without <end>.
        start: the start token of all sentences.

    Returns:
        For each grid and sentence, the effects of the words; None if the decoder has no attention.

    Raises GenerationError: a score is NaN.
    """
    effects: list[list[list[float] | None]] = [[None] * len(beam) for beam in sentences]
    generator, device = torch.Generator().manual_seed(0), features.device
    rows = [(image, at) for image, beam in enumerate(sentences) for at in range(len(beam))]
    state = decoder.start(features).take(torch.tensor([row[0] for row in rows], device=device))
    tokens = torch.full((len(rows), 1), start, device=device)
    for place in range(max(len(sentences[image][at]) for image, at in rows)):
        unfinished = [n for n, (image, at) in enumerate(rows) if place < len(sentences[image][at])]
        if len(unfinished) < len(rows):
            rows = [rows[n] for n in unfinished]
            keep = torch.tensor(unfinished, device=device)
            tokens, state = tokens[keep], state.take(keep)
        words = torch.tensor([sentences[image][at][place] for image, at in rows], device=device)
        output = decoder.step(tokens, state)
        if output.attention is None:
            break
        mask = attended_cells(output.attention[:, 0].float())
        drawn = random_cells(generator, mask.sum(dim=-1), mask.shape[-1])
        masks = torch.cat([mask[None], drawn])
        falls = _log_probabilities_of(output, words) - _score(decoder, tokens, state, words, masks)
        parts = torch.stack([falls[0], falls[1:].mean(0)], dim=1).tolist()
        for (image, at), (attended, random) in zip(rows, parts, strict=True):
            effects[image][at] = [*(effects[image][at] or []), attended - random]
        tokens, state = words.unsqueeze(1), output.state
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
        hypothesis = {
            name: part.repeat(times, *[1] * (part.dim() - 1))
            for name, part in state.hypothesis.items()
        }
        output = decoder.step(tokens.repeat(times, 1), State(image, hypothesis))
        scores.append(_log_probabilities_of(output, words.repeat(times)).view(times, -1))
    return torch.cat(scores)


def _log_probabilities_of(output: StepOutput, words: Tensor) -> Tensor:
    logs = log_probabilities(output.logits)[:, 0].gather(-1, words.unsqueeze(-1)).squeeze(-1)
    raise_if_nan(logs)
    return logs
