"""Evaluate a checkpoint, or captions of another program, on a captioned split.

`evaluate` runs top to bottom: inputs, captions, scores, measures, comparisons. The names and digits
of the measures are in captioner_training.report.measures.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from captioner.captioner import Captioner
from captioner.errors import CaptionerError, ConfigError, DataError, OutputError
from captioner.model.encoder import Grid
from captioner.photos.transform import Transform, TransformConfig
from captioner.shared.files import identity, refuse_input, writing
from captioner.shared.paths import checkpoint_file, expanded, there_is_no
from captioner.shared.tables import read_json
from captioner.shared.text import printable
from captioner.trust.consensus import n_grams
from captioner.trust.familiarity import pool
from captioner.trust.trust import trust_file
from captioner.vocabulary import Tokenizer, has_no_spaces, tokenize
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
    Predictions,
    Target,
    check_replaceable,
    read_predictions,
    read_targets,
    targets,
    write_predictions,
)
from captioner_training.evaluation.scores import (
    References,
    human_tables,
    model_facts,
    official_scores,
    score_tables,
    token_name,
)
from captioner_training.evaluation.words import PERSON, hallucination, named_categories
from captioner_training.losses.cider import MIN_IMAGES
from captioner_training.report.measures import failures

Words = Sequence[str]
Report = dict[str, Any]

_FITTED_HERE = (
    "Trust is fitted on every second validation photo. On photos that fitted it, its measures are "
    "optimistic."
)
_NOT_COMPARED = ("per_image", "comparisons", "comparison")  # the last one is from 0.1


@dataclass(kw_only=True)
class Evaluation:
    """The measures of a split.

    report: what `captioner evaluate --json` prints. A measure that failed has an `error`.
    rows: one per scored image, as in report.json.
    images: the photos of the rows; empty without photos.
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
    # Inputs
    names = compared_with(arguments)
    _check_outputs(arguments)
    if arguments.official:
        check_java()
    source: Captioner | Predictions
    if arguments.score is None:
        source = _load(arguments, arguments.checkpoint, arguments.style)
        images = _read_images(arguments, source.vocabulary.tokenize)
    else:
        images = _read_images(arguments, tokenize)
    split = targets(images) or read_targets(arguments.captions)
    if arguments.score is not None:
        source = read_predictions(arguments.score, split)
        for problem in source.problems:
            print(f"captioner: {printable(problem)}", file=sys.stderr)
    others: list[Captioner | Report] = []
    for name in names:
        others.append(
            read_report(expanded(name)) if is_report(name) else _load(arguments, name, None)
        )
    report = describe_data(arguments, split)
    for other in others:
        if not isinstance(other, Captioner):
            check_comparable({**report, "scored": len(split)}, other)
        elif isinstance(source, Captioner) and _tokens(other) != _tokens(source):
            raise DataError(
                f"{source.name} and {other.name} cannot be compared: they split captions into "
                "different tokens"
            )
    models = [source, *(other for other in others if isinstance(other, Captioner))]
    boxes = [
        None if arguments.boxes is None else _read_boxes(arguments, model, split)
        for model in models
    ]

    # Captions, scores and measures
    evaluation = measure(source, images, split, arguments, report=dict(report), boxes=boxes[0])
    if arguments.predictions is not None:
        scores = [caption.hypothesis.score for caption in evaluation.captioned]
        captions = [row["caption"] for row in evaluation.rows]
        write = partial(write_predictions, arguments.predictions, split, captions, scores)
        add_measure(evaluation.report, "predictions", write)

    # Comparisons
    for other in others:
        if isinstance(other, Captioner):
            own = _read_images(arguments, other.vocabulary.tokenize)
            options = argparse.Namespace(**{**vars(arguments), "style": None})
            compared = measure(
                other, own, split, options, report=dict(report), boxes=boxes[models.index(other)]
            )
        else:
            compared = Evaluation(report=other, rows=other["per_image"])
        difference = compare(evaluation, compared)
        evaluation.report.setdefault("comparisons", []).append(difference)
        evaluation.others.append(compared)
    return evaluation


