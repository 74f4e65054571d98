"""`captioner evaluate --report`: report.json, report.md, and a page without external links."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from captioner.trust.trust import digest_weights, trust_file
from captioner_training.evaluation.evaluate import Evaluation, as_json, compare
from captioner_training.report.measures import MEASURES, cell, tables
from tests import launcher
from tests.conftest import make_tiny, make_trust
from tests.launcher import ROOT, Run
from tests.training.evaluation.test_predictions import captions, results
from tests.training.evaluation.test_trust import image
from tests.training.runs import write_split

CAPTIONS = [
    ("a dog runs in the grass", "the <b>dog</b> runs"),
    ("a cat sits", "a red ball in the grass"),
    ("the dog sits in the grass", "a dog sits"),
    ("a red ball", "the ball in the grass"),
    ("two dogs run", "a dog runs"),
]


class Evaluated:
    """A report of five drawn photos, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        photos = [Image.new("RGB", (120, 80), "seagreen") for _ in range(5)]
        for left, photo in zip((0, 20, 40, 60, 80), photos, strict=True):
            ImageDraw.Draw(photo).ellipse((left, 20, left + 40, 60), fill="firebrick")
        write_split(folder, "val", photos, CAPTIONS)
        write_split(folder, "part", photos[:3], CAPTIONS[:3])
        self.captions, self.part = folder / "captions_val.json", folder / "captions_part.json"
        images = [{"id": at, "width": 120, "height": 80} for at in range(5)]
        boxes = [
            {"image_id": at, "category_id": kind, "bbox": [20 * at, 20, 40, 40]}
            for at in range(5) for kind in (1, 18, 17)
        ]  # fmt: skip
        categories = [
            {"id": 1, "name": "person"}, {"id": 18, "name": "dog"}, {"id": 17, "name": "cat"},
        ]  # fmt: skip
        self.boxes = self.write(
            "boxes.json", {"images": images, "annotations": boxes, "categories": categories}
        )
        self.checkpoint = folder / "tiny.safetensors"
        make_tiny().save(self.checkpoint)
        make_trust(weights=digest_weights(self.checkpoint)).save(trust_file(self.checkpoint))
        self.report = folder / "report"
        self.done = launcher.run(
            *self.command(
                self.captions, "--boxes", self.boxes, "--deletion", "--calibration",
                "--report", self.report,
            )
        )  # fmt: skip

    def write(self, name: str, content: object) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(content))
        return path

    def command(self, captions: Path, *more: object) -> tuple[object, ...]:
        return (
            "evaluate", "--captions", captions, "--images", self.folder / "val",
            "--checkpoint", self.checkpoint, "--device", "cpu", "--dtype", "float32", "--json",
            *more,
        )  # fmt: skip


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    return Evaluated(tmp_path_factory.mktemp("evaluated"))


def test_page_markdown_and_json_have_what_is_printed(evaluated: Evaluated) -> None:
    printed = json.loads(evaluated.done.stdout)
    written = json.loads((evaluated.report / "report.json").read_text())
    assert len(written.pop("per_image")) == 5 and written == printed
    page = (evaluated.report / "report.html").read_text()
    markdown = (evaluated.report / "report.md").read_text().splitlines()
    assert markdown[0] == "|  | model | people |" and printed["split"]["hash"] in page
    ((_, table),) = tables(printed)
    assert len(table.rows) >= 25 and len(markdown) == 2 + len(table.rows)
    for measure, cells in table.rows:
        value, *_ = cells[0].split(" [")
        assert re.search(rf">{re.escape(measure.title)}</td>\s*<td>{re.escape(value)}", page)
        assert f"| {measure.title} | {' | '.join(cells)} |" in markdown
    assert printed["trust"]["words"]["count"] >= 8 and "optimistic" in page
    assert "report.html" in evaluated.done.stderr
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)  # no other files
    kinds = {address.partition(";")[0] for address in addresses}
    assert kinds == {"data:image/jpeg", "data:image/svg+xml"}
    assert not re.search(r"url\(|@import|https?://", page)
    assert "<b>dog</b>" not in page and "&lt;b&gt;dog" in page


