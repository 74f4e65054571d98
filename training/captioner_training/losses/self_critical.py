"""Self-critical sequence training (Rennie et al. 2017).

The model samples captions, and the loss of each is its negative log-probability times its
advantage. The advantage is the caption's reward, CIDEr-D, minus a baseline: the mean of the image's
other samples (Luo 2020, "A Better Variant of Self-Critical Sequence Training").

Captions are sampled without a gradient, and then pass through the decoder with teacher forcing like
captions of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from captioner.generation.constraints import Constraints
from captioner.generation.sampling import Sampler, roll_out
from captioner.inference.cuda_graphs import CudaGraphs
from captioner.model.decoder import Decoder
from captioner.vocabulary import END, PAD, UNK, Vocabulary
from captioner_training.data.batches import Batch
from captioner_training.data.captions import Corpus
from captioner_training.losses.cider import CiderD
from captioner_training.losses.objective import SamplingObjective, TeacherForcedOutput
from captioner_training.recipe import Recipe, SelfCritical

_END = "<end>"  # counts as a word in rewards; otherwise the model learns to stop too early


class SelfCriticalCaptions(SamplingObjective):
    """The self-critical loss.

    `references` are the captions of each training image, as words; the document frequencies are
    counted on them. `maximum_length`, in words, is used if `config` has none.
    """

    def __init__(
        self,
        config: SelfCritical,
        *,
        vocabulary: Vocabulary,
        references: Sequence[Sequence[Sequence[str]]],
        maximum_length: int,
    ) -> None:
        self.config = config
        self.vocabulary = vocabulary
        self.maximum_length = config.maximum_length or maximum_length
        self._references = [[(*words, _END) for words in captions] for captions in references]
        self._never = torch.tensor([*vocabulary.never_generated, UNK])
        self._cider: CiderD | None = None
        self._numbers: Tensor
        self._graphs = CudaGraphs()

    @classmethod
    def build(cls, setting: Any, recipe: Recipe, corpus: Corpus) -> Self:
        """Use the training captions as references."""
        return cls(
            setting,
            vocabulary=corpus.vocabulary,
            references=[image.words for image in corpus.train],
            maximum_length=recipe.data.maximum_length,
        )

    @torch.no_grad()
    def sample(self, decoder: Decoder, features: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """Sample captions for the grids (B, L, D) of a batch, beginning with its start tokens."""
        self._never = self._never.to(features.device)
        starts, positions = (
            part.to(features.device, non_blocking=True)
            for part in (batch.tokens[:, 0, 0], torch.tensor(batch.positions))
        )
        constraints = Constraints(
            maximum_length=self.maximum_length,
            never_generated=self.vocabulary.never_generated,
            must_end=False,
            device=features.device,
        )
        temperature = self.config.temperature

        def sample(features: Tensor, starts: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
            tokens = sample_captions(
                decoder, features, count=self.config.samples, starts=starts,
                constraints=constraints, temperature=temperature,
            )  # fmt: skip
            rewards = self.rewards(tokens, positions)
            return tokens, advantages(rewards), rewards.sum()

        return self._graphs(decoder, sample, features, starts, positions)

    def loss(self, forced: TeacherForcedOutput) -> Tensor:
        """Return the mean of -A log p over tokens: A is the advantage, p the sampling probability.

        Tokens that cannot be sampled are masked; otherwise probability mass leaks to them.
        """
        advantage, logits = forced.captions.advantages, forced.logits
        if advantage is None:
            raise TypeError("captions of the data have no rewards")
        logits = logits.index_fill(-1, self._never, -torch.inf) / self.config.temperature
        logs = logits.log_softmax(dim=-1, dtype=torch.float32)
        chosen = logs.gather(1, forced.targets.unsqueeze(1)).squeeze(1)
        weights = forced.pick(advantage.unsqueeze(-1).expand(forced.mask.shape))
        return -forced.sum(weights * chosen) / forced.tokens

    def rewards(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return the CIDEr-D (B, K) of captions (B, K, T) of the images at positions (B,)."""
        if self._cider is None or self._numbers.device != tokens.device:
            cider = CiderD(self._references, device=tokens.device)
            # Word numbers of CiderD: of every token, (V,), and of the references, (N, R, T).
            numbers = cider.number([[self.vocabulary.words]])[0, 0]
            numbers[PAD] = -1
            self._numbers = numbers.to(tokens.device)
            self._numbered = cider.number(self._references).int().to(tokens.device)
            self._cider = cider
        captions = self._numbers[tokens[..., 1:]]
        rewards = self._cider.compare(captions, self._numbered[positions]).float()
        return rewards.to(tokens.device)


def advantages(rewards: Tensor) -> Tensor:
    """Subtract from each reward (B, K) the mean of the image's other samples."""
    count = rewards.shape[1]
    return (rewards - rewards.mean(dim=1, keepdim=True)) * count / (count - 1)


@torch.no_grad()
def sample_captions(
    decoder: Decoder,
    features: Tensor,
    *,
    count: int,
    starts: Tensor,
    constraints: Constraints,
    temperature: float = 1.0,
) -> Tensor:
    """Sample K = `count` captions for each of the grids (B, L, D) from the model's probabilities.

    The captions begin with `starts` (B,). `constraints` have must_end=False.

    Returns tokens (B, K, T), start token first, padded with <pad>. A caption that reaches the
    maximum length has no <end>.
    """
    begin = starts.to(features.device, non_blocking=True)
    words = roll_out(
        decoder,
        features,
        count=count,
        constraints=constraints,
        choose=Sampler(temperature=temperature),
        starts=begin,
        checks=features.device.type == "cpu",
    )["tokens"]
    ends = words == END
    words = words.masked_fill(ends.cumsum(dim=-1) > ends.long(), PAD)
    if words.shape[-1] > constraints.maximum_length:  # the last position may only have <end>
        words[..., -1] = words[..., -1].where(ends[..., -1], PAD)
    return torch.cat([begin[:, None, None].expand(-1, count, 1), words], dim=-1)
