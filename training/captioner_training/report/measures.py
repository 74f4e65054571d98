"""The measures of `captioner evaluate`: key, title, digits, and how to read each of them.

Terminal, HTML, comparisons and Markdown are made from this table. A measure is a row here and a
function that adds its number to the report.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from captioner.shared.text import counted, in_a_line
from captioner_training.losses.cider import MIN_IMAGES

Report = Mapping[str, Any]


class Measure(NamedTuple):
    """A number of a report.

    key: its path in the report, with dots. `scores` are those on COCO's tokens if they were
        measured, else those on the model's tokens.
    note: how to read it.
    """

    key: str
    title: str
    digits: int
    note: str = ""


# fmt: off
MEASURES = (
    Measure("scores.BLEU-1", "BLEU-1", 1, "share of words that a reference has"),
    Measure("scores.BLEU-2", "BLEU-2", 1, "the same for two words in a row"),
    Measure("scores.BLEU-3", "BLEU-3", 1, "for three"),
    Measure("scores.BLEU-4", "BLEU-4", 1, "for four"),
    Measure("scores.ROUGE-L", "ROUGE-L", 1, "longest common word sequence with a reference"),
    Measure("scores.CIDEr", "CIDEr-D", 1, "agreement with the references; rare words count more"),
    Measure("scores.METEOR", "METEOR", 1, "word matches, with stems and synonyms"),
    Measure("captions.words.mean", "words per caption", 1),
    Measure("captions.vocabulary", "different words", 0),
    Measure("captions.distinct", "distinct captions, %", 1),
    Measure("captions.repeats_three_words", "captions repeating three words, %", 1),
    Measure("captions.empty", "captions without words", 0),
    Measure("captions.hallucination.CHAIR_i", "absent objects (CHAIR-i), %", 1,
            "named COCO objects that no reference (or box) has"),
    Measure("captions.hallucination.CHAIR_s", "captions naming one (CHAIR-s), %", 1),
    Measure("person_boxes.attention", "people: attention on them", 2,
            "share of attention inside the boxes of what a word names"),
    Measure("person_boxes.uniform", "people: if uniform", 2, "baseline: all cells alike"),
    Measure("person_boxes.center_weighted", "people: if centred", 2, "baseline: the middle"),
    Measure("person_boxes.pointing", "people: highest cell on them", 2,
            "share of words whose most attended cell is inside"),
    Measure("object_boxes.attention", "objects: attention on them", 2),
    Measure("object_boxes.uniform", "objects: if uniform", 2),
    Measure("object_boxes.center_weighted", "objects: if centred", 2),
    Measure("object_boxes.pointing", "objects: highest cell on them", 2),
    Measure("deletion.content.effect", "deletion, content words, nats", 3,
            "how much more the attended cells matter than random ones"),
    Measure("deletion.function.effect", "deletion, function words, nats", 3),
    Measure("calibration.error", "next word: calibration error", 1,
            "mean gap between probability and share that is right, in points"),
    Measure("calibration.cross_entropy", "next word: cross-entropy, nats", 3,
            "lower is better; comparable only for equal vocabularies"),
    Measure("trust.words.right", "words: right, %", 1, "a reference has the word or a synonym"),
    Measure("trust.words.auroc", "words: AUROC of trust", 3,
            "probability that a right word has more trust than a wrong one"),
    Measure("trust.words.auroc_probability", "words: AUROC of probability", 3),
    Measure("trust.words.error", "words: calibration error of trust", 1),
    Measure("trust.captions.right", "captions: all words right, %", 1),
    Measure("trust.captions.auroc", "captions: AUROC of trust", 3),
    Measure("trust.captions.auroc_score", "captions: AUROC of score", 3),
    Measure("trust.captions.error", "captions: calibration error", 1),
    Measure("trust.marks.wrong", "marked words that are wrong, %", 1, "marked as doubtful"),
    Measure("trust.marks.flawed", "wrong captions with a hit, %", 1,
            "captions with a wrong word in which a wrong word is marked"),
    Measure("trust.marks.right", "right captions with a mark, %", 1),
    Measure("trust.marks.per_right", "marks per right caption", 2),
)
# fmt: on

SCORES = tuple(measure for measure in MEASURES if measure.key.startswith("scores."))
_COLUMNS = 80
_TITLE, _CELL = 35, 22  # columns of a title and of a cell
_NAMES = 15  # columns of the names of settings


class Table(NamedTuple):
    """Measures with one cell per column."""

    heads: list[str]
    rows: list[tuple[Measure, list[str]]]

    @classmethod
    def of(cls, heads: Sequence[str], reports: Sequence[Report]) -> Table:
        """Return the measures that a report has, with a column for each report."""
        rows = [(measure, [cell(report, measure) for report in reports]) for measure in MEASURES]
        return cls([*heads], [row for row in rows if any(text != "–" for text in row[1])])

    def terminal(self) -> str:
        """Format the table for 80 columns."""
        rows = [("", [head[: _CELL - 2] for head in self.heads])]
        rows += [(measure.title, cells) for measure, cells in self.rows]
        return "\n".join(
            (f"{title:<{_TITLE}}" + "".join(f"{text:<{_CELL}}" for text in cells)).rstrip()
            for title, cells in rows
        )

    def markdown(self) -> str:
        """Format the table as Markdown."""
        return markdown_table(
            ["", *self.heads], ([measure.title, *cells] for measure, cells in self.rows)
        )


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table as Markdown. Text is untrusted: it cannot end a cell or a row."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ([in_a_line(text).replace("|", r"\|") for text in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def tables(report: Report) -> list[tuple[str, Table]]:
    """Return a report's own table, and one for each model that it is compared with, with titles."""
    columns = {"model": report}
    people = {"scores": _scores(report).get("human") or {}, "split": report["split"]}
    if Table.of(["people"], [people]).rows:
        columns["people"] = people
    pairs = [("", Table.of([*columns], [*columns.values()]))]
    for part in report.get("comparisons", ()):
        name = model_name(part["report"])
        table = Table.of([name, "difference"], [part["report"], _difference(part)])
        pairs.append((f"Compared with {name}", table))
    return pairs


