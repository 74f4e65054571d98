"""Evaluate a checkpoint, or captions of another program, on a captioned split.

`evaluate` reads the inputs; `measure` runs top to bottom: captions, scores, measures. The names and
digits of the measures are in captioner_training.report.measures.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_jsonable_python

from captioner.captioner import Captioner
from captioner.errors import CaptionerError, ConfigError, DataError, OutputError
from captioner.model.encoder import Grid
from captioner.photos.transform import Transform, TransformConfig
from captioner.shared.files import refuse_input, writing
from captioner.shared.paths import expanded, there_is_no
from captioner.shared.tables import read_json
from captioner.shared.text import printable
from captioner.trust.consensus import n_grams
from captioner.trust.familiarity import pool
from captioner.vocabulary import tokenize
from captioner_training.data.images import Captioned, CaptionedImage
from captioner_training.data.reading import read_coco, read_dataset
from captioner_training.evaluation.bootstrap import Table, mean_table, summary
from captioner_training.evaluation.calibration import Calibration
from captioner_training.evaluation.captioning import caption_images
from captioner_training.evaluation.deletion import measure_deletion
from captioner_training.evaluation.grounding import Boxes, measure_grounding, read_boxes
from captioner_training.evaluation.java import check_java
from captioner_training.evaluation.measure_trust import measure_trust
from captioner_training.evaluation.predictions import (
    Captions,
    read_predictions,
    read_references,
    tokenizer_of,
)
from captioner_training.evaluation.scores import (
    human_tables,
    model_facts,
    official_scores,
    score_tables,
    token_name,
)
from captioner_training.evaluation.words import PERSON, hallucination
from captioner_training.losses.cider import MIN_IMAGES
from captioner_training.report.measures import failures

Words = Sequence[str]
Report = dict[str, Any]

_FITTED_HERE = (
    "Trust is fitted on every second validation photo. On photos that fitted it, its measures are "
    "optimistic."
)
_NOT_COMPARED = ("per_image", "comparisons")


@dataclass(kw_only=True)
class Evaluation:
    """The measures of a split.

    report: what `captioner evaluate --json` prints. A measure that failed has an `error`.
    rows: one per scored image, as in report.json.
    images: the images of the rows.
    captioned: captions and attention of the rows; empty for captions from a file.
    transform: the transform of the model.
    others: the evaluations of other models that were compared.
    """

    report: Report
    rows: list[dict[str, Any]] = field(default_factory=list)
    images: Sequence[CaptionedImage] = ()
    captioned: Sequence[Captioned] = ()
    transform: Transform | None = None
    others: list[Evaluation] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether all images have captions and no measure failed, those of report.json aside."""
        reports = [self.report, *(other.report for other in self.others if other.captioned)]
        is_whole = self.report["scored"] == self.report["split"]["images"]
        return is_whole and not any(any(failures(report)) for report in reports)


def evaluate(arguments: argparse.Namespace) -> Evaluation:
    """Evaluate what the arguments of `captioner evaluate` name, and compare it with other models.

    All inputs are read, and all outputs checked, before any photo is captioned.

    Raises CaptionerError: an input cannot be read, an output cannot be written, or a model fails.
    """
    if arguments.score is not None and not all(map(_is_report, arguments.compare)):
        raise ConfigError("--compare takes report.json files if --score is used")
    _check_outputs(arguments)
    if arguments.official:
        check_java()
    load = partial(Captioner.from_pretrained, device=arguments.device, dtype=arguments.dtype)
    source: Captioner | Captions
    if arguments.score is None:
        source = load(arguments.checkpoint)
        images = _read_images(arguments, source.vocabulary.tokenize)
    else:
        images = _read_images(arguments, tokenize)
        tokenizer = tokenizer_of(images)
        if tokenizer != "words":
            images = _read_images(arguments, partial(tokenize, by=tokenizer))
        source = read_predictions(arguments.score, images, tokenizer)
        for problem in source.facts["problems"]:
            print(f"captioner: {printable(problem)}", file=sys.stderr)
    report = {
        "data": str(arguments.data or arguments.captions),
        "split": {
            **({"name": arguments.split} if arguments.data else {}),
            "images": len(images),
            "references": sum(len(image.captions) for image in images),
            "hash": hash_split(images),
        },
    }
    others = [_load_other(load, name, source, report) for name in arguments.compare]
    boxes = [
        None if isinstance(model, Evaluation) else _read_boxes(arguments, model, images)
        for model in (source, *others)
    ]

    evaluation = measure(source, images, arguments, report=report, boxes=boxes[0])
    options = argparse.Namespace(**{**vars(arguments), "style": None})
    for other, places in zip(others, boxes[1:], strict=True):
        if isinstance(other, Captioner):
            other = measure(other, images, options, report=report, boxes=places)
        evaluation.report.setdefault("comparisons", []).append(compare(evaluation, other))
        evaluation.others.append(other)
    return evaluation


