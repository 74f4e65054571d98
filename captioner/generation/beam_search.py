"""Beam search over a batch of images.

Shapes: B images, K unfinished hypotheses and C finished sentences per image, T words, L grid cells,
H heads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from captioner.errors import GenerationError
from captioner.generation.config import GenerationConfig
from captioner.generation.constraints import Constraints, restrict
from captioner.model.decoder import State, StepDecoder, StepOutput, log_probabilities
from captioner.vocabulary import END

OPTIONAL = ("attention", "gate", "heads")
"""The parts of a hypothesis that some decoders do not have."""

Sentences = dict[str, Tensor]
"""Parts of C sentences of each of B images, such as "tokens" (B, C, T); see `read_sentences`."""


class Hypothesis(NamedTuple):
    """A finished sentence of T words.

    Tensors are float32 on the CPU, and may be views of tensors of the whole batch.

    tokens: the words, without <end>.
    score: the summed log-probability of words and <end>, divided by (their number)^length_penalty.
        Hypotheses are ranked by it.
    log_probabilities: (T + 1,), the log-probabilities of the words and <end>.
    attention: (T, L); None if the decoder has no attention.
    gate: (T,); None if the decoder has no gate.
    heads: (T, H, L); None if there is one head.
    """

    tokens: list[int]
    score: float
    log_probabilities: Tensor
    attention: Tensor | None = None
    gate: Tensor | None = None
    heads: Tensor | None = None

    def copy(self) -> Hypothesis:
        """Return a copy that does not keep the rest of its batch in memory."""
        return Hypothesis._make(part.clone() if isinstance(part, Tensor) else part for part in self)


class Step(NamedTuple):
    """One step of B images: the K' best extensions of K hypotheses, and the hypotheses that end.

    tokens: (B, K'), the new words.
    parents: (B, K'), the hypotheses that they extend.
    logs: (B, K'), the log-probabilities of the new words.
    totals: (B, K'), the summed log-probabilities of all words, best first.
    ending: (B, K'), the totals with <end> of hypotheses that end; -inf for unused entries.
    ended: (B, K'), the indices of these hypotheses.
    end_logs: (B, K), the log-probability of <end> after each hypothesis.
    output: the decoder's output for the K hypotheses.
    state: the decoder's state for the K' extensions.
    """

    tokens: Tensor
    parents: Tensor
    logs: Tensor
    totals: Tensor
    ending: Tensor
    ended: Tensor
    end_logs: Tensor
    output: StepOutput
    state: State


class BeamStep(nn.Module):
    """One step of beam search, as a module that `captioner export` can export."""

    def __init__(self, decoder: StepDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self, tokens: Tensor, totals: Tensor, forbidden: Tensor, state: State, *, beam: int
    ) -> Step:
        """Score all successors of K hypotheses per image and keep the K' best.

        Args:
            tokens: (B, K), the last words.
            totals: (B, K), the summed log-probabilities of the words so far.
            forbidden: (B, K, F), the words that must not follow each hypothesis.
            state: the decoder's state.
            beam: K'.
        """
        output = self.decoder.step(tokens, state)
        logs = log_probabilities(output.logits)
        words = logs.shape[-1]
        sums = (totals.unsqueeze(-1) + restrict(logs, forbidden)).flatten(1)
        # Each hypothesis has one successor that ends it, so half of these are words.
        best, flat = sums.topk(torch.sym_min(2 * beam, sums.shape[1]), dim=1)
        parents, chosen = flat // words, flat % words
        ends = chosen == END
        # A hypothesis ends only if <end> is among the K' best successors.
        ending, ended = torch.where(ends, best, -torch.inf)[:, :beam], parents[:, :beam]
        unfinished = best.masked_fill(ends, -torch.inf)
        kept, alive = unfinished.topk(torch.sym_min(beam, best.shape[1]), dim=1)
        following, next_tokens = parents.gather(1, alive), chosen.gather(1, alive)
        return Step(
            tokens=next_tokens,
            parents=following,
            logs=logs.flatten(1).gather(1, following * words + next_tokens),
            totals=kept,
            ending=ending,
            ended=ended,
            end_logs=logs[..., END],
            output=output,
            state=output.state.select(following),
        )


class Search(NamedTuple):
    """The search of B images between two steps.

    images: (B,), the places of the images in the batch.
    tokens, totals, state: see `BeamStep`.
    unfinished: the K hypotheses. "rows": which of the hypotheses each was at every step.
    best: the best finished sentences so far; empty before the first step.
    parts: the optional parts of the decoder's output at every step, (B, K, ...).
    """

    images: Tensor
    tokens: Tensor
    totals: Tensor
    state: State
    unfinished: Sentences
    best: Sentences
    parts: dict[str, list[Tensor]]

    def take(self, rows: Tensor) -> Search:
        """Return the search of these images only."""
        unfinished, best = (
            {name: part[rows] for name, part in sentences.items()}
            for sentences in (self.unfinished, self.best)
        )
        parts = {name: [part[rows] for part in steps] for name, steps in self.parts.items()}
        return Search(
            self.images[rows], self.tokens[rows], self.totals[rows], self.state.take(rows),
            unfinished, best, parts,
        )  # fmt: skip

    def sentences(self) -> Sentences:
        """Return the best finished sentences with their optional parts."""
        best = dict(self.best)
        rows = best.pop("rows")
        images = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        for name, steps in self.parts.items():
            chosen = [part[images, rows[..., step]] for step, part in enumerate(steps)]
            unused = torch.zeros_like(chosen[0])
            best[name] = torch.stack(chosen + [unused] * (rows.shape[2] - len(steps)), 2)
        return best


def beam_search(
    decoder: StepDecoder,
    features: Tensor,
    starts: Tensor,
    *,
    config: GenerationConfig,
    constraints: Constraints,
    checks: bool = True,
) -> Sentences:
    """Keep the K best unfinished hypotheses of each image, and its C best finished ones.

    The search of an image ends at the maximum length, or when none of its unfinished hypotheses can
    be among the best. So ending early does not change the captions, and they do not depend on the
    batch.

    Args:
        decoder: scores the words.
        features: (B, L, D), the grids.
        starts: (B,), the first token of each image's captions.
        config: beam size, captions, length penalty.
        constraints: the constraints on the words, with the maximum length of `config`.
        checks: end early. False: take all steps without reading from the device, for a CUDA graph.

    Returns the `config.captions` best sentences, best first; see `read_sentences`.
    """
    longest, interval = config.maximum_length, sync_interval(features.device)
    step, tokens = BeamStep(decoder), starts.unsqueeze(1)
    totals = torch.zeros(len(features), 1, device=features.device)
    room = (*tokens.shape, longest + 1)
    unfinished = {"tokens": tokens.new_zeros(room), "rows": tokens.new_zeros(room)}
    unfinished["log_probabilities"] = totals.new_zeros(room)
    images = torch.arange(len(features), device=features.device)
    search = Search(images, tokens, totals, decoder.start(features), unfinished, {}, {})
    ended = []  # searches of images that have left the batch
    for length in range(longest + 1):
        search = _advance(search, step, constraints, config=config, length=length)
        is_full = search.best["score"].shape[1] == config.captions
        if not checks or not is_full or (length + 1) % interval or length == longest:
            continue
        # The bound of all later scores: all further words have probability 1.
        bound = search.totals[:, 0] / (longest + 1) ** config.length_penalty
        is_open = ~(bound <= search.best["score"][:, -1])  # NaN: open, and raised at the end
        count = int(is_open.sum())
        if not count:
            break
        # Images whose search has ended leave the batch: 7 % of the time of a photo in batches of
        # 32. Selecting the others costs too much to do it for each image.
        if count <= 0.75 * len(is_open):
            ended.append(search.take(~is_open))
            search = search.take(is_open)
    if not ended:
        return search.sentences()
    searches = [*ended, search]
    order = torch.cat([part.images for part in searches]).argsort()
    columns = [part.sentences() for part in searches]
    return {name: torch.cat([part[name] for part in columns])[order] for name in columns[0]}


def _advance(
    search: Search,
    step: BeamStep,
    constraints: Constraints,
    *,
    config: GenerationConfig,
    length: int,
) -> Search:
    """Extend the hypotheses of `length` words by a word; at the maximum length, end them."""
    unfinished, totals = search.unfinished, search.totals
    forbidden = constraints.forbidden(unfinished["tokens"][..., :length])
    new = step(search.tokens, totals, forbidden, search.state, beam=config.beam_size)
    parts = {
        name: [*search.parts.get(name, ()), part]
        for name in OPTIONAL
        if (part := getattr(new.output, name)) is not None
    }
    rows = torch.arange(totals.shape[1], device=totals.device)
    unfinished["rows"][..., length] = rows
    ending, ended = new.ending, new.ended
    if length == config.maximum_length:
        ending, ended = totals + new.end_logs, rows.expand_as(totals)
    finished = _select(unfinished, ended)
    finished["log_probabilities"][..., length] = new.end_logs.gather(1, ended)
    finished["length"] = torch.full_like(ended, length)
    finished["score"] = ending / (length + 1) ** config.length_penalty
    for name, part in search.best.items():
        finished[name] = torch.cat([part, finished[name]], 1)
    score = finished["score"]
    best = _select(finished, score.topk(min(config.captions, score.shape[1]), dim=1).indices)
    unfinished = _select(unfinished, new.parents)
    unfinished["tokens"][..., length] = new.tokens
    unfinished["log_probabilities"][..., length] = new.logs
    return Search(search.images, new.tokens, new.totals, new.state, unfinished, best, parts)


def _select(sentences: Sentences, rows: Tensor) -> Sentences:
    """Select rows (B, R) of sentences (B, K, ...) of each image."""
    images = torch.arange(len(rows), device=rows.device).unsqueeze(1)
    return {name: part[images, rows] for name, part in sentences.items()}


def read_sentences(sentences: Sentences) -> list[list[Hypothesis]]:
    """Copy sentences to the CPU.

    Args:
        sentences: "score" (B, C), -inf for entries without a sentence; "length" (B, C) in words;
            "tokens" and "log_probabilities" (B, C, T), where T includes <end>; and of the optional
            parts "attention" (B, C, T, L), "gate" (B, C, T) and "heads" (B, C, T, H, L). Values
            after the length are arbitrary.

    Raises GenerationError: a score is NaN.
    """
    # One copy from the device; float32 is exact for tokens.
    rows = [part.float().reshape(*part.shape[:2], -1) for part in sentences.values()]
    pieces = torch.split(torch.cat(rows, dim=2).cpu(), [row.shape[2] for row in rows], dim=2)
    parts = {
        name: piece.reshape(part.shape)
        for (name, part), piece in zip(sentences.items(), pieces, strict=True)
    }
    raise_if_nan(parts["score"])  # hypotheses with NaN are first in the beam, so they end as best
    optional = {name: parts[name] for name in OPTIONAL if name in parts}
    lengths, tokens = parts["length"].int().tolist(), parts["tokens"].int().tolist()
    return [
        [
            Hypothesis(
                tokens[image][place][:length],
                score,
                parts["log_probabilities"][image, place, : length + 1],
                **{name: part[image, place, :length] for name, part in optional.items()},
            )
            for place, (score, length) in enumerate(zip(scores, lengths[image], strict=True))
            if score > -torch.inf
        ]
        for image, scores in enumerate(parts["score"].tolist())
    ]


def raise_if_nan(scores: Tensor) -> None:
    """Raise GenerationError if a score is NaN: one broken logit makes all of a hypothesis NaN."""
    if bool(scores.isnan().any()):
        raise GenerationError(
            "the model scored words with NaN or infinity: use float32, or another checkpoint if "
            "its weights are damaged"
        )


def sync_interval(device: torch.device) -> int:
    """Return after how many steps to check whether all hypotheses have ended.

    On a GPU every check waits for the queued work, which costs more than a few superfluous steps.
    """
    return 1 if device.type == "cpu" else 4