def test_a_table_says_what_was_scored_and_how(evaluated: Evaluated, run_main: Run) -> None:
    folder = evaluated.folder / "table"
    other = json.loads((evaluated.report / "report.json").read_text())
    other["deletion"] = {"error": {"detail": "its disk was full"}}
    command = (
        "evaluate", evaluated.folder, "--split", "val", "--checkpoint", evaluated.checkpoint,
        "--device", "cpu", "--dtype", "float32", "--beam-size", 2,
        "--compare", evaluated.write("other.json", other),
    )  # fmt: skip
    done = run_main(*command, "--report", folder)
    table = done.stdout
    assert done.returncode == 0 and "\ndeletion       failed: its disk was full\n" in table
    report = json.loads((folder / "report.json").read_text())
    assert max(map(len, table.splitlines())) <= 80
    text = " ".join(table.split())
    assert text.startswith(f"split val of {evaluated.folder}: 5 images, 10 reference captions")
    assert "tiny, version 1" in text and "beam size 2, float32" in text and "Treebank" in text
    own, compared = table.split("Compared with tiny, version 1\n")
    (difference,) = report["comparisons"]
    for name, title in (("BLEU-1", "BLEU-1"), ("ROUGE-L", "ROUGE-L"), ("CIDEr", "CIDEr-D")):
        for part, scores in ((own, report["nltk"]), (compared, difference["report"]["nltk"])):
            low, high = scores["intervals"][name]
            assert re.search(rf"^{title} +{scores[name]:.1f} \[{low:.1f}, {high:.1f}\]", part, re.M)
    assert re.search(rf"^CIDEr-D .* \{difference['CIDEr']:+.1f} \[", compared, re.M)