def measure(
    source: Captioner | Captions,
    images: Sequence[CaptionedImage],
    options: argparse.Namespace,
    *,
    report: Report,
    boxes: Boxes | None = None,
) -> Evaluation:
    """Caption a split, unless its captions are given, and measure the captions.

    Args:
        source: a captioner, or captions of the split.
        images: the split; the words of its references are tokenized as those of the captions.
        options: `official`, `calibration`, `deletion`, `beam_size` and `style`.
        report: the facts about the split.
        boxes: boxes of objects in the images.
    """
    captions = source if isinstance(source, Captions) else _generate(source, images, options)
    report = {**report, **captions.facts}
    if "trust" in report and report["split"].get("name") != "test":
        report["trust"]["note"] = _FITTED_HERE

    references, corpus = ([image.words for image in part] for part in (captions.images, images))
    score = partial(score_tables, corpus=corpus)
    tables = score(references, captions.words)
    report["nltk"] = {
        "tokenizer": captions.tokens,
        **(model_facts(captions.captioned) if captions.captioned else {}),
        **summary(tables),
        "human": summary(human_tables(references, score)),
    }
    if options.official:
        texts, known = ([image.captions for image in part] for part in (captions.images, images))
        with _measuring(report, "pycocoevalcap"):
            report["pycocoevalcap"] = official_scores(texts, captions.texts, corpus=known)

    objects = None
    if boxes is not None:
        places = [boxes.get(image.id, ()) for image in captions.images]
        objects = [{boxed.category for boxed in found} for found in places]
    report["captions"] = {
        **describe_captions(captions.words),
        "hallucination": hallucination(references, captions.words, objects=objects),
    }
    if captions.captioned and boxes is not None:
        is_person = {boxed.category == PERSON for found in boxes.values() for boxed in found}
        for people in sorted(is_person, reverse=True):
            name = "person_boxes" if people else "object_boxes"
            with _measuring(report, name):
                report[name] = measure_grounding(captions.captioned, boxes, people=people)
    if options.deletion:
        with _measuring(report, "deletion"):
            report["deletion"] = measure_deletion(captions.captioned)
    return Evaluation(
        report=report,
        rows=_rows(captions, tables),
        images=captions.images,
        captioned=captions.captioned,
        transform=source.transform if isinstance(source, Captioner) else None,
    )


def _rows(captions: Captions, tables: Mapping[str, Table]) -> list[dict[str, Any]]:
    scores = {name: tables[name].of_images() for name in ("CIDEr", "ROUGE-L")}
    columns = {**scores, **captions.columns}
    return [
        {
            "id": image.id,
            "name": image.name,
            "caption": text,
            "references": list(image.captions),
            **{name: values[at] for name, values in columns.items() if values[at] is not None},
        }
        for at, (image, text) in enumerate(zip(captions.images, captions.texts, strict=True))
    ]


