"""An exported model gives the captions and pictures of its checkpoint, without PyTorch.

To export one takes a quarter of a minute: what needs it is among the slow tests.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
import re
import runpy
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from captioner import Captioner, OutputError
from captioner.cli import main
from captioner.model.config import DecoderConfig
from captioner.model.model import CaptionModel, ModelConfig
from captioner.photos.open import open_image
from captioner.photos.transform import Transform, TransformConfig
from captioner.trust.trust import digest_weights, trust_file
from captioner_serving.export.folder import new_folder, write_folder
from captioner_serving.export.parity import check_parity
from tests.captioner.pictures import draw, encode, png, turned
from tests.conftest import ROOT, make_consensus, make_styled, make_tiny, make_trust
from tests.launcher import Run
from tests.node import install, run_module
from tests.refusals import check_refusals
from tests.web import hosting

if importlib.util.find_spec("onnxruntime") is None and not os.environ.get("CI"):
    pytest.skip("the extra onnx is not installed", allow_module_level=True)

Mode = Literal["squash", "crop", "pad"]

# caption.py, where neither torch nor captioner can be imported.
ALONE = """
import runpy, sys
sys.modules.update(dict.fromkeys(("torch", "captioner", "onnx")))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


# The square that the page makes of a photo in base64.
READ_SQUARE = """async ([coded, transform]) => {
    const { openPhoto, squareOf } = await import("./browser/square.js");
    const bytes = Uint8Array.from(atob(coded), (sign) => sign.charCodeAt(0));
    return [...squareOf(await openPhoto(new Blob([bytes])), transform)];
}"""


