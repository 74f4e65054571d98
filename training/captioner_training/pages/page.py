"""A report in its folder; its page needs nothing beside it: no file, no network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from captioner.files import replace_file
from captioner.vocabulary import Tokenizer, has_no_spaces, tokenize
from captioner_training.evaluation.report import ImageRow, as_json
from captioner_training.pages.figures import (
    SCORES,
    Part,
    circumstances,
    main_scores,
    missing_parts,
    number,
    part_of,
    title,
)
from captioner_training.pages.gallery import Gallery, in_a_line, rendered
from captioner_training.pages.plots import (
    Plot,
    dots_plot,
    histogram,
    reliability_plot,
    review_plot,
)

__all__ = ["draw_markdown", "draw_page", "write_report"]

Report = Mapping[str, Any]

_SHOWN = 12  # of the best and of the worst: rows of two, three or four are full
_ACROSS = 4  # photos in a row of a wide page
_EXAMPLES = 3  # photos with the attention of their words
_KINDS = {
    "content": "words for things, gate open",
    "content_shut_gate": "words for things, gate shut",
    "function": "function words",
}
_IN_BOXES = {
    "attention": "attention in the boxes",
    "uniform": "… if it were uniform",
    "center_weighted": "… if it kept to the middle",
    "pointing": "most attended cell in a box",
    "pointing_uniform": "… for a cell by chance",
    "pointing_center": "… for the middle cell",
}
_DIGITS = {"cross_entropy": 3}  # models differ by hundredths of a nat
# What begins HTML, a link, an image, code or emphasis; an underscore inside of a word does not.
_LIVE = re.compile(r"[\\`*\[\]<>&~|]|(?<![^\W_])_|_(?![^\W_])")


def write_report(folder: Path, report: Report, rows: Sequence[ImageRow], gallery: Gallery) -> None:
    """Write the three files; the JSON has the images one by one, as `per_image`.

    Raises OutputError: a file cannot be written.
    """
    whole = {**report, "per_image": [row.record() for row in rows]}
    texts = {
        "report.json": json.dumps(as_json(whole), indent=1) + "\n",
        "report.md": draw_markdown(report, rows),
        "report.html": draw_page(report, rows, gallery),
    }
    for name, text in texts.items():
        with replace_file(folder / name) as file:
            file.write(text.encode(errors="backslashreplace"))  # a name need not be text


def draw_markdown(report: Report, rows: Sequence[ImageRow]) -> str:
    """Write the report for a pull request or a terminal; arguments as of draw_page."""
    columns = {
        head: part
        for head, names in (
            ("model", ("nltk",)),
            ("people", ("nltk", "human")),
            ("model, COCO's tokens", ("pycocoevalcap",)),
            ("people, COCO's tokens", ("pycocoevalcap", "human")),
        )
        if (part := part_of(report, *names)) is not None
    }
    parts = {
        ", ".join(names): _numbers(part.values, digits=3 if names[0] == "deletion" else 2)
        for names in (
            ("captions",), ("calibration",), ("familiarity",), ("person_boxes",),
            *(("trust", kind) for kind in ("words", "captions", "objects")),
            *(("deletion", kind) for kind in _KINDS),
        )
        if (part := part_of(report, *names)) is not None
    }  # fmt: skip
    scored = [name for name in SCORES if any(name in part for part in columns.values())]
    context = _context(report, rows, shown=5)
    return rendered(
        "report.md", escape=_in_markdown, **context, columns=columns, parts=parts, scored=scored
    )


def draw_page(report: Report, rows: Sequence[ImageRow], gallery: Gallery) -> str:
    """Write the page.

    Args:
        report: what `captioner evaluate --json` prints.
        rows: the images.
        gallery: their photos.
    """
    model, people = main_scores(report)
    kinds = ((name, part_of(report, "deletion", key)) for key, name in _KINDS.items())
    deletion = [(name, part) for name, part in kinds if part is not None]
    plots = {
        "scores": _scores(model, people),
        "lengths": _lengths([row.caption for row in rows]),
        "ciders": histogram(
            [row.cider for row in rows], title="CIDEr-D of the captions", name="CIDEr-D", bins=24
        ),
        "review": review_plot((report.get("trust") or {}).get("review", ())),
        "deletion": _deletion(deletion),
        "comparison": _comparison(part_of(report, "comparison")),
    }
    return rendered(
        "report.html",
        **_context(report, rows, shown=_SHOWN),
        deletion=deletion,
        examples=_examples(rows, gallery),
        gallery=gallery,
        grounding=list(_grounding(report)),
        model=model,
        part=partial(part_of, report),
        people=people,
        plots=plots,
        reliability=list(_reliability(report)),
    )


def _context(report: Report, rows: Sequence[ImageRow], *, shown: int) -> dict[str, Any]:
    """Gather what page and Markdown both have; `shown` are the best, and as many worst."""
    heading, lead = title(report)
    order = sorted(range(len(rows)), key=lambda at: (rows[at].cider, rows[at].rouge_l))
    shown = min(shown, len(rows) // 2)
    shown -= shown % _ACROSS if shown > _ACROSS else 0
    return {
        "SCORES": SCORES, "best": order[::-1][:shown], "facts": list(circumstances(report)),
        "heading": heading, "lead": lead, "missing": list(missing_parts(report)),
        "notes": [report["comparable"], *report.get("problems", ())], "number": number,
        "rows": rows, "worst": order[:shown], "changed": _changed(rows, shown=_ACROSS),
    }  # fmt: skip


def _changed(rows: Sequence[ImageRow], *, shown: int) -> list[tuple[str, list[int]]]:
    """Find the photos whose captions differ most from those of another report, both ways."""
    change = {
        at: row.cider - row.other_cider
        for at, row in enumerate(rows)
        if row.other_cider is not None and row.caption != row.other_caption
    }
    order = sorted(change, key=change.__getitem__)
    ways = {
        "What became better": [at for at in order[::-1][:shown] if change[at] > 0],
        "What became worse": [at for at in order[:shown] if change[at] < 0],
    }
    return [(name, places) for name, places in ways.items() if places]


def _in_markdown(text: str) -> str:
    return _LIVE.sub(r"\\\g<0>", in_a_line(text))


def _numbers(values: Report, *, digits: int) -> Markup:
    """List every number of a part by its name in report.json."""
    found = []
    for name, value in values.items():
        places = _DIGITS.get(name, digits)
        if isinstance(value, Mapping) and name != "intervals":
            found.append(f"{name} ({_numbers(value, digits=places)})")
        elif isinstance(value, float) and name in (values.get("intervals") or {}):
            low, high = (number(end, places) for end in values["intervals"][name])
            found.append(f"{name} {value:.{places}f} [{low}, {high}]")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            form = ",d" if isinstance(value, int) else f".{places}f"
            found.append(f"{name} {value:{form}}")
    return Markup(", ".join(found))


def _dot(kind: str, part: Part, name: str) -> tuple[str, float, float, float]:
    return (kind, part[name], *part.interval(name))


def _scores(model: Part | None, people: Part | None) -> Plot | None:
    both = [(kind, part) for kind, part in (("model", model), ("people", people)) if part]
    rows = [
        (name, [_dot(kind, part, name) for kind, part in both if name in part])
        for name in SCORES
        if model is not None and name in model
    ]
    most = max((high for _, dots in rows for *_, high in dots), default=0.0)
    return dots_plot(rows, title="Scores of the model and of people", most=most) if rows else None


def _comparison(part: Part | None) -> Plot | None:
    if part is None:
        return None
    names = ("CIDEr", "ROUGE-L")
    ends = [end for name in names for end in part.interval(name)]
    rows = [(name, [_dot("model", part, name)]) for name in names]
    return dots_plot(rows, title="Differences", most=max(*ends, 0), least=min(*ends, 0))


def _lengths(texts: Sequence[str]) -> Plot:
    tokenizer: Tokenizer = "characters" if has_no_spaces(texts) else "words"
    lengths = [len(tokenize(text, tokenizer)) for text in texts]
    return histogram(lengths, title="Lengths of the captions", name=tokenizer)


def _reliability(report: Report) -> Iterator[tuple[str, Plot, Part]]:
    for names, what in (
        (("calibration",), "the next word of a reference"),
        (("trust", "words"), "words that name something"),
        (("trust", "captions"), "captions: all such words"),
        (("trust", "objects"), "objects of COCO's categories"),
    ):
        if (part := part_of(report, *names)) is not None:
            plot = reliability_plot(part.values["bins"], title=f"Reliability: {what}")
            yield what, plot, part


def _grounding(report: Report) -> Iterator[tuple[str, Plot, Part]]:
    for key, name in (("person_boxes", "people"), ("object_boxes", "other objects")):
        if (part := part_of(report, key)) is not None:
            rows = [
                (text, [_dot("chance" if text[0] == "…" else "model", part, one)])
                for one, text in _IN_BOXES.items()
            ]
            yield name, dots_plot(rows, title=f"Attention of words for {name}", most=1.0), part


def _deletion(kinds: Sequence[tuple[str, Part]]) -> Plot | None:
    if not kinds:
        return None
    rows = [(name, [_dot("model", part, "effect")]) for name, part in kinds]
    ends = [end for _, part in kinds for end in part.interval("effect")]
    most, least = max(*ends, 0.01), min(*ends, 0.0)
    return dots_plot(rows, title="Effect of deletion", most=most, least=least)


def _examples(
    rows: Sequence[ImageRow], gallery: Gallery
) -> list[tuple[ImageRow, str, list[tuple[str, str]]]]:
    """Find where the words of some captions looked: of the best, the middling and the worst."""
    order = sorted(range(len(rows)), key=lambda at: -rows[at].cider)
    last, parts = len(order) - 1, range(_EXAMPLES) if rows else ()
    found = []
    for at in dict.fromkeys(order[last * part // (_EXAMPLES - 1)] for part in parts):
        maps, picture = gallery.maps(at), gallery.picture(at)
        if maps and picture is not None:
            found.append((rows[at], picture, maps))
    return found
