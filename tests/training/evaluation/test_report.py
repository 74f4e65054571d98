"""`captioner evaluate --report`: report.json, and a page without external links."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw

from captioner.checkpoint import load_checkpoint, read_header
from captioner.generation.beam_search import Hypothesis
from captioner.trust.trust import digest_weights, trust_file
from captioner.vision.transform import Transform, TransformConfig
from captioner_training.data.captioned import Captioned
from captioner_training.data.reading import read_coco
from captioner_training.evaluation.report import ImageRow, as_json, beside, compare_reports
from captioner_training.report.evaluation import draw_page
from captioner_training.report.gallery import Gallery
from captioner_training.report.numbers import Part, main_scores
from captioner_training.report.plots import (
    curves_plot,
    histogram,
    reliability_plot,
    review_plot,
)
from captioner_training.report.side_by_side import side_by_side
from captioner_training.report.table import draw_table
from tests import launcher
from tests.conftest import make_tiny, make_trust
from tests.launcher import Run
from tests.training.runs import write_split

CAPTIONS = [
    ("a dog runs in the grass", "the <b>dog</b> runs"),
    ("a cat sits", "a red ball in the grass"),
    ("the dog sits in the grass", "a dog sits"),
    ("a red ball", "the ball in the grass"),
]


class Evaluated:
    """A report of four drawn photos, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        photos = [Image.new("RGB", (120, 80), "seagreen") for _ in range(4)]
        for left, photo in zip((0, 20, 40, 60), photos, strict=True):
            ImageDraw.Draw(photo).ellipse((left, 20, left + 40, 60), fill="firebrick")
        write_split(folder, "val", photos, CAPTIONS)
        write_split(folder, "part", photos[:3], CAPTIONS[:3])
        self.captions, self.part = folder / "captions_val.json", folder / "captions_part.json"
        images = [{"id": at, "width": 120, "height": 80} for at in range(4)]
        boxes = [
            {"image_id": at, "category_id": kind, "bbox": [20 * at, 20, 40, 40]}
            for at in range(4) for kind in (1, 18, 17)
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
                "--training", self.captions, "--report", self.report,
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

    def printed(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.done.stdout)
        return found


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    return Evaluated(tmp_path_factory.mktemp("evaluated"))


def test_page_and_json_have_what_is_printed(evaluated: Evaluated) -> None:
    printed = evaluated.printed()
    written = json.loads((evaluated.report / "report.json").read_text())
    assert len(written.pop("per_image")) == 4
    assert written == printed
    surprise = f"{printed['calibration']['cross_entropy']:.3f}"
    page = (evaluated.report / "report.html").read_text()
    assert f"{printed['nltk']['BLEU-1']:.1f}" in page and printed["split"]["hash"] in page
    assert f"Cross-entropy: {surprise} [" in page and "marked as doubtful" in page
    assert printed["trust"]["words"]["count"] >= 8
    assert "report.html" in evaluated.done.stderr
    assert "<dt>sentence chosen by</dt><dd>likelihood</dd>" in page


def test_a_table_says_what_was_scored_and_how(evaluated: Evaluated, run_main: Run) -> None:
    folder = evaluated.folder / "table"
    command = (
        "evaluate", evaluated.folder, "--split", "val", "--checkpoint", evaluated.checkpoint,
        "--device", "cpu", "--dtype", "float32", "--beam-size", 2,
        "--compare", evaluated.report / "report.json",
    )  # fmt: skip
    table = run_main(*command, "--report", folder).stdout
    report = json.loads((folder / "report.json").read_text())
    lines = table.splitlines()
    assert lines[0].split()[:3] == ["split", "val", "of"] and max(map(len, lines)) <= 80
    assert f"{evaluated.folder}: 4 images, 8 reference captions" in " ".join(table.split())
    assert "tiny, version 1, beam size 2, float32" in table and "on Treebank tokens" in table
    (difference,) = report["comparisons"]
    for name in ("BLEU-1", "BLEU-4", "ROUGE-L", "CIDEr"):
        row = next(line.split() for line in lines if line.startswith(name))
        for at, scores in ((1, report["nltk"]), (4, difference["report"]["nltk"])):
            low, high = scores["intervals"][name]
            assert row[at : at + 3] == [f"{scores[name]:.1f}", f"[{low:.1f},", f"{high:.1f}]"]
    assert f"CIDEr {difference['CIDEr']:+.1f} [" in table and len(lines) <= 30


def test_a_checkpoint_is_saved_with_its_scores(
    evaluated: Evaluated, run_main: Run, tmp_path: Path
) -> None:
    saved = tmp_path / "4.safetensors"
    done = run_main(*evaluated.command(evaluated.captions), "--save", saved, "--version", "4")
    report, header = json.loads(done.stdout), read_header(saved)
    assert (done.returncode, report["saved"], header["version"]) == (0, str(saved), "4")
    for name in ("BLEU-4", "CIDEr", "different"):
        assert header["metrics"][name] == pytest.approx(report["nltk"][name])
    ours, theirs = load_checkpoint(saved), load_checkpoint(evaluated.checkpoint)
    assert ours.fingerprint() == theirs.fingerprint() and ours.generation == theirs.generation
    photo = evaluated.folder / "val" / "0.png"
    first, second = (
        json.loads(run_main("caption", photo, "--json", "--checkpoint", path).stdout)
        for path in (evaluated.checkpoint, saved)
    )
    assert first["trust"] == second["trust"] and second["model"]["version"] == "4"


def test_the_page_loads_no_other_files(evaluated: Evaluated) -> None:
    text = (evaluated.report / "report.html").read_text()
    addresses = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert len(addresses) >= 4
    assert all(address.startswith("data:image/jpeg;base64,") for address in addresses)
    assert not re.search(r"url\(|@import|https?://", text)
    assert "<b>dog</b>" not in text and "&lt;b&gt;dog" in text


def test_markup_and_control_characters_in_names_and_captions_are_escaped(tmp_path: Path) -> None:
    lively = "<img src=x onerror=alert(1)> \x1b[2J\x9b31m\u202e ![x](http://x/x.png) `a` **b**"
    names = [f"{n} {lively.replace('/', '')}\x07.jpg" for n in range(4)]
    images = [{"id": n, "file_name": name} for n, name in enumerate(names)]
    notes = [{"image_id": n, "caption": f"a dog {lively} \ud800\n"} for n in range(4)]
    said = [{"image_id": at, "caption": f"the dog {lively} \ud800"} for at in (0, 1, 2, 3, lively)]
    (tmp_path / "captions.json").write_text(json.dumps({"images": images, "annotations": notes}))
    (tmp_path / "said <b>.json").write_text(json.dumps(said))
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


@pytest.fixture(scope="module")
def page(evaluated: Evaluated, browser: Any) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.problems = []
    page.on("console", lambda message: page.problems.append(message.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.goto(f"file://{evaluated.report / 'report.html'}")
    yield page
    page.close()


def test_the_page_can_be_read_searched_and_ordered(page: Any) -> None:
    assert page.problems == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390  # on a phone too
    loaded = page.evaluate("[...document.images].every((one) => one.naturalWidth > 0)")
    assert loaded and page.locator("svg.plot").count() == page.locator("svg").count() >= 5
    assert page.locator("#deletion tr").count() >= 2
    page.locator("summary").click()
    page.locator("#find").fill("PNG 2.png")  # all of its words, in any order
    assert page.locator("#images tbody tr:visible").count() == 1
    assert page.locator("#shown").inner_text() == "1 of 4"
    page.locator("#find").fill("")
    page.get_by_role("button", name="CIDEr-D").click()
    first, last = (page.locator("#images tbody tr").nth(at) for at in (0, 3))
    told = [float(one.locator("td").nth(2).get_attribute("data-n")) for one in (first, last)]
    assert told[0] >= told[1]
    for first, last in (("3.png", "0.png"), ("0.png", "3.png")):  # again: the other way round
        page.get_by_role("button", name="image").click()
        names = page.locator("#images tbody td:first-child").all_inner_texts()
        assert (names[0], names[3]) == (first, last)


def test_only_comparable_reports_can_be_compared(evaluated: Evaluated, run_main: Run) -> None:
    other = evaluated.report / "report.json"

    def evaluate(captions: Path, *more: object) -> CompletedProcess[str]:
        return run_main(*evaluated.command(captions, *more))

    same = json.loads(evaluate(evaluated.captions, "--compare", other).stdout)
    (difference,) = same["comparisons"]
    assert difference["CIDEr"] == difference["ROUGE-L"] == 0
    assert "cross_entropy" not in difference  # only the other one was asked for it
    assert "split" in same["comparable"] and same["document_frequencies"]["images"] == 4
    part = evaluate(evaluated.part, "--compare", other)
    assert part.returncode == 1 and "of different splits" in part.stderr
    folder = evaluated.folder / "part"
    corpus = ("--corpus", evaluated.captions)
    report = json.loads(evaluate(evaluated.part, *corpus, "--report", folder).stdout)
    alike = evaluate(evaluated.part, "--compare", folder / "report.json")
    assert alike.returncode == 1 and "of 3 and of 4 images" in alike.stderr
    assert not part.stdout and not alike.stdout  # before any photo was captioned
    assert "a part" in report["comparable"] and "of a split of 4 images" in report["comparable"]
    assert report["document_frequencies"]["images"] == 4
    assert "\n               CIDEr with the document frequencies of 4 images\n" in draw_table(
        report
    )


def test_compared_models_are_shown_side_by_side(
    evaluated: Evaluated, run_main: Run, tmp_path: Path, browser: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    other = json.loads((evaluated.report / "report.json").read_text())
    change = {}
    for at, row in enumerate(other["per_image"]):
        change[row["name"]] = 30.0 * (at - 1)
        row["caption"], row["CIDEr"] = f"رجل يركب {at}", row["CIDEr"] - change[row["name"]]
    (tmp_path / "other.json").write_text(json.dumps(other))
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    command = evaluated.command(
        evaluated.captions, "--compare", tmp_path / "other.json", "--report", tmp_path, "--open"
    )
    assert run_main(*command).returncode == 0
    assert opened == [(tmp_path / "report.html").as_uri()]
    page = browser.new_page(viewport={"width": 1180, "height": 900})
    page.goto(opened[0])
    differences = page.locator(".photos:not(.best):not(.worst) .cider").all_inner_texts()
    assert differences == ["+60", "+30", "-30"]  # improved, then worsened
    (part,) = json.loads((tmp_path / "report.json").read_text())["comparisons"]
    low, high = part["intervals"]["CIDEr"]
    assert part["CIDEr"] == pytest.approx(15)
    assert f"CIDEr +15.0 [{low:.1f}, {high:.1f}]" in page.locator("main").inner_text()
    # Arabic words run from right to left, whatever stands around them.
    order = page.locator("em bdi").first.evaluate(
        """(element) => { const text = element.firstChild, at = (place) => {
             const range = document.createRange();
             range.setStart(text, place); range.setEnd(text, place + 1);
             return range.getBoundingClientRect().left; };
           return [at(0), at(4), at(9)]; }"""
    )
    assert order == sorted(order, reverse=True)
    page.close()


def surprised(at: int, nats: float, tokens: int) -> ImageRow:
    return ImageRow(
        id=at, name=f"{at}.jpg", caption="a dog", references=("a dog",), cider=0.0, rouge_l=0.0,
        cross_entropy=nats, reference_tokens=tokens,
    )  # fmt: skip


def test_cross_entropy_is_compared_by_token() -> None:
    split: dict[str, Any] = {
        "split": {"images": 2, "hash": "s"},
        "document_frequencies": {"images": 2, "hash": ""},
        "calibration": {"vocabulary_hash": "v"},
    }
    rows = [surprised(0, 3.0, 10), surprised(1, 2.0, 30)]
    before = [surprised(0, 2.6, 10), surprised(1, 2.2, 30)]
    other: dict[str, Any] = {**split, "per_image": [row.record() for row in before]}
    found = compare_reports(split, rows, other)
    # (10 * 0.4 - 30 * 0.2) / 40; a draw has the first image twice, each once, or the second twice.
    assert found["cross_entropy"] == pytest.approx(-0.05)
    assert isinstance(intervals := found["intervals"], dict)
    assert intervals["cross_entropy"] == pytest.approx([-0.2, 0.4])
    for known in ({"vocabulary_hash": "w"}, {}):  # other words; a report from before it had this
        others = {**other, "calibration": known}
        assert "cross_entropy" not in compare_reports(split, rows, others)
    other["per_image"][1]["reference_tokens"] = 29  # read to another length
    assert "cross_entropy" not in compare_reports(split, rows, other)


def test_reports_are_compared_photo_by_photo_in_any_order() -> None:
    """Pairing changes the interval and not the mean, so the interval is checked."""
    split: dict[str, Any] = {
        "split": {"images": 3, "hash": "s"}, "document_frequencies": {"images": 3, "hash": ""},
    }  # fmt: skip
    ours, theirs = rows(10, 20, 60), rows(30, 20, 50)
    other = {**split, "per_image": [theirs[at].record() for at in (2, 0, 1)]}
    compared = compare_reports(split, ours, other)
    assert compared["CIDEr"] == pytest.approx(-10 / 3)
    assert isinstance(intervals := compared["intervals"], dict)
    # Each photo is drawn three times in 1 of 27 draws, so the ends are the extreme differences.
    assert intervals["CIDEr"] == pytest.approx([-20, 10])
    assert [row.others for row in beside(ours, other)] == [(("a dog", it),) for it in (30, 20, 50)]


def test_annotated_objects_are_there_whether_people_name_them_or_not(
    evaluated: Evaluated, run_main: Run
) -> None:
    said = evaluated.folder / "said.json"
    said.write_text(json.dumps([{"image_id": at, "caption": "a dog and a cat"} for at in range(4)]))
    command = ("evaluate", "--captions", evaluated.captions, "--score", said, "--json")
    with_boxes, without = (
        json.loads(run_main(*command, *more).stdout)["captions"]["hallucination"]
        for more in (("--boxes", evaluated.boxes), ())
    )
    # Dogs are in the references of two images and cats of one: 5 of 8 mentions are not there.
    assert without["CHAIR_i"] == pytest.approx(62.5) and not without["annotated"]
    assert with_boxes["CHAIR_i"] == 0 and with_boxes["mentions"] == 8 and with_boxes["annotated"]


@pytest.mark.parametrize(
    ("option", "path", "status", "message"),
    [
        ("--compare", "none.json", 1, "there is no file"),
        ("--compare", "deep.json", 1, "is not JSON"),
        ("--unlike", "none", 1, "there is no folder"),
        ("--compare", "report/report.json", 2, "would overwrite an input of this command"),
        ("--predictions", "report/report.json", 2, "is also written by --report"),
    ],
)
def test_a_report_overwrites_nothing_that_is_read_or_written_beside_it(
    evaluated: Evaluated, run_main: Run, option: str, path: str, status: int, message: str
) -> None:
    (evaluated.folder / "deep.json").write_text("[" * 100_000)
    before = (evaluated.report / "report.json").read_bytes()
    more = (option, evaluated.folder / path, "--report", evaluated.report)
    done = run_main(*evaluated.command(evaluated.captions, *more))
    assert (done.returncode, done.stdout) == (status, "") and message in done.stderr
    assert (evaluated.report / "report.json").read_bytes() == before


def test_the_page_says_which_words_it_shows(evaluated: Evaluated) -> None:
    assert "the words with the highest gate" in (evaluated.report / "report.html").read_text()
    text = draw_page(NOTHING, rows(1.0), [Anywhere()])
    assert "its first content words" in text and "highest gate" not in text


NOTHING = {
    "data": "x.json", "predictions": "said.json", "comparable": "",
    "split": {"images": 1, "references": 1, "hash": "h"},
    "document_frequencies": {"images": 1, "hash": "h"},
}  # fmt: skip


class Anywhere(Gallery):
    """A photo for every image, and its attention for a word."""

    def picture(self, at: int) -> str:
        return "data:,"

    def maps(self, at: int) -> list[tuple[str, str]]:
        return [("dog", "data:,")]


def rows(*cider: float) -> list[ImageRow]:
    return [
        ImageRow(id=n, name=f"{one}", caption="a dog", references=("a dog",), cider=one, rouge_l=1)
        for n, one in enumerate(cider)
    ]


def test_page_and_table_show_each_measure_under_its_name() -> None:
    def numbers(*names: str) -> dict[str, float]:
        return {name: 0.1 * at for at, name in enumerate(names, start=1)}

    report: dict[str, Any] = {
        **NOTHING,
        "scored": 1,
        "object_boxes": {"words": 9} | numbers(
            "attention", "uniform", "center_weighted", "pointing", "pointing_uniform",
            "pointing_center",
        ),
        "deletion": {
            "content": {"words": 8} | numbers(
                "effect", "deletion", "random_deletion", "insertion", "random_insertion"
            )
        },
        "calibration": {"error": 2.5, "cross_entropy": 3.25, "bins": []},
        "trust": {
            kind: {"auroc": 0.8, "error": 4.5, "count": 2, "right": 50, "bins": []}
            for kind in ("words", "captions", "objects")
        },
        "familiarity": {"auroc": 0.9, "unlike": 3},
    }  # fmt: skip
    page = draw_page(report, rows(1.0), [Anywhere()])
    cells = [re.findall(r"<t[dh]>\s*([^<]*?)\s*</t[dh]>", line) for line in re.split("</tr>", page)]
    assert ["other objects", "9", *(f"{at / 10:.2f}" for at in range(1, 7))] in cells
    assert ["content words, gate open", "8", *(f"{at / 10:.3f}" for at in range(1, 6))] in cells
    lines = [" ".join(line.split()) for line in draw_table(report).splitlines()]
    for line in (
        "attention 0.10 on other objects, if uniform 0.20",
        "deletion effect 0.100 nats for content words",
        "calibration error 2.5 points",
        "cross-entropy 3.250 nats per token",
        "trust words: AUROC 0.800, error 4.5 points",
        "trust captions: AUROC 0.800, error 4.5 points",
        "familiarity AUROC 0.900 against other pictures",
    ):
        assert line in lines


def test_the_best_the_median_and_the_worst_caption_have_maps() -> None:
    for cider, shown, best_and_worst in (
        ([3.0, 9.0, 1.0, 5.0, 4.0, 8.0, 2.0, 7.0, 6.0], ["9.0", "5.0", "1.0"], [*"98761234"]),
        ([1.0, 2.0], ["2.0", "1.0"], [*"21"]),
        ([1.0], ["1.0"], []),
    ):
        page = draw_page(NOTHING, rows(*cider), [Anywhere()])
        assert re.findall(r'class="looks">.*?alt="(\d\.\d)"', page, re.DOTALL) == shown
        assert re.findall(r'title="CIDEr-D">(\d)<', page) == best_and_worst


def test_the_content_words_with_the_highest_gate_have_maps(evaluated: Evaluated) -> None:
    words = ["a", "dog", "runs", "in", "red", "grass", "ball"]
    gates = torch.tensor([0.9, 0.1, 0.5, 0.99, 0.3, 0.4, 0.2, 0.0])
    (image, *_) = read_coco(evaluated.captions, str(evaluated.folder / "val"))
    for gate, chosen in (
        (gates, ["runs", "red", "grass", "ball"]), (None, ["dog", "runs", "red", "grass"]),
    ):  # fmt: skip
        caption = Captioned(
            image=image,
            hypothesis=Hypothesis([4] * 7, 0.0, torch.zeros(8), gate=gate),
            words=words,
            attention=torch.full((7, 3, 3), 1 / 9),
        )
        framing = Transform(TransformConfig(mode="crop", size=64))
        gallery = Gallery(images=[image], captioned=[caption], framing=framing)
        assert [word for word, _ in gallery.maps(0)] == chosen


def test_plots_by_hand() -> None:
    """The area of a plot goes from 52 to 406 pixels across, and from 260 up to 20."""
    bins = [{"count": 4, "confidence": 0.25, "right": 0.75}]
    ((x, y, radius, *_),) = reliability_plot(bins, title="x").dots
    assert (x, y, radius) == (52 + 354 / 4, 260 - 240 * 3 / 4, 11.5)
    points = [{"reviewed": 0.5, "found": 0.75, "by_score": 0.25, "ideal": 1.0}]
    lines = {kind: points for points, kind in review_plot(points).lines}
    heights = {kind: float(line.rpartition(",")[2]) for kind, line in lines.items()}
    # The legend calls the order of trust `before`, and that of scores `after`.
    assert heights == {"chance": 20, "curve ideal": 20, "curve before": 80, "curve after": 200}
    plot = curves_plot({"after": [(0, 0), (4, 1)]}, title="x", ends=[1, 3, 4])
    dashed = [points.split(",")[0] for points, kind in plot.lines if kind == "ideal"]
    assert dashed == ["140.5", "317.5"]  # 1 and 3 of 4 steps; the last stage ends the plot


def test_scores_on_coco_s_tokens_are_shown_if_all_models_have_them() -> None:
    plain, both = {"nltk": {"CIDEr": 50.0}}, {"nltk": {"CIDEr": 50.0}}
    both |= {"pycocoevalcap": {"CIDEr": 60.0, "human": {"CIDEr": 70.0}}}  # type: ignore[dict-item]
    model, people = main_scores(both)
    assert model is not None and people is not None
    assert (model["CIDEr"], people["CIDEr"]) == (60, 70)
    for other, cells in ((plain, ["50.0", "50.0"]), (both, ["60.0", "60.0"])):
        compared = {**both, "comparisons": [{"report": other}]}
        assert dict(side_by_side(compared)) == {"CIDEr": cells}


def test_a_negative_loss_stays_in_the_plot() -> None:
    """Rewards without cross-entropy have losses below 0."""
    plot = curves_plot({"before": [(1, -0.2), (2, -0.5), (3, 0.1)]}, title="x", ends=[3])
    heights = [float(point.split(",")[1]) for point in plot.lines[0][0].split()]
    assert plot.y is not None and all(20 <= one <= plot.height - 40 for one in heights)


def test_equal_scores_and_missing_numbers_are_shown() -> None:
    """Captions without words all score 0; one image has no interval."""
    plot = histogram([0.0, 0.0], title="x", name="CIDEr-D", bins=24)
    assert [text for *_, text in plot.bars] == ["2 captions: 0 to 0"] and len(plot.x.marks()) > 1
    part = Part({"auroc": float("nan"), "intervals": {"auroc": [None, None]}})
    assert part.text("auroc") == "–"
    numbers = {"auroc": math.nan, "intervals": {"auroc": [math.nan, (math.inf, 1.5)]}}
    assert as_json(numbers) == {"auroc": None, "intervals": {"auroc": [None, [None, 1.5]]}}
