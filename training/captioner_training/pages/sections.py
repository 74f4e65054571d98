"""The sections of a report's page that tell numbers; each is "" where there is nothing to tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from captioner.vocabulary import Tokenizer, has_no_spaces, tokenize
from captioner_training.evaluation.image_row import ImageRow
from captioner_training.pages.figures import Part, part_of, told_value
from captioner_training.pages.plots import (
    coverage_plot,
    dots_plot,
    histogram,
    reliability_plot,
)
from captioner_training.pages.text import in_html

__all__ = ["SCORES", "attention", "captions", "cards", "confidence", "scores"]

Report = Mapping[str, Any]

SCORES = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr", "METEOR")
_KINDS = {
    "content": "words for things, gate open",
    "content_shut_gate": "words for things, gate shut",
    "function": "function words",
}


def main_scores(report: Report) -> tuple[Part | None, Part | None]:
    """Find the scores of the model and of people: COCO's where they were asked for."""
    name = "nltk" if part_of(report, "pycocoevalcap") is None else "pycocoevalcap"
    return part_of(report, name), part_of(report, name, "human")


def cards(report: Report) -> str:
    """The few numbers that stand first."""
    model, people = main_scores(report)
    found = []
    for name in ("CIDEr", "BLEU-4", "ROUGE-L", "METEOR"):
        if model is not None and name in model:
            low, high = model.interval(name)
            beside = "" if people is None or name not in people else f"; people {people[name]:.1f}"
            found.append(
                f'<div class="card"><b>{model[name]:.1f}</b><em>{name}</em>'
                f"<span>{low:.1f} to {high:.1f}{beside}</span></div>"
            )
    return f'<div class="cards">{"".join(found)}</div>'


def scores(report: Report) -> str:
    """The scores beside those of people."""
    model, people = main_scores(report)
    if model is None:
        return ""
    rows, lines = [], []
    for name in SCORES:
        if name not in model:
            continue
        dots = [("model", model[name], *model.interval(name))]
        if people is not None and name in people:
            dots.append(("people", people[name], *people.interval(name)))
        rows.append((name, dots))
        told = "–" if people is None else _interval(people.told(name))
        lines.append(
            f"<tr><td>{name}</td><td>{_interval(model.told(name))}</td><td>{told}</td></tr>"
        )
    most = max(high for _, dots in rows for *_, high in dots)
    plot = dots_plot(rows, title="Scores of the model and of people", most=most)
    return (
        "<h2>Scores</h2><p>In brackets, and as bars in the plot, the 95&nbsp;% interval: what "
        "other images of the same kind could have given. People are scored by comparing each "
        "reference with the others of its image, which leaves them one reference fewer and costs "
        "some BLEU."
        f'</p><div class="figures"><figure>{plot}<figcaption><span class="key model"></span>model'
        '<span class="key people"></span>people</figcaption></figure><figure><div class="scroll">'
        f"<table><tr><th></th><th>model</th><th>people</th></tr>{''.join(lines)}</table></div>"
        f"<figcaption>Tokens: {in_html(str(model.values.get('tokenizer', '')))}</figcaption>"
        "</figure></div>"
    )


def _interval(told: str) -> str:
    value, bracket, rest = told.partition(" [")
    return f"{value} <i>[{rest}</i>" if bracket else value


def captions(report: Report, rows: Sequence[ImageRow]) -> str:
    """How long, how varied, how new and how true the captions are."""
    part = part_of(report, "captions")
    if part is None:
        return ""
    words = part.values["words"]
    told = [
        ("words a caption", f"{words['mean']:.1f}, from {words['shortest']} to {words['longest']}"),
        ("different words used", f"{part.values['vocabulary']:,}"),
        ("distinct captions", f"{part['distinct']:.1f} %"),
        ("not among the training captions", _percent(part.values.get("novel"))),
        ("say three words again", f"{part['repeats_three_words']:.1f} %"),
        ("without a word", f"{part.values['empty']:,}"),
    ]
    invented = part_of(report, "captions", "hallucination")
    if invented is not None:
        told += [
            ("objects named that are not there (CHAIR-i)", f"{invented.told('CHAIR_i')} %"),
            ("captions that name one (CHAIR-s)", f"{invented.told('CHAIR_s')} %"),
        ]
    lines = "".join(f"<tr><td>{name}</td><td>{_interval(value)}</td></tr>" for name, value in told)
    texts = [row.caption for row in rows]
    tokenizer: Tokenizer = "characters" if has_no_spaces(texts) else "words"
    lengths = histogram(
        [len(tokenize(text, tokenizer)) for text in texts],
        title="Lengths of the captions",
        name=tokenizer,
    )
    ciders = histogram(
        [row.cider for row in rows], title="CIDEr-D of the captions", name="CIDEr-D", bins=24
    )
    there = (
        "annotated objects and references"
        if invented is not None and invented.values.get("annotated")
        else "references alone, so that what people saw and did not mention counts as not there"
    )
    return (
        "<h2>What the captions are like</h2><div class='figures'>"
        f"<figure><table>{lines}</table><figcaption>Objects are those of COCO's 80 categories, "
        f"judged by {there}.</figcaption></figure>"
        f"<figure>{lengths}<figcaption>How long the captions are.</figcaption></figure>"
        f"<figure>{ciders}<figcaption>How good they are, one by one: the whole story of which the "
        "CIDEr-D above is the mean.</figcaption></figure></div>"
    )


def _percent(value: object) -> str:
    return f"{value:.1f} %" if isinstance(value, int | float) else "not asked (--training)"