def measure(
    source: Captioner | Predictions,
    images: Sequence[CaptionedImage],
    split: Sequence[Target],
    options: argparse.Namespace,
    *,
    report: Report,
    boxes: Boxes | None = None,
) -> Evaluation:
    """Caption a split, unless its captions are given, and measure the captions.

    Args:
        source: a captioner, or captions of the split.
        images: the photos of the split with their references; may be empty for given captions.
        split: the same images as ids, names and references.
        options: `official`, `calibration`, `deletion`, `beam_size` and `style`.
        report: the facts about the split, to which the measures are added.
        boxes: boxes of objects in the images.
    """
    # Captions
    captioned: list[Captioned] = []
    pooled: list[NDArray[np.float32]] = []
    calibration: Calibration | None = None
    transform = None
    if isinstance(source, Predictions):
        unspaced = has_no_spaces(text for target in split for text in target.references)
        tokenizer: Tokenizer = "characters" if unspaced else "words"
        to_words: Callable[[str], list[str]] = partial(tokenize, by=tokenizer)
        tokens = token_name(tokenizer)
        places = [at for at, caption in enumerate(source.captions) if caption is not None]
        captions = [caption for caption in source.captions if caption is not None]
        words: list[Words] = [to_words(caption) for caption in captions]
        report |= {"predictions": str(source.path), "problems": source.problems}
    else:
        vocabulary, transform = source.vocabulary, source.transform
        to_words, tokens = vocabulary.tokenize, _tokens(source)
        config = source.generation.for_request(beam_size=options.beam_size, style=options.style)
        images = [replace(image, style=config.style) for image in images]
        if options.calibration:
            calibration = Calibration(source, maximum_length=config.maximum_length)

        def on_batch(pixels: Tensor, grid: Grid, batch: Sequence[Captioned]) -> None:
            pooled.append(pool(grid.features))
            if calibration is not None:
                calibration.add(pixels, grid, batch)

        captioned = caption_images(
            source, images, config, check_attention=options.deletion, on_batch=on_batch
        )
        places = list(range(len(images)))
        captions = [
            vocabulary.join(vocabulary.decode(caption.hypothesis.tokens)) for caption in captioned
        ]
        # The words of a Hugging Face model are not tokenized as references are.
        words = [
            caption.words if source.source is None else to_words(text)
            for caption, text in zip(captioned, captions, strict=True)
        ]
        style = vocabulary.style(config.style)
        report |= {
            "beam_size": config.beam_size,
            **({} if style is None else {"style": style}),
            "consensus": config.uses_consensus and source.consensus is not None,
            "dtype": str(source.dtype).removeprefix("torch."),
            "checkpoint": {
                "name": source.name, "version": source.version, "hash": source.fingerprint,
            },
        }  # fmt: skip
    report["scored"] = len(captions)

    # Scores
    whole = [[to_words(text) for text in target.references] for target in split]
    references, scored = [whole[at] for at in places], [split[at] for at in places]
    score = partial(score_tables, corpus=whole)
    tables = score(references, words)
    report["nltk"] = {
        "tokenizer": tokens,
        **(model_facts(captioned) if captioned else {}),
        **summary(tables),
        "human": summary(human_tables(references, score)),
    }
    if options.official:
        texts = [target.references for target in split]
        given = [target.references for target in scored]
        add_measure(
            report, "pycocoevalcap", partial(official_scores, given, captions, corpus=texts)
        )

    # Measures
    objects = None
    if boxes is not None:
        objects = [
            {boxed.category or PERSON for boxed in boxes.get(target.id, ())} for target in scored
        ]
    report["captions"] = {
        **describe_captions(words),
        "hallucination": hallucination(references, words, objects=objects),
    }
    if boxes is not None and captioned:
        categories = {boxed.category or PERSON for found in boxes.values() for boxed in found}
        if PERSON in categories:
            add_measure(
                report, "person_boxes", partial(measure_grounding, captioned, boxes, people=True)
            )
        if categories - {PERSON}:
            add_measure(
                report, "object_boxes", partial(measure_grounding, captioned, boxes, people=False)
            )
    if calibration is not None:
        add_measure(report, "calibration", calibration.result)
    if options.deletion and captioned:
        add_measure(report, "deletion", partial(measure_deletion, captioned))
    columns: dict[str, Sequence[Any]] = {}
    if captioned:
        columns["score"] = [float(caption.hypothesis.score) for caption in captioned]
    if not isinstance(source, Predictions) and source.trust is not None:
        grids = np.concatenate(pooled)
        judged = source.trust.judge(grids, [[caption.hypothesis] for caption in captioned])
        best = [judgement for (judgement,) in judged]
        report["trust"] = measure_trust(captioned, best)
        if report["split"].get("name") != "test":
            report["trust"]["note"] = _FITTED_HERE
        columns["familiarity"] = source.trust.familiarity.of(grids)
        columns["trust"] = [judgement.caption for judgement in best]
    if calibration is not None:
        nats, counts = calibration.cross_entropy()
        columns["cross_entropy"] = (nats / counts).tolist()
        columns["reference_tokens"] = counts.astype(int).tolist()

    rows = _rows(
        scored,
        captions,
        words,
        references,
        ciders=image_scores(tables["CIDEr"]),
        rouges=image_scores(tables["ROUGE-L"]),
        columns=columns,
    )
    photos = [images[at] for at in places] if images else []
    return Evaluation(
        report=report, rows=rows, images=photos, captioned=captioned, transform=transform
    )


