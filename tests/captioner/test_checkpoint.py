"""Checkpoints: saving, loading, and errors of damaged files."""

from __future__ import annotations

import json
import pickle
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from captioner import (
    Captioner,
    CheckpointError,
    CheckpointFormatError,
    CheckpointMismatchError,
    CheckpointVersionError,
    GenerationConfig,
    OutputError,
)
from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.model.config import DecoderConfig
from captioner.model.model import CaptionModel
from captioner.vocabulary import Vocabulary
from tests.conftest import rewrite_header


def test_a_saved_checkpoint_is_loaded_unchanged(
    tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path, metrics = tmp_path / "best.safetensors", {"CIDEr": 52.5}
    words = tiny_checkpoint.vocabulary.ordinary_words
    vocabulary = Vocabulary(words, tokenizer="unicode", lowercase=False)
    checkpoint = replace(tiny_checkpoint, version="7", metrics=metrics, vocabulary=vocabulary)
    checkpoint.save(path, dtype=torch.float32)
    loaded = load_checkpoint(tmp_path)  # of the run in this folder
    assert loaded.vocabulary.ordinary_words == words
    assert loaded.vocabulary.tokenize("Der Fährmann, »müde«") == ["Der", "Fährmann", "müde"]
    assert loaded.transform == tiny_checkpoint.transform
    assert loaded.model.config == tiny_checkpoint.model.config
    assert (loaded.name, loaded.version, loaded.metrics) == ("tiny", "7", metrics)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_loaded_model_does_not_change_with_its_file(
    tiny_checkpoint: Checkpoint, tmp_path: Path, dtype: torch.dtype
) -> None:
    """The file may be overwritten while the model runs."""
    path = tmp_path / "tiny.safetensors"
    tiny_checkpoint.save(path, dtype=dtype)
    model = load_checkpoint(path).model
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    for name, tensor in tiny_checkpoint.model.state_dict().items():
        expected = tensor.to(dtype).to(tensor.dtype) if tensor.ndim > 1 else tensor
        assert torch.equal(model.state_dict()[name], expected), name


def test_half_precision_applies_to_matrices_of_floats_only(
    tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    stage = tiny_checkpoint.model.encoder.stages[0]
    stage[1].running_var.fill_(1e6)  # type: ignore[index,union-attr]
    path = tmp_path / "model.safetensors"
    stage.register_buffer("indices", torch.arange(70_000).reshape(2, -1))  # as in maxvit_t
    tiny_checkpoint.save(path)
    with safe_open(path, "pt") as file:
        for name, dtype in (
            ("decoder.embedding.weight", "F16"),
            ("encoder.stages.0.1.running_var", "F32"),
            ("encoder.stages.0.indices", "I64"),
        ):
            assert file.get_slice(name).get_dtype() == dtype
    del stage.indices
    tiny_checkpoint.save(path)
    loaded = load_checkpoint(path)
    assert loaded.model.encoder.stages[0][1].running_var[0] == 1e6  # type: ignore[index,union-attr]
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}


def test_truncated_files_and_other_formats_are_refused(tiny_file: Path, tmp_path: Path) -> None:
    path, whole = tmp_path / "foreign", tiny_file.read_bytes()
    cut = [whole[: int(len(whole) * share)] for share in (0.0, 0.001, 0.999)]
    for metadata, reason in (
        (None, "no Captioner configuration"),
        ({"captioner": "[" * 100_000}, "foreign cannot be read: maximum recursion"),
    ):
        save_file({"weight": torch.zeros(2)}, path, metadata=metadata)
        with pytest.raises(CheckpointFormatError, match=reason):
            load_checkpoint(path)
    torch.save({"weight": torch.zeros(2)}, zipped := tmp_path / "zipped")
    pickles = [pickle.dumps({"weight": [0.0]}, protocol=protocol) for protocol in (2, 3, 4)]
    for data, reason in (
        *((data, "foreign is cut off, damaged or") for data in cut),
        *((data, "pickle") for data in (zipped.read_bytes(), *pickles)),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        (b"just some text, long enough to be read as a header length", "damaged or not a safe"),
    ):
        path.write_bytes(data)
        with pytest.raises(CheckpointFormatError, match=reason):
            load_checkpoint(path)
    with pytest.raises(CheckpointFormatError, match="this command needs a Captioner checkpoint"):
        load_checkpoint("hf:user/model")


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_other_format_versions_are_refused(tiny_file: Path, version: object) -> None:
    rewrite_header(tiny_file, lambda document: document.update(format_version=version))
    with pytest.raises(CheckpointVersionError, match=f"format {version!r}.*reads format 1"):
        load_checkpoint(tiny_file)


def test_tensors_of_other_shapes_are_refused(tiny_file: Path) -> None:
    rewrite_header(tiny_file, lambda document: document["decoder"].update(hidden_dim=25))
    with pytest.raises(CheckpointMismatchError, match=r"initial_hidden.*\(24, 576\).*\(25, 576\)"):
        load_checkpoint(tiny_file)
    rewrite_header(tiny_file, lambda document: document["decoder"].update(hidden_dim=24))
    rewrite_header(tiny_file, lambda document: document["vocabulary"].pop())
    with pytest.raises(CheckpointMismatchError, match=r"embedding.*\(14, 16\) .* \(13, 16\)"):
        load_checkpoint(tiny_file)


def test_older_headers_without_a_kind_of_decoder_load(tiny_file: Path) -> None:
    """Older headers repeat sizes of vocabulary and encoder, and only describe the LSTM."""

    def age(document: dict[str, Any]) -> None:
        assert document["decoder"].pop("kind") == "lstm"
        document["decoder"].update(vocabulary_size=14, grid_dim=576)

    expected = load_checkpoint(tiny_file).model
    rewrite_header(tiny_file, age)
    loaded = load_checkpoint(tiny_file).model
    assert loaded.config == expected.config
    assert loaded.state_dict().keys() == expected.state_dict().keys()


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("vocabulary"),
        lambda document: document["encoder"].update(name="resnet99"),
        lambda document: document["encoder"].update(last_stage=40),
        lambda document: document["decoder"].update(invention=1),
        lambda document: document["decoder"].update(hidden_dim="many"),
        lambda document: document["decoder"].update(embedding_dim=10**19),
        lambda document: document["decoder"].update(kind="transformer", layers=10**6),
        lambda document: document["generation"].update(sample=True, captions=10**6),
        lambda document: document["transform"].update(size=20_000),
        lambda document: document.update(transform=None),
        lambda document: document.update(name="\x1b[2Jtiny"),
        lambda document: document.update(version="\ud800"),
        lambda document: document["vocabulary"].__setitem__(0, 7),
        lambda document: document.update(styles=["\ud800", "a"]),
        lambda document: document["generation"].update(style="loud"),  # which it does not have
    ],
)
def test_headers_with_invalid_settings_are_refused(
    tiny_file: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    rewrite_header(tiny_file, change)
    with pytest.raises(CheckpointFormatError, match=r"tiny\.safetensors has a header"):
        load_checkpoint(tiny_file)


A, B = "encoder.stages.0.1.num_batches_tracked", "encoder.stages.0.1.weight"


@pytest.mark.parametrize(
    "change",
    [
        lambda head, end: head.pop(A),  # a hole
        lambda head, end: head[B].update(head[A]),  # on top of each other
        lambda head, end: head[B].update(data_offsets=[end + 10**9, end + 10**9 + 4]),
        lambda head, end: head[B].update(dtype="X9"),
        lambda head, end: head[A].update(dtype="C64"),  # 8 bytes too
        lambda head, end: head[B].update(shape=[2**62, 2**62, 4]),
        lambda head, end: head[A].update(shape=[1] * 100_000),
        lambda head, end: head.update({A: head.pop(B), B: head.pop(A)}),
        lambda head, end: head.update({f"stray {n}": empty(end) for n in range(20_000)}),
    ],
)
def test_headers_that_contradict_the_tensors_are_refused(
    tiny_file: Path, change: Callable[[dict[str, Any], int], object]
) -> None:
    data = tiny_file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    head, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    change(head, len(body))
    refuse_file(tiny_file, json.dumps(head).encode(), body)


@pytest.mark.parametrize(
    ("header", "length"),
    [
        *((b"{}", length) for length in (0, 2**62, 99_000_000)),
        *((header, None) for header in (b'{"a":' + b"[" * 200_000, b"[1]", b"\xff{}")),
    ],
)
def test_headers_that_do_not_list_tensors_are_refused(
    tiny_file: Path, header: bytes, length: int | None
) -> None:
    refuse_file(tiny_file, header, b"", length=length)


def empty(end: int) -> dict[str, Any]:
    """A tensor of nothing, at the end of a file."""
    return {"dtype": "U8", "shape": [0], "data_offsets": [end, end]}


def refuse_file(path: Path, header: bytes, body: bytes, *, length: int | None = None) -> None:
    """In a sentence, and at once."""
    length = len(header) if length is None else length
    path.write_bytes(struct.pack("<Q", length) + header + body)
    began = time.process_time()
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint(path)
    assert str(path) in str(refused.value) and len(str(refused.value)) < 600
    assert time.process_time() - began < 10  # and not minutes


def test_a_failed_save_keeps_the_old_file(
    tiny_checkpoint: Checkpoint, tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OutputError, match=r"missing.*cannot be written"):
        tiny_checkpoint.save(tiny_file.parent / "missing" / "model.safetensors")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    before = tiny_file.read_bytes()
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        tiny_checkpoint.save(tiny_file)
    assert tiny_file.read_bytes() == before
    assert list(tiny_file.parent.iterdir()) == [tiny_file]


def test_generation_settings_are_stored_in_the_checkpoint(
    tiny_checkpoint: Checkpoint, photo: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    generation = GenerationConfig(beam_size=2, no_repeat_ngram=0, maximum_length=3)
    replace(tiny_checkpoint, generation=generation).save(path)
    captioner = Captioner.from_pretrained(path)
    assert captioner.generation == generation
    own = captioner.caption(photo)
    assert len(own.words) <= 3
    assert own.text == captioner.caption(photo, generation).text
    longer = replace(generation, minimum_length=6, maximum_length=9)
    assert len(captioner.caption(photo, longer).words) >= 6
    assert len(captioner.caption(photo, beam_size=3).words) <= 3  # one setting is changed

    # As files were before.
    old = {"exact": True, "different_around": "or"}
    rewrite_header(path, lambda document: document["generation"].update(old))
    rewrite_header(path, lambda document: document["generation"].pop("no_repeat_around"))
    assert load_checkpoint(path).generation == replace(generation, no_repeat_around="or")
    for name in ("generation", "tokenizer", "lowercase", "styles"):
        rewrite_header(path, lambda document, name=name: document.pop(name))
    old = load_checkpoint(path)
    assert old.generation == GenerationConfig() and old.vocabulary.style() is None
    assert old.vocabulary.tokenize("A Dog's") == ["a", "dog", "'s"]
    rewrite_header(path, lambda document: document.update(generation={"beam_size": 0}))
    with pytest.raises(CheckpointFormatError, match="beam_size 0"):
        load_checkpoint(path)


def test_the_fingerprint_differs_with_the_transform_and_the_order_of_words(
    tiny_checkpoint: Checkpoint,
) -> None:
    vocabulary = tiny_checkpoint.vocabulary
    others = (
        replace(tiny_checkpoint, transform=replace(tiny_checkpoint.transform, mode="pad")),
        replace(tiny_checkpoint, vocabulary=Vocabulary(vocabulary.ordinary_words[::-1])),
        replace(tiny_checkpoint, name="another", version="2"),
    )
    same = [other.fingerprint() == tiny_checkpoint.fingerprint() for other in others]
    assert same == [False, False, True]


# Parts of names, and what files of 0.2 and before have in their place.
OLD_NAMES = {
    "transformer": {
        "grid_layers.position_projection": "grid_layers.place",
        "grid_layers.input_projection": "grid_layers.enter",
        "decoder.position_projection": "decoder.place_word",
        "decoder.word_projection": "decoder.enter_word",
        "decoder.grid_projection": "decoder.enter_grid",
        "self_attention": "read",
        "cross_attention": "look",
        "feed_forward": "think",
    },
    "top_down": {
        "attention_lstm_": "look_",
        "language_lstm_attention": "speak_look",
        "language_lstm_": "speak_",
    },
}


@pytest.mark.parametrize("kind", ["transformer", "top_down"])
def test_tensors_with_the_names_of_older_versions_are_loaded(
    kind: str, tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    more = {} if kind == "top_down" else {"encoder_layers": 1, "layers": 1}
    decoder = DecoderConfig(kind=kind, positions="binary", hidden_dim=8, value_dim=8, **more)
    config = replace(tiny_checkpoint.model.config, decoder=decoder)
    encoder, words = tiny_checkpoint.model.encoder, len(tiny_checkpoint.vocabulary)
    model = CaptionModel(config, vocabulary_size=words, encoder=encoder)
    path = tmp_path / "old.safetensors"
    replace(tiny_checkpoint, model=model).save(path, dtype=torch.float32)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for part, old in OLD_NAMES[kind].items():
        assert any(part in name for name in tensors)
        tensors = {name.replace(part, old): tensor for name, tensor in tensors.items()}
    save_file(tensors, path, metadata)
    loaded = load_checkpoint(path).model.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded[name], tensor), name
