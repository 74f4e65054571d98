"""The model card of a checkpoint on the Hugging Face Hub: README.md with metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.hub import CARD, CHECKPOINT, TRUST
from captioner.shared.text import counted, in_a_line

if TYPE_CHECKING:  # it imports torch
    from captioner.checkpoint import Checkpoint

_TASK = "image-to-text"
_TEMPLATE = """---
{{ card_data }}
---

# {{ repository.partition("/")[2] }}

Captions a photo, and shows for every word where the model looked. A checkpoint of Captioner.

## Use

```
captioner caption photo.jpg --checkpoint {{ repository }}
```

```python
from captioner import Captioner

captioner = Captioner.from_pretrained("{{ repository }}")
print(captioner.caption("photo.jpg").text)
```

## Model

{{ table(["", ""], model) }}

## Training

{{ table(["", ""], training) }}

## Scores

{% if rows -%}
{{ table(head, rows) }}

In percent; in brackets 95 % bootstrap intervals over images.
Compare only scores of the same images, scorer and beam.
{%- else -%}
Not measured.
{%- endif %}

## Limits

- Captions can be wrong. Check statements about people before you publish them.
- If its training photos did not show a thing, the model calls it by the name of another thing.
- Attention shows which part of the photo a word drew its features from, not why it was chosen.

"""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores on one split.

    values: the scores in percent, by name.
    intervals: 95 % bootstrap intervals over images, for some of the values.
    """

    data: str
    split: str
    images: int
    scorer: str
    beam_size: int
    values: Mapping[str, float]
    intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def row(self, names: Iterable[str]) -> list[str]:
        """Return a row of the card's table; a score is `26.0 [23.6, 28.4]`, or a dash."""
        cells = [self.data, self.split, f"{self.images:,}", self.scorer, str(self.beam_size)]
        for name in names:
            interval = self.intervals.get(name)
            ends = f" [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else ""
            cells.append(f"{self.values[name]:.1f}{ends}" if name in self.values else "–")
        return cells


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """The parts of a model card that the checkpoint does not contain.

    license: an identifier of the Hub, such as cc-by-4.0.
    data: names of the training data.
    origin: the weights that training started from.
    """

    repository: str
    license: str | None = None
    data: str | None = None
    origin: str | None = None
    scores: Sequence[Scores] = ()

    def files(
        self, file: Path, checkpoint: Checkpoint, *, trust: Path | None
    ) -> dict[str, Path | bytes]:
        """Return the files of a repository by their names: checkpoint, trust (if any) and card."""
        card = self.write(checkpoint, has_trust=trust is not None)
        files: dict[str, Path | bytes] = {CHECKPOINT: file}
        if trust is not None:
            files[TRUST] = trust
        return {**files, CARD: card.encode(errors="backslashreplace")}

    def write(self, checkpoint: Checkpoint, *, has_trust: bool) -> str:
        """Return the card of a checkpoint as Markdown."""
        from huggingface_hub import EvalResult, ModelCardData
        from huggingface_hub import ModelCard as HubCard

        results = [
            EvalResult(
                task_type=_TASK,
                dataset_type=scores.data,
                dataset_name=scores.data,
                dataset_split=scores.split,
                metric_type=name.lower(),
                metric_name=f"{name} ({scores.scorer}, beam {scores.beam_size})",
                metric_value=round(value, 1),
            )
            for scores in self.scores
            for name, value in scores.values.items()
        ]
        data = ModelCardData(
            license=self.license,
            library_name="captioner",
            pipeline_tag=_TASK,
            tags=["image-captioning", "attention", "captioner"],
            model_name=checkpoint.name if results else None,
            eval_results=results or None,
        )
        parts = {"data": self.data, "initial weights": self.origin, "licence": self.license}
        names = list(dict.fromkeys(name for scores in self.scores for name in scores.values))
        card = HubCard.from_template(
            data,
            template_str=_TEMPLATE,
            repository=self.repository,
            table=_table,
            model=_describe(checkpoint, has_trust=has_trust),
            training=((name, text or "not stated") for name, text in parts.items()),
            head=["data", "split", "images", "scorer", "beam", *names],
            rows=[scores.row(names) for scores in self.scores],
        )
        return str(card.content)


def _describe(checkpoint: Checkpoint, *, has_trust: bool) -> Iterator[tuple[str, str]]:
    encoder, decoder = checkpoint.model.config.encoder, checkpoint.model.config.decoder
    transform, vocabulary = checkpoint.transform, checkpoint.vocabulary
    side = transform.size // encoder.stride
    yield "name", f"{checkpoint.name}, version {checkpoint.version}"
    yield (
        "encoder",
        f"{encoder.name}, photos of {transform.size} x {transform.size} pixels "
        f"({transform.mode}), grid of {side} x {side} cells",
    )
    yield (
        "decoder",
        f"{decoder.kind}, {decoder.score} attention, "
        f"{counted(decoder.heads, 'head')}, {decoder.hidden_dim} units",
    )
    parameters = sum(tensor.numel() for tensor in checkpoint.model.parameters())
    yield "parameters", f"{parameters / 1e6:.1f} million"
    yield (
        "vocabulary",
        f"{len(vocabulary.ordinary_words):,} words, tokenizer `{vocabulary.tokenizer}`",
    )
    if vocabulary.styles:
        yield "styles", ", ".join(vocabulary.styles)
    yield "trust", "probability that each word is right" if has_trust else "not included"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([in_a_line(cell).replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
