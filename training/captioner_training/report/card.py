"""The model card of a checkpoint on the Hugging Face Hub: README.md with metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.checkpoint import Checkpoint
from captioner.hub import is_hub_name
from captioner.shared.text import counted
from captioner_training.recipe import Recipe
from captioner_training.report.measures import Report, markdown_table, number
from captioner_training.run_folder import read_json, read_recipe

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

_BUNDLED = "checkpoint bundled with Captioner (trained on Flickr8k and COCO, for research use)"
_SCORER = "Treebank tokens"
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

## Score

{% if row -%}
{{ table(head, [row]) }}

In percent; in brackets the 95 % bootstrap interval over images.
Compare only scores of the same images, scorer and beam.
{%- else -%}
Not measured.
{%- endif %}

## Limits

- Captions can be wrong. Check statements about people before you publish them.
- If its training photos did not show a thing, the model calls it by the name of another thing.
- Attention shows which part of the photo a word drew its features from, not why it was chosen.

"""


def write_card(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    repository: str,
    has_trust: bool = False,
    license: str | None = None,
    data: str | None = None,
) -> tuple[str, list[str]]:
    """Describe a checkpoint by the run that made it.

    Args:
        checkpoint: the model.
        folder: the folder of the checkpoint; it may be the folder of a run.
        repository: OWNER/MODEL.
        has_trust: whether the trust of the checkpoint is uploaded too.
        license: a license identifier of the Hub, such as cc-by-4.0.
        data: name of the data; None: the names of the recipe's folders.

    Returns the card as Markdown, and what it lacks: "license" or "data".
    """
    from huggingface_hub import ModelCard, ModelCardData

    note = read_json(folder / "finished.json") or {}
    recipe = read_recipe(note.get("recipe") or read_json(folder / "recipe.json"))
    data = data or (None if recipe is None else _data_name(recipe))
    parts = {
        "data": data,
        "initial weights": None if recipe is None else _origin(recipe),
        "licence": license,
    }
    gain, row, result = note.get("gain"), list[str](), None
    if isinstance(gain, Mapping) and recipe is not None:
        row, result = _score(gain, recipe, data or recipe.name)
    card = ModelCard.from_template(
        ModelCardData(
            license=license,
            library_name="captioner",
            pipeline_tag=_TASK,
            tags=["image-captioning", "attention", "captioner"],
            model_name=checkpoint.name if result else None,
            eval_results=[result] if result else None,
        ),
        template_str=_TEMPLATE,
        repository=repository,
        table=markdown_table,
        model=_describe(checkpoint, has_trust=has_trust),
        training=((name, text or "not stated") for name, text in parts.items()),
        head=["data", "split", "images", "scorer", "beam", "CIDEr"],
        row=row,
    )
    missing = [name for name, value in (("license", license), ("data", data)) if not value]
    return str(card.content), missing


def _score(gain: Report, recipe: Recipe, data: str) -> tuple[list[str], EvalResult]:
    """Return the score of a run, see conclusion.measure_gain, as a table row and as metadata."""
    from huggingface_hub import EvalResult

    split, beam = gain["split"], recipe.generation.beam_size
    row = [data, split, f"{gain['images']:,}", _SCORER, str(beam), number(gain, "after", 1)]
    return row, EvalResult(
        task_type=_TASK,
        dataset_type=data,
        dataset_name=data,
        dataset_split=split,
        metric_type="cider",
        metric_name=f"CIDEr ({_SCORER}, beam {beam})",
        metric_value=round(gain["after"], 1),
    )


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
