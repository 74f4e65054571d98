"""Validation in a run: scores of its model, and of the checkpoint that it started from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from captioner.checkpoint import Checkpoint
from captioner.errors import GenerationError
from captioner_training.data.captioned import Captioned
from captioner_training.data.corpus import Corpus, new_word_nats
from captioner_training.data.grids import CachedGrids
from captioner_training.distributed import Processes
from captioner_training.recipe import Recipe
from captioner_training.state import diverged
from captioner_training.step import autocast_of

Scored = tuple[dict[str, float], list[Captioned]]
"""Scores by name, including CIDEr and cross_entropy, and the captions."""

Validate = Callable[..., Scored]
"""Scores a checkpoint; has the arguments of evaluation.split.validate."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Scores checkpoints on the validation split of a run."""

    validate: Validate
    recipe: Recipe
    corpus: Corpus
    processes: Processes
    boxes: Path | None = None  # boxes of synthetic scenes, to score attention

    def score(
        self,
        checkpoint: Checkpoint,
        *,
        step: int,
        grids: CachedGrids | None,
        after_batch: Callable[[], None],
    ) -> Scored:
        """Score the model in training; its training mode is restored.

        Args:
            checkpoint: the model.
            step: the current step of the run, for messages.
            grids: the cached grids of the split; None: encode the photos.
            after_batch: called equally often in every process.

        Raises GenerationError: the weights or the cross-entropy are not finite.
        """
        training = checkpoint.model.training
        try:
            scores, captioned = self.validate(
                checkpoint,
                self.corpus.validation,
                self.recipe.data,
                autocast=autocast_of(self.recipe, self.processes.device),
                processes=self.processes,
                boxes=self.boxes,
                grids=grids,
                together=after_batch,
            )
        except GenerationError as error:  # the last step may have made weights NaN
            raise diverged(step) from error
        finally:
            checkpoint.model.train(training)
        if not math.isfinite(scores["cross_entropy"]):
            raise diverged(step)
        return scores, captioned

    def score_origin(self, origin: Checkpoint) -> dict[str, float]:
        """Score the checkpoint that the run starts from, with the recipe's generation settings.

        The cross-entropy includes a penalty for words missing from the checkpoint's vocabulary; see
        new_word_nats.
        """
        origin.model.to(self.processes.device)
        scores, _ = self.validate(
            replace(origin, generation=self.recipe.generation),
            self.corpus.validation,
            self.recipe.data,
            autocast=autocast_of(self.recipe, self.processes.device),
            processes=self.processes,
        )
        origin.model.to("cpu")  # frees GPU memory
        scores["cross_entropy"] += new_word_nats(
            self.corpus.validation,
            self.corpus.vocabulary,
            origin.vocabulary,
            maximum_length=self.recipe.data.maximum_length,
        )
        return scores