def add_measure(report: Report, name: str, work: Callable[[], object]) -> None:
    """Add a measure to a report. One that fails adds its error; the others are still measured."""
    try:
        report[name] = work()
    except CaptionerError as error:
        report[name] = {"error": error.record()}
    for place, reason in failures({name: report[name]}):
        print(f"captioner: {place}: {printable(reason)}", file=sys.stderr)


def image_scores(table: Table) -> list[float]:
    """Return the score of each image in percent, given the table of a mean."""
    scores: list[float] = (100 * table.rows[:, 0]).tolist()
    return scores


def describe_captions(captions: Sequence[Words]) -> dict[str, object]:
    """Return length and variety of captions; shares in percent."""
    lengths = np.array([len(words) for words in captions])
    repeats = [
        len(grams) > len(set(grams)) for words in captions for grams in [list(n_grams(words, 3))]
    ]
    return {
        "words": {
            "mean": float(lengths.mean()),
            "shortest": int(lengths.min()),
            "longest": int(lengths.max()),
        },
        "distinct": 100 * len({tuple(words) for words in captions}) / len(captions),
        "vocabulary": len({word for words in captions for word in words}),
        "empty": int((lengths == 0).sum()),
        "repeats_three_words": 100 * float(np.mean(repeats)),
    }


def _rows(
    scored: Sequence[Target],
    captions: Sequence[str],
    words: Sequence[Words],
    references: References,
    *,
    ciders: Sequence[float],
    rouges: Sequence[float],
    columns: Mapping[str, Sequence[Any]],
) -> list[dict[str, Any]]:
    """Return the rows of report.json; `invented` are COCO categories that no reference names."""
    rows = []
    for at, target in enumerate(scored):
        present = {name for text in references[at] for name in named_categories(text)}
        named = dict.fromkeys(named_categories(words[at]))
        values = {name: column[at] for name, column in columns.items()}
        rows.append(
            {
                "id": target.id,
                "name": target.name,
                "caption": captions[at],
                "references": list(target.references),
                **{name: value for name, value in values.items() if value is not None},
                "invented": [name for name in named if name not in present],
                "CIDEr": ciders[at],
                "ROUGE-L": rouges[at],
            }
        )
    return rows


# Inputs and outputs


def is_report(name: str) -> bool:
    """Whether --compare names a report, rather than a checkpoint."""
    return name.endswith(".json")


def compared_with(arguments: argparse.Namespace) -> list[str]:
    """Return the names given to --compare, without the checkpoint itself and repetitions.

    Raises ConfigError: no name is left, or a checkpoint is named although --score is used.
    """
    if arguments.score is not None and not all(map(is_report, arguments.compare)):
        raise ConfigError("--compare takes report.json files if --score is used")
    checkpoint = arguments.checkpoint or "bundled"
    names = {name if is_report(name) else checkpoint_file(name): name for name in arguments.compare}
    if arguments.score is None:
        names.pop(checkpoint_file(checkpoint), None)
    if arguments.compare and not names:
        raise ConfigError(f"--compare {checkpoint} is the checkpoint itself: name another")
    return [*names.values()]


def _load(arguments: argparse.Namespace, checkpoint: str | None, style: str | None) -> Captioner:
    """Load a checkpoint and check that it supports the beam size and the style."""
    captioner = Captioner.from_pretrained(
        checkpoint, device=arguments.device, dtype=arguments.dtype
    )
    config = captioner.generation.for_request(beam_size=arguments.beam_size, style=style)
    captioner.vocabulary.style(config.style)
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
    return []