def alone(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the caption.py of a folder."""
    command = [sys.executable, "-c", ALONE, folder / "caption.py", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def saved_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with consensus, whose mean and std are not ImageNet's."""
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    tiny = make_tiny()
    # Small features, so that sentences do not depend on the rounding of a runtime.
    norms = [
        part for part in tiny.model.encoder.modules() if isinstance(part, torch.nn.BatchNorm2d)
    ]
    with torch.no_grad():
        norms[-1].weight.mul_(0.05)
        for layer in (tiny.model.decoder.deep_context, tiny.model.decoder.attention.score.score):
            layer.weight.div_(4)
    transform = replace(tiny.transform, mean=(0.3, 0.6, 0.2), std=(0.5, 0.1, 0.3))
    replace(tiny, transform=transform).save(path)
    known = make_trust(weights=digest_weights(path), consensus=make_consensus())
    steps = np.linspace(0, 1, 9).astype(np.float32)
    familiarity = replace(known.familiarity, quantiles=60 * steps, spreads=steps / 20)
    nouns = np.ones(14, np.int8)
    features = replace(known.word_features, nouns=nouns)
    known = replace(known, familiarity=familiarity, word_features=features)
    known.save(trust_file(path))
    return path


@pytest.fixture(scope="module")
def exported(saved_tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the exported tiny model."""
    folder = tmp_path_factory.mktemp("export") / "folder"
    assert main(["export", str(saved_tiny), "--to", str(folder)]) == 0
    return folder


def swapped_profile() -> bytes:
    """Make a colour profile whose red and blue are exchanged: sRGB's with two tags renamed."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    renamed = profile.replace(b"rXYZ", b"----").replace(b"bXYZ", b"rXYZ").replace(b"----", b"bXYZ")
    assert renamed != profile
    return renamed


@pytest.fixture
def photos(photo: Path, tmp_path: Path) -> list[Path]:
    """Photos of every kind of pixel that needs care: turned, profiled, transparent, deep, ..."""
    with Image.open(photo) as image:
        exif = Image.Exif()
        exif[0x0112] = 6
        image.save(tmp_path / "turned.jpg", exif=exif)
        xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF tiff:Orientation="6"/></x:xmpmeta>'
        image.save(tmp_path / "xmp.jpg", xmp=xmp)  # XMP turns nothing
        image.save(tmp_path / "profile.png", icc_profile=swapped_profile())
        image.convert("L").save(tmp_path / "grey.png")
        image.resize((1700, 2100)).save(tmp_path / "large.jpg")
        clear = image.convert("RGBA")
        clear.putalpha(image.convert("L"))
        clear.save(tmp_path / "clear.png")
    deep = np.linspace(0, 65535, 60 * 50).reshape(60, 50).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    names = (
        "turned.jpg", "xmp.jpg", "profile.png", "grey.png", "large.jpg", "clear.png", "deep.png"
    )  # fmt: skip
    return [photo, *(tmp_path / name for name in names)]


def near(one: Any, other: Any) -> None:
    """Compare records: words exactly, their numbers to the last digit that they have.

    caption.py computes no trust.
    """
    unknown = ("trust", "familiarity", "doubtful")
    one = {key: value for key, value in one.items() if key not in unknown}
    assert one.keys() == other.keys()
    for key, value in one.items():
        if key in ("words", "alternatives"):
            for pair in zip(value, other[key], strict=True):
                near(*pair)
        elif key == "attention":
            assert value["weights"] == pytest.approx(other[key]["weights"], abs=1e-4)
            assert {**value, "weights": 0} == {**other[key], "weights": 0}
        elif isinstance(value, float):
            assert value == pytest.approx(other[key], abs=2e-4, rel=1e-5)
        else:
            assert value == other[key]


@pytest.mark.slow
@pytest.mark.parametrize(("beam", "captions"), [(5, 1), (1, 1), (20, 3)])
def test_the_exported_folder_gives_the_records_of_the_command(
    exported: Path, saved_tiny: Path, photos: list[Path], run_main: Run, tmp_path: Path,
    beam: int, captions: int,
) -> None:  # fmt: skip
    folder = shutil.copytree(exported, tmp_path / "folder")
    about = json.loads((folder / "captioner.json").read_text())
    about["generation"]["beam_size"] = beam
    (folder / "captioner.json").write_text(json.dumps(about))
    common = [*photos, "--json", "--attention", "--captions", captions]
    model = ("--checkpoint", saved_tiny, "--dtype", "float32", "--beam-size", beam)
    said = run_main("caption", *model, *common)
    found = alone(folder, *common)
    assert (said.returncode, found.returncode) == (0, 0), found.stderr
    lines = zip(said.stdout.splitlines(), found.stdout.splitlines(), strict=True)
    for wanted, got in lines:
        near(json.loads(wanted), json.loads(got))


@pytest.fixture(scope="module")
def app() -> SimpleNamespace:
    """The names in the caption.py of exported folders."""
    path = ROOT / "serving" / "captioner_serving" / "export" / "app" / "caption.py"
    return SimpleNamespace(**runpy.run_path(str(path), run_name="exported"))


def without_graphs(app: SimpleNamespace, **about: Any) -> Any:
    """Make the Captioner of a caption.py, given the content of its captioner.json."""
    captioner = app.Captioner.__new__(app.Captioner)
    captioner.about = about
    return captioner


def test_caption_py_names_a_wrong_number_of_captions(app: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="captions is 0"):
        without_graphs(app).caption("a.jpg", captions=0)


def test_caption_py_turns_photos_as_exif_says(app: SimpleNamespace) -> None:
    """Other entries may have types that Pillow cannot write again."""
    captioner = without_graphs(app, transform={"resize": None, "size": 9})
    for orientation in range(1, 9):
        opened = captioner.open(io.BytesIO(turned("PNG", orientation)))
        assert opened.tobytes() == draw().tobytes(), orientation
    entries = [(0x0112, 3, 1, 6), (0x011A, 2, 4, int.from_bytes(b"72\0\0", "little"))]
    block = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + block + bytes(4)
    draw().transpose(Image.Transpose.ROTATE_90).save(file := io.BytesIO(), "PNG", exif=exif)
    assert captioner.open(file).tobytes() == draw().tobytes()


@pytest.mark.parametrize("profile, colour", [(True, (0, 0, 255)), (False, (255, 0, 0))])
def test_caption_py_shows_colours_as_their_profile_says(
    app: SimpleNamespace, profile: bool, colour: tuple[int, int, int]
) -> None:
    """A damaged profile is ignored."""
    red = Image.new("RGB", (40, 20), "red")
    icc = swapped_profile() if profile else b"no profile"
    captioner = without_graphs(app, transform={"resize": 9, "size": 9})
    opened = captioner.open(io.BytesIO(encode(red, "PNG", icc_profile=icc)))
    assert opened.size == (40, 20) and opened.getpixel((3, 3)) == pytest.approx(colour, abs=2)


BOXES = """
const [module, cases] = process.argv.slice(-2);
const { boxOf } = await import(module);
const boxes = JSON.parse(cases).map(([transform, size]) => boxOf(transform, ...size));
console.log(JSON.stringify(boxes));
"""


@pytest.mark.needs("node")
def test_squares_and_boxes_of_caption_py_and_boxes_of_the_page_are_the_library_s(
    app: SimpleNamespace, tmp_path: Path
) -> None:
    cases, boxes = [], []
    modes: tuple[Mode, ...] = ("squash", "crop", "pad")
    for mode in modes:
        resize = 72 if mode == "crop" else None
        config = TransformConfig(mode=mode, size=64, resize=resize, mean=(0.2, 0.5, 0.9))
        captioner, transform = without_graphs(app, transform=asdict(config)), Transform(config)
        for size in ((220, 150), (90, 301)):
            noise = Image.effect_noise(size, 90).convert("RGB")
            assert captioner.square(noise).tobytes() == transform.square(noise).tobytes()
            assert captioner.box(*size) == pytest.approx(transform.box(*size))
            cases.append((asdict(config), size))
            boxes.append(pytest.approx(transform.box(*size)))
    module = ROOT / "serving" / "captioner_serving" / "browser" / "static" / "square.js"
    assert json.loads(run_module(BOXES, tmp_path, module.as_uri(), json.dumps(cases))) == boxes


@pytest.mark.parametrize(
    ("tokenizer", "words", "text"),
    [
        ("words", ["a", "man", "'s", "dog"], "a man's dog"),
        ("unicode", ["a", "man", "'s", "dog"], "a man 's dog"),
        ("characters", ["狗", "和", "led", "灯"], "狗和led灯"),
        ("unicode", ["狗", "led", "tv", "灯"], "狗led tv灯"),
    ],
)
def test_caption_py_joins_words_as_their_tokenizer_splits_them(
    app: SimpleNamespace, tokenizer: str, words: list[str], text: str
) -> None:
    about = {"tokenizer": tokenizer, "styles": [], "grid": {}, "name": "other", "version": "1"}
    captioner = without_graphs(app, transform=asdict(TransformConfig(size=32)), **about)
    captioner.words = ["<pad>", "<start>", "<end>", "<unk>", *words]
    captioner.settings = {"beam_size": 1, "style": ""}
    captioner.encode = lambda _: {}
    sentence = app.Sentence(tokens=(4, 5, 6, 7, 2), logs=(-0.5,) * 4, score=-1.0)
    captioner.search = lambda *_: [sentence]
    record = captioner.caption(io.BytesIO(encode(draw(), "PNG")), attention=False)
    assert record["caption"] == text
    assert [word["word"] for word in record["words"]] == words


@pytest.mark.slow
def test_photos_that_cannot_be_read_are_named_and_no_telemetry_is_written(
    exported: Path, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime would store a device id and telemetry in the home folder."""
    (home := tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)  # captioner_serving.export sets it
    (tmp_path / "text.jpg").write_text("no photo")
    (tmp_path / "bomb.png").write_bytes(png(30_000, 30_000))  # Pillow's own error, no OSError
    bad = [tmp_path / name for name in ("text.jpg", "none.jpg", "bomb.png")]
    done = alone(exported, *bad, photo)
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 1
    assert all(path.name in done.stderr for path in bad) and "Traceback" not in done.stderr
    assert not [path for path in home.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_a_folder_that_lacks_a_file_says_so(exported: Path, photo: Path, tmp_path: Path) -> None:
    for name in ("captioner.json", "step.onnx", "trust.safetensors"):
        part = shutil.copytree(exported, tmp_path / name, ignore=shutil.ignore_patterns(name))
        done = alone(part, photo)
        assert done.returncode == 1 and name in done.stderr
        assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_graphs_take_any_number_of_photos_and_hypotheses(exported: Path) -> None:
    """Each photo of a batch gets the results that it gets alone."""
    import onnxruntime

    encoder, step = (
        onnxruntime.InferenceSession(exported / f"{name}.onnx") for name in ("encoder", "step")
    )
    chance = np.random.default_rng(0)
    pixels = chance.integers(0, 256, (4, 3, 96, 96), np.uint8)
    encoded = encoder.run(None, {"pixels": pixels})
    for at in range(4):
        for whole, part in zip(encoded, encoder.run(None, {"pixels": pixels[[at]]}), strict=True):
            assert np.allclose(whole[[at]], part, atol=1e-4)
    state = dict(zip((one.name for one in encoder.get_outputs()), encoded, strict=True))
    outputs = {one.name for one in step.get_outputs()}
    for count, beam, words in ((1, 1, 3), (5, 7, 9)):
        inputs = {
            "tokens": chance.integers(4, 9, (4, count)),
            "totals": -chance.random((4, count), np.float32),
            "forbidden": chance.integers(0, 9, (4, count, words)),
        }
        for name in (one.name for one in step.get_inputs() if one.name in state):
            repeats = count if f"next_{name}" in outputs else 1
            inputs[name] = state[name].repeat(repeats, 1) if repeats > 1 else state[name]
        whole = step.run(None, {**inputs, "beam": np.array(beam)})
        for at in range(4):
            single = {name: part[[at]] for name, part in inputs.items()}
            for one, other in zip(
                whole, step.run(None, {**single, "beam": np.array(beam)}), strict=True
            ):
                assert np.allclose(one[[at]], other, atol=1e-4)


@pytest.mark.slow
def test_inputs_and_outputs_are_listed_in_the_folder(exported: Path) -> None:
    import onnxruntime

    docs = (exported / "README.md").read_text()
    for graph in ("encoder", "step"):
        table = docs.partition(f"\n| {graph}.onnx |")[2].partition("\n\n")[0]
        rows = re.findall(r"`(\w+)` \| \(([^)]*)\) \| (\w+) \|", table)
        session = onnxruntime.InferenceSession(exported / f"{graph}.onnx")
        nodes = [*session.get_inputs(), *session.get_outputs()]
        for node, (name, shape, kind) in zip(nodes, rows, strict=True):
            assert (node.name, node.type) == (name, f"tensor({kind.replace('32', '')})")
            # A size that is free is a letter; sizes of the docs are of another checkpoint.
            sizes = filter(None, shape.split(", "))
            fixed = [isinstance(size, int) for size in node.shape]
            assert fixed == [size.isdigit() for size in sizes], name


@pytest.mark.slow
def test_the_example_in_node_prints_the_caption_of_the_command(
    exported: Path, saved_tiny: Path, tmp_path: Path, run_main: Run,
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("ONNXRUNTIME_NODE_INSTALL", "skip")  # no libraries of CUDA
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "1")
    folder = install(request.config, "onnxruntime-node@1.30.0", "sharp@0.35.5")
    example = (ROOT / "examples" / "onnx.mjs").read_text()
    photo = tmp_path / "coffee.png"  # of the encoder's size: sharp and Pillow shrink differently
    with Image.open(ROOT / "assets" / "samples" / "coffee.jpg") as sample:
        sample.resize((96, 96)).save(photo)
    printed = run_module(example, folder, str(exported), str(photo))
    done = run_main("caption", photo, "--checkpoint", saved_tiny, "--dtype", "float32")
    assert printed == done.stdout


@pytest.mark.slow
def test_another_decoder_with_heads_and_styles(tmp_path: Path, photo: Path, run_main: Run) -> None:
    other, folder = tmp_path / "other.safetensors", tmp_path / "folder"
    more = {"value_dim": 24, "encoder_layers": 2, "heads": 2, "score": "scaled_dot"}
    make_styled(with_decoder({"kind": "top_down", **more})).save(other)
    with new_folder(folder) as inside:
        write_folder(other, inside)
    common = [photo, "--json", "--attention"]
    said = run_main("caption", "--checkpoint", other, "--dtype", "float32", *common)
    wanted, got = json.loads(said.stdout), json.loads(alone(folder, *common).stdout)
    for word in wanted["words"]:
        del word["attention"]["heads"]  # their mean is told
    near(wanted, got)


def with_decoder(decoder: dict[str, Any]) -> Any:
    tiny = make_tiny()
    config = DecoderConfig(**{"embedding_dim": 16, "hidden_dim": 24, "attention_dim": 8, **decoder})
    whole = ModelConfig(encoder=tiny.model.config.encoder, decoder=config)
    model = CaptionModel(whole, vocabulary_size=len(tiny.vocabulary))
    torch.nn.init.normal_(model.decoder.embedding.weight)
    return replace(tiny, model=model.eval())


def test_what_is_refused(tmp_path: Path, run_main: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    transformer = with_decoder({"kind": "transformer", "value_dim": 24})
    transformer.save(tmp_path / "transformer.safetensors")
    refused = {
        "export hf:someone/model --to new": (1, "hf:someone/model is a Hugging Face model"),
        "export --to full": (2, "--to full is not an empty folder: name another one"),
        "export transformer.safetensors --to new": (
            1, "the decoder transformer cannot be exported, because",
        ),
        "export no.safetensors --to new": (1, "there is no checkpoint no.safetensors"),
    }  # fmt: skip
    check_refusals(run_main, refused, tmp_path)


def test_without_the_extra_it_says_how_to_install_it(
    saved_tiny: Path, tmp_path: Path, run_main: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    done = run_main("export", saved_tiny, "--to", tmp_path / "new")
    assert done.returncode == 1 and "pip install 'captioner[onnx]'" in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_an_export_with_different_captions_is_removed(exported: Path, tmp_path: Path) -> None:
    other = make_tiny()
    torch.nn.init.normal_(other.model.decoder.embedding.weight)
    other.save(tmp_path / "other.safetensors")
    with (
        pytest.raises(OutputError, match=r"differs from .*other.safetensors on coffee: '"),
        new_folder(tmp_path / "new") as folder,
    ):
        (folder / "kept.txt").write_text("not for long")
        check_parity(tmp_path / "other.safetensors", exported)
    assert not (tmp_path / "new").exists()


@pytest.fixture
def page(exported: Path, browser: Any) -> Iterator[Any]:
    """The folder on a static host, in a browser that reaches no other; it may not complain."""
    problems: list[str] = []
    with hosting(exported) as address:

        def guard(route: Any) -> None:
            inside = route.request.url.startswith((f"{address}/", "data:", "blob:"))
            if not inside:
                problems.append(route.request.url)
            (route.continue_ if inside else route.abort)()

        context = browser.new_context()
        context.set_default_timeout(120_000)
        context.route("**/*", guard)
        tab = context.new_page()
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("console", lambda said: said.type == "error" and problems.append(said.text))
        tab.goto(f"{address}/")
        tab.wait_for_selector(".captioner:not([hidden])")
        yield tab
        context.close()
    assert not problems


@pytest.mark.slow
def test_the_page_captions_in_the_browser(
    page: Any, exported: Path, saved_tiny: Path, tmp_path: Path
) -> None:
    photo = tmp_path / "noise.png"
    chance = np.random.default_rng(0)
    Image.fromarray(chance.integers(0, 256, (150, 220, 3), dtype=np.uint8)).save(photo)
    wanted = json.loads(alone(exported, photo, "--json", "--attention").stdout)
    page.set_input_files(".file", photo)
    page.wait_for_selector(".viewer[data-state=shown]:not([data-coming])")
    assert page.locator(".sentence .word").all_inner_texts() == [
        word["word"] for word in wanted["words"]
    ]
    with page.expect_download() as saved:
        page.click(".json")
    got = json.loads(Path(saved.value.path()).read_text())
    assert got["caption"] == wanted["caption"] and got["model"] == wanted["model"]
    assert got["score"] == pytest.approx(wanted["score"], abs=0.02)
    judged = Captioner.from_pretrained(saved_tiny, dtype="float32").caption(photo).record()
    for key in ("familiarity", "trust"):
        assert 0 < judged[key] < 1 and got[key] == pytest.approx(judged[key], abs=0.02)
    trusts = [word["trust"] for word in judged["words"]]
    assert [word["trust"] for word in got["words"]] == pytest.approx(trusts, abs=0.02)
    doubtful = [trust < (0.55 if at else 0.75) for at, trust in enumerate(trusts)]  # all are nouns
    assert [word.get("doubtful", False) for word in got["words"]] == doubtful
    for one, other in zip(got["words"], wanted["words"], strict=True):
        seen, expected = one["attention"], other["attention"]
        assert seen["box"] == expected["box"]
        assert seen["weights"] == pytest.approx(expected["weights"], abs=0.01)


@pytest.mark.slow
def test_the_page_makes_the_library_s_square(page: Any) -> None:
    """Orientation and profile count; two converters of colours may differ by 3."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (150, 220, 3), np.uint8))
    halves = Image.new("RGB", (64, 32), "red")
    halves.paste("lime", (0, 0, 32, 32))
    exif = Image.Exif()
    exif[0x0112] = 6
    profiled = encode(halves, "PNG", icc_profile=swapped_profile(), exif=exif)
    assert open_image(profiled).getpixel((5, 60)) == pytest.approx((0, 0, 255), abs=2)
    modes: tuple[Mode, ...] = ("squash", "crop", "pad")
    for photo, largest, mode in (
        *((encode(noise, "PNG"), 1, mode) for mode in modes),
        (profiled, 3, "squash"),
    ):
        config = TransformConfig(mode=mode, size=64, resize=72 if mode == "crop" else None)
        found = page.evaluate(READ_SQUARE, [base64.b64encode(photo).decode(), asdict(config)])
        wanted = np.asarray(Transform(config).square(open_image(photo))).transpose(2, 0, 1)
        assert np.abs(np.array(found) - wanted.flatten()).max() <= largest


@pytest.mark.slow
def test_the_page_says_what_it_cannot_read_and_loses_no_correction(
    page: Any, photo: Path, tmp_path: Path
) -> None:
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
    (tmp_path / "letter.jpg").write_text("dear")
    page.set_input_files(".file", tmp_path / "letter.jpg")
    page.wait_for_selector(".viewer[data-state=failed]")
    assert "This browser cannot read letter.jpg" in page.inner_text(".failure")
    page.set_input_files(".file", photo)
    page.wait_for_selector(".viewer[data-state=shown]")
    page.fill(".text", "Mine.")
    page.check(".decorative")
    page.set_input_files(".file", photo)
    page.wait_for_selector(".strip li:nth-child(3)[data-state=done]")
    page.click(".strip li:nth-child(2) button")
    page.uncheck(".decorative")
    assert page.input_value(".text") == "Mine."
    page.reload()
    assert asked == ["beforeunload"]