def test_markup_and_control_characters_in_names_and_captions_are_escaped(tmp_path: Path) -> None:
    lively = "<img src=x onerror=alert(1)> \x1b[2J\x9b31m\u202e ![x](http://x/x.png) `a` **b**"
    split = [
        image(f"a dog {lively} \ud800\n", id=at, name=f"{at} {lively.replace('/', '')}\x07.jpg")
        for at in (0, 1, 2, 3, lively)
    ]
    captions(tmp_path / "captions.json", *split[:4])
    results(tmp_path / "said <b>.json", split, [f"the dog {lively} \ud800"] * 5)
    done = launcher.run(
        "evaluate", "--captions", "captions.json", "--score", "said <b>.json", "--report", "report",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    for text in (page, done.stdout, done.stderr):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert "the dog &lt;img src=x onerror=alert(1)&gt; \\x1b[2J" in page
    assert "<img src=x" not in page and "<b>.json" not in page


def test_the_page_can_be_read(evaluated: Evaluated, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto((evaluated.report / "report.html").as_uri())
    assert problems == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390  # on a phone too
    assert page.evaluate("[...document.images].every((one) => one.naturalWidth > 0)")
    assert page.locator("img.plot").count() == 3
    page.close()


def test_without_matplotlib_the_report_has_tables_and_says_so(
    evaluated: Evaluated, run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = run_main(*evaluated.command(evaluated.captions), "--report", tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.html").read_text()
    assert "pip install 'captioner[report]'" in page and "image/svg" not in page
    assert "CIDEr-D" in page


def test_only_comparable_reports_can_be_compared(evaluated: Evaluated, run_main: Run) -> None:
    other = evaluated.report / "report.json"
    same = run_main(*evaluated.command(evaluated.captions, "--compare", other))
    (difference,) = json.loads(same.stdout)["comparisons"]
    assert difference["CIDEr"] == difference["ROUGE-L"] == 0
    part = run_main(*evaluated.command(evaluated.part, "--compare", other))
    assert part.returncode == 1 and "of different splits" in part.stderr
    whole = json.loads(other.read_text()) | {"document_frequencies": {"hash": "of a whole split"}}
    whole_file = evaluated.write("whole.json", whole)
    alike = run_main(*evaluated.command(evaluated.captions, "--compare", whole_file))
    assert alike.returncode == 1 and "other document frequencies" in alike.stderr
    assert not part.stdout and not alike.stdout  # before any photo was captioned


def test_photos_whose_captions_changed_most_have_both_captions(
    evaluated: Evaluated, run_main: Run, tmp_path: Path
) -> None:
    other = json.loads((evaluated.report / "report.json").read_text())
    for at, row in enumerate(other["per_image"]):
        change = 30.0 * (at - 1) if at < 4 else 0.0
        row["caption"], row["CIDEr"] = f"رجل يركب {at}", row["CIDEr"] - change
    other["checkpoint"]["name"] = "left|right"
    (tmp_path / "other.json").write_text(json.dumps(other))
    same = evaluated.report / "report.json"
    command = ("--compare", same, tmp_path / "other.json", "--report", tmp_path)
    assert run_main(*evaluated.command(evaluated.captions, *command)).returncode == 0
    page = (tmp_path / "report.html").read_text()
    assert re.findall(r'class="label"[^>]*>([+-]\d+)<', page) == ["+60", "+30", "-30"]
    assert "<bdi>رجل يركب 3</bdi>" in page  # Arabic runs from right to left, whatever is around it
    report = json.loads((tmp_path / "report.json").read_text())
    for at, row in enumerate(report["per_image"]):
        assert [pair["caption"] for pair in row["others"]] == [row["caption"], f"رجل يركب {at}"]
    _, part = report["comparisons"]
    low, high = part["intervals"]["CIDEr"]
    assert part["CIDEr"] == pytest.approx(12)
    assert f"+12.0 <i>[{low:.1f}, {high:.1f}]" in page
    assert "|  | left\\|right, version 1 | difference |" in (tmp_path / "report.md").read_text()


def compared(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare rows of two models."""
    report = {"predictions": "x.json"}
    return compare(Evaluation(report=report, rows=ours), Evaluation(report=report, rows=theirs))


def test_reports_are_compared_photo_by_photo_in_any_order() -> None:
    """Pairing changes the interval and not the mean, so the interval is checked."""
    ours, theirs = (
        [{"id": at, "CIDEr": float(cider), "ROUGE-L": 1.0} for at, cider in enumerate(ciders)]
        for ciders in ((10, 20, 60, 0, 0), (30, 40, 50, 20, 20))
    )
    found = compared(ours, [theirs[at] for at in (2, 0, 1, 4, 3)])
    assert found["CIDEr"] == pytest.approx(-14)
    # Of five draws from -20 (four times) and 10, three or more are 10 with a probability of 5.8 %,
    # four or more with 0.7 %. So the upper 2.5 % of the means begin at (3 * 10 - 2 * 20) / 5.
    assert found["intervals"]["CIDEr"] == pytest.approx([-20, -2])
    assert "CIDEr" not in compared(ours[:4], theirs[:4])  # too few


def test_annotated_objects_are_there_whether_people_name_them_or_not(
    evaluated: Evaluated, run_main: Run
) -> None:
    entries = [{"image_id": at, "caption": "a dog and a cat"} for at in range(5)]
    said = evaluated.write("said.json", entries)
    command = ("evaluate", "--captions", evaluated.captions, "--score", said, "--json")
    # Dogs are in the references of three images and cats of one: 6 of 10 mentions are not there.
    for more, invented in ((("--boxes", evaluated.boxes), 0), ((), 60)):
        found = json.loads(run_main(*command, *more).stdout)["captions"]["hallucination"]
        assert found["CHAIR_i"] == pytest.approx(invented)
        assert (found["mentions"], found["annotated"]) == (10, bool(more))


def test_the_measures_of_docs_have_the_titles_of_the_table() -> None:
    titles = {measure.title for measure in MEASURES}
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    section = text.partition("## Measures")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)
    assert len(rows) >= 30 and set(rows) <= {*titles, "---"}


def test_scores_on_coco_s_tokens_come_first_and_missing_numbers_are_dashes() -> None:
    measures = {measure.key: measure for measure in MEASURES}
    report: dict[str, Any] = {"split": {"images": 5}, "nltk": {"CIDEr": 50.0}}
    report["pycocoevalcap"] = {"error": {"detail": "no Java"}}
    assert cell(report, measures["scores.CIDEr"]) == "50.0"
    report["pycocoevalcap"] = {"CIDEr": 60.0, "intervals": {"CIDEr": [None, None]}}
    assert cell(report, measures["scores.CIDEr"]) == "60.0"
    report["split"]["images"] = 4
    assert cell(report, measures["scores.CIDEr"]) == "– (needs 5 images)"
    report["trust"] = {"words": {"auroc": math.nan}}
    for key in ("trust.words.auroc", "trust.words.error", "deletion.content.effect"):
        assert cell(report, measures[key]) == "–"
    numbers = {"auroc": math.nan, "intervals": {"auroc": [math.nan, (math.inf, 1.5)]}}
    assert as_json(numbers) == {"auroc": None, "intervals": {"auroc": [None, [None, 1.5]]}}