def confidence(report: Report) -> str:
    """Whether the model knows how good its captions are."""
    figures = []
    asked = (
        (part_of(report, "calibration"), "the next word of a reference"),
        (part_of(report, "confidence", "words"), "words that the model said, found in a reference"),
        (part_of(report, "confidence", "captions"), "captions: the share of their words"),
    )
    for part, name in asked:
        if part is not None:
            bins, after = part.values["bins"], part.values["bins_calibrated"]
            plot = reliability_plot(bins, after, title=f"Reliability: {name}")
            surprise = ""
            if "cross_entropy" in part:
                surprise = f" Cross-entropy: {part.told('cross_entropy', 3)} nats a token."
            figures.append(
                f"<figure><h3>{name}</h3>{plot}<figcaption><span class='key before'></span>as said"
                f" <span class='key after'></span>calibrated with temperature "
                f"{part.values['temperature']:.2f}. Expected calibration error "
                f"{part.told('error')} % as said, {part.told('error_calibrated')} % calibrated."
                f"{surprise}</figcaption></figure>"
            )
    whole = part_of(report, "confidence")
    if whole is not None:
        figures.append(
            "<figure><h3>keeping back the least sure</h3>"
            f"{coverage_plot(whole.values['coverage'])}"
            "<figcaption>Mean CIDEr-D of the captions with the highest scores; dashed: if the "
            "score knew CIDEr-D itself; level: if it knew nothing. Rank correlation of score and "
            f"CIDEr-D: {whole.told('rank_correlation', 2)}.</figcaption></figure>"
        )
    if not figures:
        return ""
    return (
        "<h2>Does it know when it is right?</h2><p>A dot on the dashed line was said with exactly "
        "the right probability; below it the model was too sure. Calibration is fitted on one half "
        "of the images and shown for the other.</p>"
        f'<div class="figures">{"".join(figures)}</div>{_familiar(report)}'
    )


def _familiar(report: Report) -> str:
    part = part_of(report, "familiarity")
    if part is None:
        return ""
    told = [f"Rank correlation of familiarity and CIDEr-D: {part.told('rank_correlation', 2)}."]
    if "auroc" in part:
        told.append(
            f"These photos are told from {part.values['unlike']:,} pictures of another kind with "
            f"an AUROC of {part.told('auroc', 3)}."
        )
    return f"<p>How much a photo is like those of the training: {' '.join(told)}</p>"


def attention(report: Report) -> str:
    """Where the model looked, and whether it mattered."""
    grounded = _grounded(report)
    deleted = part_of(report, "deletion")
    figures = list(grounded)
    if deleted is not None:
        kinds = [(name, part_of(report, "deletion", key)) for key, name in _KINDS.items()]
        rows, lines = [], []
        for name, part in kinds:
            if part is None:
                continue
            rows.append((name, [("model", part["effect"], *part.interval("effect"))]))
            lines.append(
                f"<tr><td>{name}</td><td class=n>{part.values['words']:,}</td>"
                + "".join(
                    f"<td class=n>{told_value(part.values.get(key), 3)}</td>"
                    for key in ("deletion", "random_deletion", "insertion", "random_insertion")
                )
                + "".join(
                    f"<td class=n>{told_value(part.values.get(key), 2)}</td>"
                    for key in ("cells", "entropy", "gate")
                )
                + "</tr>"
            )
        most = max((high for _, dots in rows for *_, high in dots), default=1.0)
        least = min((low for _, dots in rows for _, _, low, _ in dots), default=0.0)
        plot = dots_plot(
            rows, title="Effect of deletion", most=max(most, 0.01), least=min(least, 0.0)
        )
        figures.append(
            "<figure class='wide'><h3>does a word need what it looked at?</h3>"
            f"{plot}<figcaption>How far a word's log-probability falls, in nats, when the cells "
            "that hold half of its attention are replaced by the mean of the grid, less the fall "
            "for as many cells drawn "
            "at random. An interval that includes 0 has not shown that looking mattered."
            "</figcaption></figure>"
            '<figure class="wide"><div class="scroll"><table><tr><th></th><th class=n>words</th>'
            "<th class=n>deletion</th><th class=n>random</th><th class=n>insertion</th>"
            "<th class=n>random</th><th class=n>cells</th><th class=n>entropy</th>"
            f"<th class=n>gate</th></tr>{''.join(lines)}</table></div></figure>"
        )
    if not figures:
        return ""
    return (
        "<h2>Where it looked, and whether it mattered</h2><p>A map of attention is a claim. Here "
        "it is checked twice: against where the objects are, and by taking away what was looked at."
        f'</p><div class="figures">{"".join(figures)}</div>'
    )


def _grounded(report: Report) -> list[str]:
    found = []
    for key, name in (("person_boxes", "people"), ("object_boxes", "other objects")):
        part = part_of(report, key)
        if part is None:
            continue
        looks = [
            ("attention", "attention in the boxes"),
            ("uniform", "… if it were uniform"),
            ("center_weighted", "… if it kept to the middle"),
            ("pointing", "most attended cell in a box"),
            ("pointing_uniform", "… for a cell by chance"),
            ("pointing_center", "… for the middle cell"),
        ]
        rows = [
            (told, [("chance" if told[0] == "…" else "model", part[one], *part.interval(one))])
            for one, told in looks
        ]
        plot = dots_plot(rows, title=f"Attention of words for {name}", most=1.0)
        found.append(
            f"<figure class='wide'><h3>words for {name}</h3>{plot}<figcaption>"
            f"{part.values['words']:,.0f} words in photos whose boxes are known; grey is what a "
            "model that does not look would reach."
            "</figcaption></figure>"
        )
    return found
