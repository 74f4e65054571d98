"""The model card of a checkpoint on the Hugging Face Hub: README.md with metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from captioner.checkpoint import Checkpoint
from captioner.errors import DataError
from captioner.hub import is_hub_name
from captioner.shared.text import counted, in_a_line
from captioner_training.evaluation.evaluate import read_report
from captioner_training.recipe import Recipe
from captioner_training.report.measures import SCORES, has_number, main_scores
from captioner_training.run_folder import read_json, read_recipe

_BUNDLED = "checkpoint bundled with Captioner (trained on Flickr8k and COCO, for research use)"
_TREEBANK = "Treebank tokens"
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


class Scores(NamedTuple):
    """Scores on one split in percent, with 95 % bootstrap intervals for some of them."""

    data: str
    split: str
    images: int
    scorer: str
    beam_size: int
    values: Mapping[str, float]
    intervals: Mapping[str, Sequence[float]]


def write_card(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    repository: str,
    has_trust: bool = False,
    reports: Sequence[Path] = (),
    license: str | None = None,
    data: str | None = None,
) -> tuple[str, list[str]]:
    """Describe a checkpoint by the run that made it, and by reports of `captioner evaluate`.

    Args:
        checkpoint: the model.
        folder: the folder of the checkpoint; it may be the folder of a run.
        repository: OWNER/MODEL.
        has_trust: whether the trust of the checkpoint is uploaded too.
        reports: report.json files about this checkpoint.
        license: a license identifier of the Hub, such as cc-by-4.0.
        data: name of the data; None: the names of the recipe's folders.

    Returns the card as Markdown, and what it lacks: "license", "data" or "scores".
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    note = read_json(folder / "finished.json") or {}
    recipe = read_recipe(note.get("recipe") or read_json(folder / "recipe.json"))
    data = data or (None if recipe is None else _data_name(recipe))
    scores = [_scores_of(path, checkpoint) for path in reports]
    if isinstance(gain := note.get("gain"), Mapping) and recipe is not None and not scores:
        scores = [_final_scores(gain, data or recipe.name, recipe)]
    parts = {
        "data": data,
        "initial weights": None if recipe is None else _origin(recipe),
        "licence": license,
    }
    results = [
        EvalResult(
            task_type=_TASK,
            dataset_type=split.data,
            dataset_name=split.data,
            dataset_split=split.split,
            metric_type=name.lower(),
            metric_name=f"{name} ({split.scorer}, beam {split.beam_size})",
            metric_value=round(value, 1),
        )
        for split in scores
        for name, value in split.values.items()
    ]
    names = list(dict.fromkeys(name for split in scores for name in split.values))
    card = ModelCard.from_template(
        ModelCardData(
            license=license,
            library_name="captioner",
            pipeline_tag=_TASK,
            tags=["image-captioning", "attention", "captioner"],
            model_name=checkpoint.name if results else None,
            eval_results=results or None,
        ),
        template_str=_TEMPLATE,
        repository=repository,
        table=_table,
        model=_describe(checkpoint, has_trust=has_trust),
        training=((name, text or "not stated") for name, text in parts.items()),
        head=["data", "split", "images", "scorer", "beam", *names],
        rows=[_row(split, names) for split in scores],
    )
    present = {"license": license, "data": data, "scores": scores}
    return str(card.content), [name for name, value in present.items() if not value]


def _describe(checkpoint: Checkpoint, *, has_trust: bool) -> Iterator[tuple[str, str]]:
    encoder, decoder = checkpoint.model.config.encoder, checkpoint.model.config.decoder
    transform, vocabulary = checkpoint.transform, checkpoint.vocabulary
    side = transform.size // encoder.stride
    parameters = sum(tensor.numel() for tensor in checkpoint.model.parameters())
    words = f"{len(vocabulary.ordinary_words):,} words, tokenizer `{vocabulary.tokenizer}`"
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
    yield "parameters", f"{parameters / 1e6:.1f} million"
    yield "vocabulary", words
    if vocabulary.styles:
        yield "styles", ", ".join(vocabulary.styles)
    yield "trust", "probability that each word is right" if has_trust else "not included"


def _row(scores: Scores, names: Iterable[str]) -> list[str]:
    """Return a row of the card's table; a score is `26.0 [23.6, 28.4]`, or a dash."""
    cells = [scores.data, scores.split, f"{scores.images:,}", scores.scorer, f"{scores.beam_size}"]
    for name in names:
        interval = scores.intervals.get(name)
        ends = f" [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else ""
        cells.append(f"{scores.values[name]:.1f}{ends}" if name in scores.values else "–")
    return cells


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([in_a_line(cell).replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _data_name(recipe: Recipe) -> str:
    """Name the training data by their folders, without the paths of this machine."""
    if recipe.data.scenes is not None:
        return "synthetic scenes"
    return ", ".join(dict.fromkeys(map(recipe.data.style_of, recipe.data.train)))


def _origin(recipe: Recipe) -> str:
    if recipe.weights is not None:
        return _weights(recipe.weights)
    names = {"torchvision": "torchvision (ImageNet)", "random": "none, all random"}
    return f"encoder: {names.get(recipe.encoder_weights) or _weights(recipe.encoder_weights)}"


def _weights(name: str) -> str:
    if name == "bundled":
        return _BUNDLED
    return name if is_hub_name(name) and not Path(name).exists() else Path(name).name


def _final_scores(gain: Mapping[str, Any], data: str, recipe: Recipe) -> Scores:
    """Return the gain of a run as scores; see captioner_training.conclusion."""
    ends = (gain.get("intervals") or {}).get("after")
    return Scores(
        data,
        gain["split"],
        gain["images"],
        _TREEBANK,
        recipe.generation.beam_size,
        values={"CIDEr": gain["after"]},
        intervals={} if ends is None else {"CIDEr": ends},
    )


def _scores_of(path: Path, checkpoint: Checkpoint) -> Scores:
    report = read_report(path)
    made_by = report.get("checkpoint") or {}
    if made_by.get("hash") != checkpoint.fingerprint():
        raise DataError(
            f"{path} has the scores of {made_by.get('name', 'captions from a file')}, not of the "
            "checkpoint to upload: evaluate that checkpoint with `captioner evaluate --checkpoint "
            "CHECKPOINT --report DIR`, and name the new report"
        )
    scores, split = main_scores(report), report["split"]
    if not scores:
        raise DataError(f"{path} has no scores: run `captioner evaluate --report` again")
    is_official = "tokenizer" in report.get("pycocoevalcap", {})
    names = [measure.key.partition(".")[2] for measure in SCORES]
    data = Path(str(report["data"])).stem
    return Scores(
        data,
        split.get("name", data),
        split["images"],
        "pycocoevalcap, PTB tokens" if is_official else _TREEBANK,
        report["beam_size"],
        values={name: scores[name] for name in names if has_number(scores, name)},
        intervals={
            name: interval
            for name, interval in (scores.get("intervals") or {}).items()
            if isinstance(interval, list) and None not in interval
        },
    )