def _generate(
    source: Captioner, images: Sequence[CaptionedImage], options: argparse.Namespace
) -> Captions:
    """Caption a split, and measure calibration and trust, which need the grids of the photos."""
    vocabulary, calibration = source.vocabulary, None
    config = source.generation.for_request(beam_size=options.beam_size, style=options.style)
    style = vocabulary.style(config.style)
    if options.calibration and source.source is None:
        calibration = Calibration(source, maximum_length=config.maximum_length)
    parts: list[NDArray[np.float32]] = []

    def on_batch(grid: Grid, batch: Sequence[Captioned]) -> None:
        parts.append(pool(grid.features))
        if calibration is not None:
            calibration.add(grid, batch)

    styled = [replace(image, style=config.style) for image in images]
    captioned = caption_images(
        source, styled, config, check_attention=options.deletion, on_batch=on_batch
    )
    facts: Report = {
        "beam_size": config.beam_size,
        **({} if style is None else {"style": style}),
        "consensus": config.uses_consensus and source.consensus is not None,
        "dtype": str(source.dtype).removeprefix("torch."),
        "checkpoint": {
            "name": source.name, "version": source.version, "hash": source.fingerprint,
        },
    }  # fmt: skip
    if calibration is not None:
        facts["calibration"] = calibration.result()
    columns: dict[str, Sequence[Any]] = {
        "score": [float(caption.hypothesis.score) for caption in captioned]
    }
    if source.trust is not None:
        beams = [[caption.hypothesis] for caption in captioned]
        judgements, columns["familiarity"] = source.trust.assess(np.concatenate(parts), beams)
        judged = [best for (best,) in judgements]
        facts["trust"] = measure_trust(captioned, judged)
        columns["trust"] = [judgement.caption for judgement in judged]
    texts = [vocabulary.join(vocabulary.decode(caption.hypothesis.tokens)) for caption in captioned]
    words: Sequence[Words] = [caption.words for caption in captioned]
    if source.source is not None:  # words of a Hugging Face model are not tokenized as references
        words = [vocabulary.tokenize(text) for text in texts]
    return Captions(
        images=images,
        texts=texts,
        words=words,
        tokens=_tokens(source),
        facts={**facts, "scored": len(images)},
        captioned=captioned,
        columns=columns,
    )


@contextmanager
def _measuring(report: Report, name: str) -> Iterator[None]:
    """Add the error of a measure that fails to the report; the other measures are still made."""
    try:
        yield
    except CaptionerError as error:
        report[name] = {"error": error.record()}
    for place, reason in failures({name: report[name]}):
        print(f"captioner: {place}: {printable(reason)}", file=sys.stderr)


def describe_captions(captions: Sequence[Words]) -> dict[str, object]:
    """Return length and variety of captions; shares in percent."""
    lengths = np.array([len(words) for words in captions])
    grams = [list(n_grams(words, 3)) for words in captions]
    repeats = [len(found) > len(set(found)) for found in grams]
    return {
        "words": {"mean": float(lengths.mean())},
        "distinct": 100 * len({tuple(words) for words in captions}) / len(captions),
        "vocabulary": len({word for words in captions for word in words}),
        "empty": int((lengths == 0).sum()),
        "repeats_three_words": 100 * float(np.mean(repeats)),
    }


# Inputs and outputs


def _is_report(name: str) -> bool:
    """Whether --compare names a report, rather than a checkpoint."""
    return name.endswith(".json")


def _load_other(
    load: Callable[[str], Captioner], name: str, source: Captioner | Captions, report: Report
) -> Captioner | Evaluation:
    """Load a model or a report to compare with, and check that both are comparable."""
    if _is_report(name):
        other = read_report(expanded(name))
        facts = source.facts if isinstance(source, Captions) else {}
        _check_comparable({**report, **facts}, other)
        return Evaluation(report=other, rows=other["per_image"])
    captioner = load(name)
    if isinstance(source, Captioner) and _tokens(captioner) != _tokens(source):
        raise DataError(
            f"{source.name} and {captioner.name} cannot be compared: they split captions into "
            "different tokens"
        )
    return captioner


def _tokens(captioner: Captioner) -> str:
    vocabulary = captioner.vocabulary
    return token_name(vocabulary.tokenizer, lowercase=vocabulary.lowercase)


def _read_images(
    arguments: argparse.Namespace, words: Callable[[str], list[str]]
) -> list[CaptionedImage]:
    if arguments.data:
        return read_dataset(arguments.data, split=arguments.split, words=words)
    if arguments.images is not None:
        return read_coco(arguments.captions, arguments.images, words=words)
    return read_references(arguments.captions, words)


