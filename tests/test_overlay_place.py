"""Every front end marks the place that the model looked at, on photos of any shape and turn.

The model of tests/spots.py looks at the brightest cell of what a checkpoint that crops or pads lets
it see. Where that is on the photo is worked out in spots.py, and nowhere with the product's code.
"""

from __future__ import annotations

import base64
import io
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from captioner import Caption, Captioner
from tests.conftest import ROOT
from tests.launcher import Run
from tests.serving.server.conftest import serve
from tests.spots import CASES, Case, lit_place, make_spot_checkpoint, near, pictures_in, said_place

MODES = ("crop", "pad")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints, crop.safetensors and pad.safetensors, and each one's photos in a folder."""
    made = tmp_path_factory.mktemp("spots")
    for mode in MODES:
        make_spot_checkpoint(mode).save(made / f"{mode}.safetensors")
        (made / mode).mkdir()
    for number, case in enumerate(CASES.values()):
        (made / case.mode / f"{number}.jpg").write_bytes(case.photo)
    return made


@pytest.fixture(scope="module")
def captioners(folder: Path) -> dict[str, Captioner]:
    return {
        mode: Captioner.from_pretrained(folder / f"{mode}.safetensors", dtype="float32")
        for mode in MODES
    }


def cases_of(mode: str) -> Iterator[tuple[str, Case]]:
    """The cases of a checkpoint, each with the file name of its photo."""
    for number, case in enumerate(CASES.values()):
        if case.mode == mode:
            yield f"{number}.jpg", case


def opened(address: str) -> Image.Image:
    """The picture in a data: address."""
    return Image.open(io.BytesIO(base64.b64decode(address.partition("base64,")[2])))


def check_sheet(sheet: Image.Image, case: Case) -> None:
    _, marked = pictures_in(sheet)
    assert near(lit_place(marked, case.photo), case.at)


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def caption(captioners: dict[str, Captioner], folder: Path, case: Case) -> Caption:
    (name,) = (name for name, other in cases_of(case.mode) if other is case)
    return captioners[case.mode].caption(folder / case.mode / name)


def test_python(caption: Caption, case: Case) -> None:
    assert caption.text == "spot"
    assert near(said_place(caption.record(attention=True), case.size), case.at)
    for smooth in (True, False):
        overlay = caption.overlay("spot", smooth=smooth, photo=None if smooth else case.photo)
        assert overlay.size == case.size and near(lit_place(overlay, case.photo), case.at)
    _, frame, _ = caption.animation()
    assert near(lit_place(*pictures_in(frame), case.photo), case.at)
    check_sheet(caption.contact_sheet(), case)
    # The page of a notebook.
    _, marked = map(opened, re.findall(r'src="(data:[^"]+)"', caption._repr_html_()))
    assert near(lit_place(marked, case.photo), case.at)


@pytest.mark.parametrize("mode", MODES)
def test_command(run_main: Run, folder: Path, tmp_path: Path, mode: str) -> None:
    cases = dict(cases_of(mode))
    done = run_main(
        "caption", *(folder / mode / name for name in cases), "--json", "--attention",
        "--overlay", tmp_path / "{name}.png", "--sheet", tmp_path / "{name}-sheet.png",
        "--checkpoint", folder / f"{mode}.safetensors",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for line, (name, case) in zip(done.stdout.splitlines(), cases.items(), strict=True):
        assert near(said_place(json.loads(line), case.size), case.at)
        stem = Path(name).stem
        with Image.open(tmp_path / f"{stem}.png") as overlay:
            assert near(lit_place(overlay, case.photo), case.at)
        with Image.open(tmp_path / f"{stem}-sheet.png") as sheet:
            check_sheet(sheet, case)


@pytest.mark.parametrize("mode", MODES)
def test_overlays_of_a_batch(
    run_main: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.chdir(folder)
    output, model = tmp_path / "c.jsonl", f"{mode}.safetensors"
    done = run_main("batch", mode, "--output", output, "--attention", "--checkpoint", model)
    assert done.returncode == 0, done.stderr
    example = runpy.run_path(str(ROOT / "examples" / "overlays.py"))
    example["draw_overlays"](output, tmp_path / "overlays")
    records = map(json.loads, output.read_text().splitlines())
    for number, (record, (name, case)) in enumerate(zip(records, cases_of(mode), strict=True), 1):
        assert record["image"] == f"{mode}/{name}"
        assert near(said_place(record, case.size), case.at)
        with Image.open(tmp_path / f"overlays/{number:06}-{Path(name).stem}.png") as drawn:
            assert drawn.size == case.size and near(lit_place(drawn, case.photo), case.at)


def test_server(folder: Path, tmp_path: Path) -> None:
    both = [part for mode in MODES for part in ("--checkpoint", folder / f"{mode}.safetensors")]
    with serve(tmp_path / "server", *both) as server, server.client() as client:
        for mode in MODES:
            cases = dict(cases_of(mode))
            photos = [("image", (name, case.photo)) for name, case in cases.items()]
            form = {"attention": "true", "model": f"spot-{mode}"}
            answer = client.post("/api/caption", files=photos, data=form)
            records = answer.raise_for_status().json()["records"]
            for record, case in zip(records, cases.values(), strict=True):
                assert near(said_place(record, case.size), case.at)


@pytest.mark.parametrize("mode", MODES)
def test_report(run_main: Run, folder: Path, tmp_path: Path, mode: str) -> None:
    cases = dict(cases_of(mode))
    images = [{"id": number, "file_name": name} for number, name in enumerate(cases)]
    notes = [{"image_id": image["id"], "caption": "a spot"} for image in images]
    captions = tmp_path / "captions.json"
    captions.write_text(json.dumps({"images": images, "annotations": notes}))
    done = run_main(
        "evaluate", "--captions", captions, "--images", folder / mode, "--report", tmp_path / "r",
        "--checkpoint", folder / f"{mode}.safetensors", "--device", "cpu", "--dtype", "float32",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "r/report.html").read_text()
    place = r'<article.*?alt="(\S+)".*?src="(data:[^"]+)" alt="attention for spot"'
    looks = re.findall(place, page, re.DOTALL)
    assert len(looks) == 3
    for name, address in looks:
        assert near(lit_place(opened(address), cases[name].photo), cases[name].at)