def _difference(part: Report) -> Report:
    """Return a comparison in the form of a report, with signs."""
    scores = {}
    for name in filter(part.__contains__, ("CIDEr", "ROUGE-L")):
        scores[name] = f"{'+' * (part[name] > 0)}{number(part, name, 1)}"
    return {"scores": scores, "split": part["report"]["split"]}


def cell(report: Report, measure: Measure) -> str:
    """Format a measure as `26.0 [23.6, 28.4]`; a dash if the report does not have it."""
    path, _, name = measure.key.rpartition(".")
    part = part_of(report, path)
    if measure.key == "scores.CIDEr" and name in part and report["split"]["images"] < MIN_IMAGES:
        return f"– (needs {MIN_IMAGES} images)"
    return number(part, name, measure.digits)


def part_of(report: Report, path: str) -> Report:
    """Return the part of a report at a path with dots; {} if there is none."""
    for name in path.split("."):
        part = _scores(report) if name == "scores" else report.get(name)
        report = part if isinstance(part, Mapping) else {}
    return report


def number(part: Report, name: str, digits: int) -> str:
    """Format a number of a report with its interval; a dash if there is no finite number."""
    value = part.get(name)
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "–"
    low, high = (part.get("intervals") or {}).get(name) or (None, None)
    interval = "" if None in (low, high) else f" [{low:,.{digits}f}, {high:,.{digits}f}]"
    return f"{value:,.{digits}f}{interval}"


def _scores(report: Report) -> Report:
    """Return the scores on COCO's tokens, or those on the model's tokens; {} if there are none."""
    for name in ("scores", "pycocoevalcap", "nltk"):
        part = report.get(name)
        if isinstance(part, Mapping) and part and part.keys() != {"error"}:
            return part
    return {}


def failures(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the name and the reason of each measure that failed."""
    for name, value in report.items():
        if not isinstance(value, Mapping) or name == "report":  # that of a compared model
            continue
        if isinstance(error := value.get("error"), Mapping):
            yield name, str(error.get("detail", error))
        else:
            yield from failures(value)


def model_name(report: Report) -> str:
    """Return the name and version of a checkpoint, or the name of a file of captions."""
    checkpoint = report.get("checkpoint")
    if not checkpoint:
        return Path(str(report["predictions"])).name
    return f"{checkpoint['name']}, version {checkpoint['version']}"


def settings(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the data and settings that decide the scores."""
    split, checkpoint = report["split"], report.get("checkpoint")
    name = f"{split['name']} of " if "name" in split else ""
    images = counted(split["images"], "image")
    references = counted(split["references"], "reference caption")
    yield "split", f"{name}{report['data']}: {images}, {references}, hash {split['hash']}"
    if checkpoint:
        style = f", style {report['style']}" if "style" in report else ""
        order = ", consensus" if report.get("consensus") else ""
        made_with = f"beam size {report['beam_size']}{order}{style}, {report['dtype']}"
        yield "checkpoint", f"{model_name(report)}, hash {checkpoint['hash']}, {made_with}"
    else:
        scored = report.get("scored", split["images"])
        part = f", only {scored:,} of the images: not a score of the split"
        yield "captions", f"{report['predictions']}{part * (scored < split['images'])}"
    scorer = "pycocoevalcap, " if report.get("pycocoevalcap", {}).get("tokenizer") else ""
    yield "scorer", f"{scorer}tokens: {_scores(report).get('tokenizer', '–')}"


def notes(report: Report) -> Iterator[str]:
    """Yield what a reader of the numbers must know."""
    yield from map(str, report.get("problems", ()))
    if note := report.get("trust", {}).get("note"):
        yield note


def draw_table(report: Report) -> str:
    """Return settings, tables and failures for a terminal of 80 columns."""
    head = "\n".join(_line(*line) for line in settings(report))
    blocks = [
        f"{title}\n{table.terminal()}" if title else table.terminal()
        for title, table in tables(report)
    ]
    models = [report, *(part["report"] for part in report.get("comparisons", ()))]
    failed = "\n".join(
        _line(name, f"failed: {reason}") for model in models for name, reason in failures(model)
    )
    note = report.get("trust", {}).get("note", "")
    end = "In brackets: 95 % intervals over images. All numbers: --json, --report DIR."
    parts = [head, *blocks, failed, textwrap.fill(note, _COLUMNS), end]
    return "\n\n".join(filter(None, parts))


def _line(name: str, text: str) -> str:
    """Format a line; text that is too long continues below."""
    return textwrap.fill(
        in_a_line(text),
        _COLUMNS,
        initial_indent=name.ljust(_NAMES),
        subsequent_indent=" " * _NAMES,
        break_long_words=False,
        break_on_hyphens=False,
    )