def _read_boxes(
    arguments: argparse.Namespace, source: object, images: Sequence[CaptionedImage]
) -> Boxes | None:
    """Read boxes relative to the area that the model sees, or to the whole photo."""
    if arguments.boxes is None:
        return None
    squash = Transform(TransformConfig(mode="squash"))
    transform = source.transform if isinstance(source, Captioner) else squash
    boxes = read_boxes(arguments.boxes, transform)
    if not boxes.keys() & {image.id for image in images}:
        raise DataError(
            f"{arguments.boxes} has boxes for {len(boxes):,} images, but for none of this split; "
            "image_id must be the id of the image in the data set"
        )
    return boxes


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Refuse a report that cannot be written or would overwrite other files."""
    folder = arguments.report
    if folder is None:
        return
    with writing(f"--report {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{folder} cannot be written: choose another --report")
    compared = [expanded(name) for name in arguments.compare if _is_report(name)]
    inputs = [arguments.captions, arguments.boxes, arguments.score, *compared, arguments.checkpoint]
    files = [folder / f"report.{suffix}" for suffix in ("json", "html", "md")]
    for file in files:
        refuse_input("--report", file, inputs)
    if existing := [file for file in files if file.exists()]:
        try:
            read_report(files[0])
        except DataError as error:
            raise OutputError(
                f"{existing[0]} exists and is not a report of `captioner evaluate`: choose another "
                "--report"
            ) from error


def hash_split(images: Sequence[CaptionedImage]) -> str:
    """Return a hash of the ids and references of a split, independent of their order."""
    lines = sorted(json.dumps([str(image.id), sorted(image.captions)]) for image in images)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def as_json(report: Report) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    return to_jsonable_python(report, inf_nan_mode="null")


def read_report(path: Path) -> Report:
    """Read the report.json of an evaluation.

    Raises DataError: the file cannot be read or has other content.
    """
    if not path.is_file():
        raise DataError(there_is_no("file", path))
    report = read_json(path, name=str(path))
    if not isinstance(report, dict) or not {"split", "per_image"} <= report.keys():
        raise DataError(f"{path} is not a report.json of `captioner evaluate --report`")
    frequencies = report.get("document_frequencies") or report["split"]  # of 0.1
    if frequencies["hash"] != report["split"]["hash"]:
        raise DataError(f"{path} has CIDEr with other document frequencies: evaluate again")
    return report


# Comparisons


def _check_comparable(report: Report, other: Report) -> None:
    """Refuse reports with missing captions, or of different images or references."""
    for part in (report, other):
        if part.get("scored", part["split"]["images"]) < part["split"]["images"]:
            raise DataError(
                "the reports cannot be compared: captions of some images are missing; evaluate "
                "them on all images"
            )
    hashes = report["split"]["hash"], other["split"]["hash"]
    if hashes[0] != hashes[1]:
        raise DataError(
            f"the reports are of different splits, {hashes[0]} and {hashes[1]}: evaluate both on "
            "the same images and references"
        )


def compare(evaluation: Evaluation, other: Evaluation) -> dict[str, object]:
    """Compare an evaluation with another, image by image.

    Returns:
        `CIDEr`, `ROUGE-L`: mean difference over images; no CIDEr for fewer than 5 images.
        `intervals`: the 95 % intervals of these differences.
        `with`: checkpoint or predictions file of the other evaluation.
        `report`: the other report, without its rows and comparisons.
    """
    others = {str(row["id"]): row for row in other.rows}
    other.rows = [others[str(row["id"])] for row in evaluation.rows]
    pairs = list(zip(evaluation.rows, other.rows, strict=True))
    names = ("CIDEr", "ROUGE-L") if len(pairs) >= MIN_IMAGES else ("ROUGE-L",)
    tables = {
        name: mean_table([row[name] - before[name] for row, before in pairs]) for name in names
    }
    parts = {name: part for name, part in other.report.items() if name not in _NOT_COMPARED}
    source = other.report.get("checkpoint") or other.report.get("predictions")
    return {"with": source, **summary(tables), "report": parts}