def _read_boxes(
    arguments: argparse.Namespace, source: Captioner | Predictions, split: Sequence[Target]
) -> Boxes:
    """Read boxes relative to the area that the model sees, or to the whole photo."""
    squash = Transform(TransformConfig(mode="squash"))
    transform = squash if isinstance(source, Predictions) else source.transform
    boxes = read_boxes(arguments.boxes, transform)
    if not boxes.keys() & {target.id for target in split}:
        raise DataError(
            f"{arguments.boxes} has boxes for {len(boxes):,} images, but for none of this split; "
            "image_id must be the id of the image in the data set"
        )
    return boxes


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Refuse outputs that cannot be written or would overwrite other files."""
    predictions, report, save = arguments.predictions, arguments.report, arguments.save
    reports = [expanded(name) for name in arguments.compare if is_report(name)]
    inputs = [arguments.captions, arguments.boxes, arguments.score, *reports, arguments.checkpoint]
    if predictions is not None:
        refuse_input("--predictions", predictions, [arguments.data, *inputs])
    for file in () if save is None else (save, trust_file(save)):
        if os.path.lexists(file):
            raise OutputError(f"{file} exists: choose another --save, or remove it")
    if save is not None and predictions is not None and identity(save) & identity(predictions):
        raise ConfigError(f"--save and --predictions are the same file {save}: change one")
    for option, file in (("--predictions", predictions), ("--save", save)):
        if file is None:
            continue
        if not file.parent.is_dir():
            raise OutputError(f"{file} cannot be written: there is no folder {file.parent}")
        if file.is_dir() or not os.access(file.parent, os.W_OK):
            raise OutputError(f"{file} cannot be written: choose another {option}")
    if report is not None:
        files = [report / f"report.{suffix}" for suffix in ("json", "html", "md")]
        for file in files:
            refuse_input("--report", file, inputs)  # the folder of the data is allowed
            if predictions is not None and identity(file) & identity(predictions):
                raise ConfigError(
                    f"--predictions {predictions} is also written by --report: change one"
                )
        with writing(f"--report {report}"):
            report.mkdir(parents=True, exist_ok=True)
        if not os.access(report, os.W_OK):
            raise OutputError(f"--report {report} cannot be written: choose another folder")
        if existing := [file for file in files if file.exists()]:
            try:
                read_report(files[0])
            except DataError as error:
                raise OutputError(
                    f"{existing[0]} exists and is not a report of `captioner evaluate`: choose "
                    "another --report"
                ) from error
    if predictions is not None:
        check_replaceable(predictions)


def describe_data(arguments: argparse.Namespace, split: Sequence[Target]) -> Report:
    """Return the first part of a report: the split, and which scores are comparable."""
    digest = hash_split(split)
    return {
        "data": str(arguments.data or arguments.captions),
        "images": len(split),
        "split": {
            **({"name": arguments.split} if arguments.data else {}),
            "images": len(split),
            "references": sum(len(target.references) for target in split),
            "hash": digest,
        },
        "comparable": f"Compare only with scores on the same images and references ({digest}).",
    }


def hash_split(images: Sequence[Target]) -> str:
    """Return a hash of the ids and references of a split, independent of their order."""
    lines = sorted(json.dumps([str(image.id), sorted(image.references)]) for image in images)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def as_json(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(value, Mapping):
        return {key: as_json(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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


def check_comparable(report: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse reports whose scores cannot be compared.

    Raises DataError: captions are missing, or images or references differ.
    """
    split, other_split = report["split"], other["split"]
    for read in (report, other):
        if read.get("scored", read["split"]["images"]) < read["split"]["images"]:
            raise DataError(
                "the reports cannot be compared: captions of some images are missing; evaluate "
                "them on all images"
            )
    if split["hash"] != other_split["hash"]:
        raise DataError(
            f"the reports are of different splits, {split['hash']} and {other_split['hash']}: "
            "evaluate both on the same images and references"
        )


def compare(evaluation: Evaluation, other: Evaluation) -> dict[str, object]:
    """Compare an evaluation with another, image by image.

    Returns:
        `CIDEr`, `ROUGE-L`: mean difference over images; no CIDEr for fewer than 5 images.
        `cross_entropy`: difference in nats per token, if both measured it on the same vocabulary
            and tokens.
        `intervals`: the 95 % intervals of these differences.
        `with`: checkpoint or predictions file of the other evaluation.
        `report`: the other report, without its rows and comparisons.

    Raises DataError: see check_comparable.
    """
    check_comparable(evaluation.report, other.report)
    others = {str(row["id"]): row for row in other.rows}
    other.rows = [others[str(row["id"])] for row in evaluation.rows]
    pairs = list(zip(evaluation.rows, other.rows, strict=True))
    names = ("CIDEr", "ROUGE-L") if len(pairs) >= MIN_IMAGES else ("ROUGE-L",)
    tables = {
        name: mean_table([row[name] - before[name] for row, before in pairs]) for name in names
    }
    ours, theirs = (
        part.report.get("calibration", {}).get("vocabulary_hash") for part in (evaluation, other)
    )
    if ours is not None and ours == theirs:  # a rare word costs more nats than <unk>
        tables |= _compare_cross_entropy(pairs)
    parts = {name: part for name, part in other.report.items() if name not in _NOT_COMPARED}
    source = other.report.get("checkpoint") or other.report.get("predictions")
    return {"with": source, **summary(tables), "report": parts}


def _compare_cross_entropy(
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> dict[str, Table]:
    """Return the table of differences in nats per token; {} if references have other lengths."""
    nats, tokens = [], []
    for row, before in pairs:
        count = row.get("reference_tokens")
        if count is None or count != before.get("reference_tokens"):
            return {}
        nats.append(count * (row["cross_entropy"] - before["cross_entropy"]))
        tokens.append(count)
    return {"cross_entropy": mean_table(nats, tokens)}
