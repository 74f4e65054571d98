"""Hugging Face models: what transformers itself generates, with attention for each word.

The models are tiny, with random weights. Expected tokens, scores and attention come from
transformers' own `generate`.
"""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import utils as hub
from PIL import Image
from safetensors.torch import load_file, save_file

from captioner import Captioner, CheckpointError
from captioner.errors import (
    CheckpointFormatError,
    ConfigError,
    ImageTooLargeError,
    MissingExtraError,
)
from captioner.huggingface.captioner import HuggingFaceCaptioner, OpenVocabulary
from captioner.trust.trust import trust_file
from tests.captioner.hugging_face import SIZE, save_tiny
from tests.conftest import make_trust
from tests.hub_server import Hub
from tests.launcher import Run

transformers: Any = import_module("transformers")

KINDS = ("blip", "vit-gpt2", "git")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {kind: save_tiny(kind, place / kind) for kind in KINDS}


@pytest.fixture(scope="module")
def captioners(folders: dict[str, Path]) -> dict[str, Any]:
    return {kind: load(folder, max_pixels=1_000_000) for kind, folder in folders.items()}


def load(folder: Path, **options: Any) -> Any:
    return Captioner.from_pretrained(f"hf:{folder}", dtype="float32", device="cpu", **options)


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def noise(count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, (count, 3, SIZE, SIZE), dtype=np.uint8)


def reference(folder: Path) -> Any:
    """Load the model as transformers' documentation does."""
    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder)
    if config.model_type == "vision-encoder-decoder":
        model.decoder.set_attn_implementation("eager")  # attention weights are asked for
    return model.eval()


def generate(folder: Path, captioner: Any, squares: Any, **settings: Any) -> Any:
    """Generate with transformers alone."""
    pixels = captioner.transform.normalize(torch.as_tensor(squares))
    return reference(folder).generate(pixel_values=pixels, return_dict_in_generate=True, **settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("beam_size", "captions"), [(1, 1), (3, 2)])
def test_sentences_and_scores_are_those_of_generate(
    kind: str, beam_size: int, captions: int, folders: dict[str, Path], captioners: dict[str, Any]
) -> None:
    captioner, squares = captioners[kind], noise(3)
    config = captioner.generation.changed(
        beam_size=beam_size,
        captions=captions,
        minimum_length=7,
        maximum_length=12,
        length_penalty=0.5,
        no_repeat_ngram=2,
    )
    generated = captioner.generate_batch(squares, config)
    said = generate(
        folders[kind], captioner, squares,
        num_beams=beam_size, num_return_sequences=captions, min_new_tokens=7, max_new_tokens=12,
        no_repeat_ngram_size=2, length_penalty=0.5 if beam_size > 1 else None, output_scores=True,
    )  # fmt: skip
    texts = captioner.tokenizer.batch_decode(said.sequences, skip_special_tokens=True)
    hypotheses = [hypothesis for beam in generated.hypotheses for hypothesis in beam]
    for hypothesis, text in zip(hypotheses, texts, strict=True):
        words = captioner.vocabulary.decode(hypothesis.tokens)
        assert "".join(words) == "".join(text.split())  # "dog" and "'s" are joined
    assert max(map(len, texts)) > 2
    if beam_size > 1:
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == pytest.approx(said.sequences_scores.tolist(), abs=1e-4)


def test_any_of_several_end_tokens_ends_a_sentence(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(folders["vit-gpt2"], folder := tmp_path / "several")
    model, pixels = reference(folder), load(folder).transform.normalize(torch.as_tensor(noise(1)))
    tokens = model.generate(pixel_values=pixels, max_new_tokens=9)[0].tolist()
    end = next(at for at in range(3, len(tokens)) if tokens[at] not in tokens[:at])
    edit_json(folder / "generation_config.json", eos_token_id=[0, tokens[end]])
    captioner = load(folder)
    config = captioner.generation.changed(beam_size=1, maximum_length=9)
    ((hypothesis,),) = captioner.generate_batch(noise(1), config).hypotheses
    text = captioner.tokenizer.decode(tokens[1:end])
    assert "".join(captioner.vocabulary.decode(hypothesis.tokens)) == "".join(text.split())


@pytest.mark.parametrize("kind", ["vit-gpt2", "git"])  # BLIP's `generate` returns none
def test_attention_is_that_of_the_steps_of_generate(
    kind: str, folders: dict[str, Path], captioners: dict[str, Any]
) -> None:
    captioner, squares = captioners[kind], noise(8)
    config = captioner.generation.changed(beam_size=1, maximum_length=6)
    beams = captioner.generate_batch(squares, config).hypotheses
    settings = {"num_beams": 1, "max_new_tokens": 6, "output_attentions": True}
    said = generate(folders[kind], captioner, squares, **settings)
    steps = said.attentions if kind == "git" else said.cross_attentions
    tokens = 1 + (SIZE // 8) ** 2  # with the class token
    compared = 0
    for image, (hypothesis,) in enumerate(beams):
        ids = said.sequences[image, 1:].tolist()
        words = captioner.tokenizer.decode(ids, skip_special_tokens=True).split()
        if len(words) != len(ids):  # sub-words, or it ended
            continue
        looks = [torch.stack(step)[1:, image, :, -1, 1:tokens].mean((0, 1)) for step in steps]
        expected = torch.stack([look / look.sum() for look in looks])
        torch.testing.assert_close(hypothesis.attention, expected, atol=1e-5, rtol=1e-4)
        compared += 1
    assert compared


def test_sub_words_become_words(
    folders: dict[str, Path], captioners: dict[str, Any], monkeypatch: Any
) -> None:
    captioner, model = captioners["blip"], reference(folders["blip"])
    ids = captioner.tokenizer("a dogs running", add_special_tokens=False)["input_ids"]
    assert len(ids) == 5  # a dog ##s run ##ning
    tokens = torch.tensor([[2, *ids, 3]])
    output = SimpleNamespace(sequences=tokens, cache=None)
    monkeypatch.setattr(captioner.model, "generate", lambda *_, **__: output)
    squares = noise(1)
    (hypotheses,) = captioner.generate_batch(squares, captioner.generation).hypotheses
    pixels = captioner.transform.normalize(torch.as_tensor(squares))
    with torch.no_grad():
        output = model(pixels, tokens[:, :-1], output_attentions=True)
        seen = model.vision_model(pixels).last_hidden_state
        crossed = model.text_decoder(
            tokens[:, :-1], encoder_hidden_states=seen, output_attentions=True
        ).cross_attentions
    logs = output.logits.log_softmax(-1)[0].gather(-1, tokens[0, 1:, None])[:, 0]
    assert captioner.vocabulary.decode(hypotheses[0].tokens) == ["a", "dogs", "running"]
    expected = [logs[0], logs[1:3].sum(), logs[3:5].sum(), logs[5]]
    torch.testing.assert_close(hypotheses[0].log_probabilities, torch.stack(expected))
    look = torch.stack(crossed[-3:])[:, 0, :, 3:5, 1:].mean((0, 1))
    look = (look / look.sum(-1, keepdim=True)).mean(0)  # run ##ning
    torch.testing.assert_close(hypotheses[0].attention[2], look)


@pytest.mark.parametrize("kind", KINDS)
def test_squares_are_those_of_the_processor(
    kind: str, folders: dict[str, Path], captioners: dict[str, Any]
) -> None:
    smooth = np.random.default_rng(1).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    photo = Image.fromarray(smooth).resize((180, 120), Image.Resampling.BICUBIC)
    processor = transformers.AutoImageProcessor.from_pretrained(folders[kind])
    wanted = processor(photo, return_tensors="pt")["pixel_values"][0]
    square = np.asarray(captioners[kind].transform.square(photo)).transpose(2, 0, 1)
    got = captioners[kind].transform.normalize(torch.as_tensor(square.copy()))
    assert (got - wanted).abs().max() < 0.06  # four of 255 levels
    assert (got - wanted).abs().mean() < 0.01
    with pytest.raises(ImageTooLargeError, match="limit of 1,000,000"):
        captioners[kind].prepare(Image.new("RGB", (1001, 1000)))


def test_the_deletion_test_replaces_the_patches_that_a_word_looked_at(
    folders: dict[str, Path], captioners: dict[str, Any]
) -> None:
    """The effect, computed again with transformers alone for the first word."""
    from captioner.deletion import attended_cells, random_cells

    captioner, squares = captioners["blip"], noise(1)
    config = captioner.generation.changed(maximum_length=5)
    generated = captioner.generate_batch(squares, config, check_attention=True)
    model = reference(folders["blip"])
    pixels = captioner.transform.normalize(torch.as_tensor(squares))
    cells = attended_cells(generated.hypotheses[0][0].attention)
    drawn = random_cells(torch.Generator().manual_seed(0), cells.sum(-1), 16)
    masks = torch.cat([cells[None], drawn])[:, 0]
    word = captioner.vocabulary.decode(generated.hypotheses[0][0].tokens)[0]
    token = captioner.tokenizer(word, add_special_tokens=False)["input_ids"][0]
    with torch.no_grad():
        seen = model.vision_model(pixels).last_hidden_state.repeat(len(masks), 1, 1)
        mean = seen[0, 1:].mean(0)
        seen[:, 1:][masks] = mean
        start = torch.full((len(masks), 1), 2)
        logits = model.text_decoder(start, encoder_hidden_states=seen).logits[:, -1]
    logs = logits.log_softmax(-1)[:, token]
    wanted = float(logs[1:].mean() - logs[0])
    assert generated.effects[0][0][0] == pytest.approx(wanted, abs=1e-4)


def test_settings_of_a_published_model_are_kept(folders: dict[str, Path], tmp_path: Path) -> None:
    """`max_length` counts the start token too."""
    shutil.copytree(folders["vit-gpt2"], folder := tmp_path / "published")
    edit_json(
        folder / "generation_config.json",
        num_beams=4, max_length=16, length_penalty=0.6, no_repeat_ngram_size=3,
    )  # fmt: skip
    own = load(folder).generation
    assert (own.beam_size, own.maximum_length) == (4, 15)
    assert (own.length_penalty, own.no_repeat_ngram) == (0.6, 3)


def test_the_fingerprint_differs_with_encoder_and_transform_and_not_with_the_dtype(
    folders: dict[str, Path], captioners: dict[str, Any], tmp_path: Path
) -> None:
    for kind, path in folders.items():
        for dtype in (torch.bfloat16, torch.float16):
            other = HuggingFaceCaptioner(str(path), device="cpu", dtype=dtype)
            assert other.fingerprint == captioners[kind].fingerprint
    shutil.copytree(folders["vit-gpt2"], folder := tmp_path / "other")
    digests = [load(folder).fingerprint]
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layernorm.bias"] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    digests.append(load(folder).fingerprint)
    edit_json(folder / "preprocessor_config.json", image_mean=[0.5, 0.5, 0.4])
    assert len({*digests, load(folder).fingerprint}) == 3


def test_words_are_scored_in_lower_case_and_without_punctuation() -> None:
    vocabulary = OpenVocabulary(())
    tokens = vocabulary.encode(["A", "(Dog's)", "ball."])
    assert vocabulary.decode(tokens) == ["A", "(Dog's)", "ball."]
    assert vocabulary.decode_plain(tokens) == ["a", "dog's", "ball"]


def test_the_command_captions(
    folders: dict[str, Path], photo: Path, run_main: Run, captioners: dict[str, Any]
) -> None:
    checkpoint = f"hf:{folders['git']}"
    done = run_main(
        "caption", "--checkpoint", checkpoint, "--dtype", "float32", photo, "--json", "--attention",
        "--beam-size", "3", "--captions", "2", "--overlay", photo.parent / "heat.png",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    expected = captioners["git"].caption(photo, beam_size=3, captions=2)
    assert record["caption"] == expected.text and len(record["alternatives"]) == 1
    attention = record["words"][0]["attention"]
    assert (attention["rows"], attention["columns"]) == (4, 4)
    assert math.fsum(attention["weights"]) == pytest.approx(1, abs=1e-4)
    assert record["model"]["name"] == "git" and record["model"]["version"] == "local"
    assert "trust" not in record or record["trust"] is None
    assert (photo.parent / "heat.png").is_file()


def lose(folder: Path, *patterns: str) -> None:
    for pattern in patterns:
        for file in folder.glob(pattern):
            file.unlink()


def lose_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["git.visual_projection.visual_projection.0.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def make_run(folder: Path) -> None:
    for step in (90, 500):
        shutil.copytree(folder, folder / f"checkpoint-{step}", ignore=lambda *_: ["checkpoint-90"])
    lose(folder, "*.*")


def save_language_model(folder: Path) -> None:
    gpt2 = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=1)
    transformers.GPT2LMHeadModel(gpt2).save_pretrained(folder)


@pytest.mark.parametrize(
    ("kind", "damage", "value"),
    [
        ("git", save_language_model, "GPT2LMHeadModel .* BlipForConditionalGeneration"),
        ("git", lambda at: (at / "model.safetensors").rename(at / "pytorch_model.bin"),
         r"no model\.safetensors"),
        ("git", lambda at: os.truncate(at / "model.safetensors", 1000), "model cannot be loaded"),
        ("git", lose_tensor, r"git\.visual_projection.* is missing"),
        ("git", lambda at: edit_json(at / "config.json", vocab_size=50), "word.* is missing"),
        ("git", lambda at: (at / "config.json").write_text("{"), r"config\.json"),
        ("vit-gpt2", lambda at: edit_json(at / "preprocessor_config.json",
                                          size={"height": 32, "width": 48}), "48.* square"),
        ("git", lambda at: lose(at, "tokenizer*", "vocab*"), "no tokenizer"),
        ("git", lambda at: lose(at, "*processor_config.json"), "save_pretrained"),
        ("git", make_run, "use hf:.*/checkpoint-500$"),
        ("git", lambda at: (at / "config.json").rename(at / "adapter_config.json"),
         "merge_and_unload"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_loaded_is_named_with_the_remedy(
    kind: str, damage: Any, value: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    damage(shutil.copytree(folders[kind], folder := tmp_path / "model"))
    with pytest.raises(CheckpointError, match=value) as refused:
        load(folder)
    assert refused.value.detail.startswith("model")


@pytest.mark.parametrize("kind", ["blip", "vit-gpt2"])
def test_attention_and_class_do_not_depend_on_the_config(
    kind: str, folders: dict[str, Path], tmp_path: Path, photo: Path, captioners: dict[str, Any]
) -> None:
    """flash attention needs a GPU and a package, and returns no weights, as sdpa."""
    shutil.copytree(folders[kind], folder := tmp_path / kind)
    settings = json.loads((folder / "config.json").read_text())
    del settings["architectures"]
    name = "flash_attention_2" if kind == "vit-gpt2" else "sdpa"
    for part in (settings, *(value for value in settings.values() if isinstance(value, dict))):
        part |= {"attn_implementation": name, "_attn_implementation": name}
    (folder / "config.json").write_text(json.dumps(settings))
    caption, expected = (model.caption(photo) for model in (load(folder), captioners[kind]))
    assert caption.text == expected.text
    for word, other in zip(caption.words, expected.words, strict=True):
        np.testing.assert_allclose(word.attention, other.attention, atol=1e-5)


def test_seeded_samples_in_threads_are_those_of_one_thread(
    captioners: dict[str, Any], photo: Path
) -> None:
    captioner = captioners["git"]

    def sample(seed: int) -> list[str]:
        caption = captioner.caption(photo, sample=True, seed=seed, captions=2, maximum_length=5)
        return [caption.text, *(other.text for other in caption.alternatives)]

    seeds = [*range(6), *range(6)]
    state = torch.get_rng_state()
    alone = [sample(seed) for seed in seeds]
    assert alone[:6] == alone[6:] and len({tuple(texts) for texts in alone}) > 3
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(sample, seeds)) == alone
    assert torch.equal(torch.get_rng_state(), state)


def test_samples_have_the_probabilities_of_the_model(captioners: dict[str, Any]) -> None:
    """1,500 first tokens, against the softmax of the model's own logits."""
    captioner, count = captioners["git"], 1500
    config = captioner.generation.changed(
        sample=True, seed=0, captions=count, temperature=1.5, top_k=5, maximum_length=1
    )
    squares = noise(1)
    sentences = captioner._generate(captioner._encode(squares), config, count)
    drawn = torch.tensor([int(sentence.tokens[1]) for sentence in sentences])
    pixels = captioner.transform.normalize(torch.as_tensor(squares))
    start = torch.tensor([[captioner.start]])
    with torch.no_grad():
        features = captioner.encoder(pixels).last_hidden_state.unsqueeze(1)
        logits = captioner.model(start, pixel_values=features).logits[0, -1] / 1.5
    best = logits.topk(5)
    shares = (drawn[:, None] == best.indices).float().mean(0)
    assert shares.sum() == 1
    torch.testing.assert_close(shares, best.values.softmax(-1), atol=0.05, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_captioner_is_copied_and_pickled(
    kind: str, captioners: dict[str, Any], photo: Path
) -> None:
    captioner = captioners[kind]
    wanted = captioner.caption(photo)
    for other in (copy.deepcopy(captioner), pickle.loads(pickle.dumps(captioner))):
        assert other.caption(photo) == wanted
        assert other.fingerprint == captioner.fingerprint


def test_loading_prints_nothing_and_restores_the_log_level_of_transformers(
    folders: dict[str, Path], photo: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logging, before = transformers.logging, transformers.logging.get_verbosity()
    had_bars = not hub.are_progress_bars_disabled()
    try:
        logging.set_verbosity(logging.INFO)
        hub.disable_progress_bars()
        capfd.readouterr()
        captioner = Captioner.from_pretrained(f"hf:{folders['git']}", device="cpu")
        assert logging.get_verbosity() == logging.INFO and logging.is_progress_bar_enabled()
        assert hub.are_progress_bars_disabled()
        logging.set_verbosity(before)
        captioner.caption(photo, beam_size=2)
        captioner.caption(photo, sample=True)
        assert capfd.readouterr().err == ""
    finally:
        logging.set_verbosity(before)
        if had_bars:
            hub.enable_progress_bars()


@pytest.mark.parametrize("architectures", [["LlamaForCausalLM"], "LlamaForCausalLM"])
def test_weights_of_other_classes_are_not_downloaded(hub: Hub, architectures: object) -> None:
    config = {"architectures": architectures}
    hub.add("user/llama", {"config.json": json.dumps(config).encode(), "model.safetensors": b""})
    with pytest.raises(CheckpointFormatError, match="user/llama: LlamaForCausalLM models are not"):
        Captioner.from_pretrained("hf:user/llama")
    assert not [request for request in hub.requests if "safetensors" in request]


def test_a_model_of_the_hub_is_downloaded_once(
    folders: dict[str, Path], captioners: dict[str, Any], hub: Hub, photo: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    hub.add("user/model", {file.name: file.read_bytes() for file in folders["git"].iterdir()})
    captioner = Captioner.from_pretrained("hf:user/model", dtype="float32", device="cpu")
    assert captioner.caption(photo).text == captioners["git"].caption(photo).text
    (commit,) = hub.repositories["user/model"].commits
    assert (captioner.name, captioner.version) == ("user/model", commit[:8])
    # Its trust lies in huggingface_hub's folder for other libraries.
    monkeypatch.setattr("huggingface_hub.constants.HF_ASSETS_CACHE", str(tmp_path / "assets"))
    trust = make_trust(grid_dim=32, weights=captioner.fingerprint)
    path = trust_file("hf:user/model")
    assert path.is_relative_to(tmp_path / "assets")
    replace(trust, words=("a", "dog", "red", "ball", "on", "the", "grass", "two", "s", "'")).save(
        path
    )
    again = Captioner.from_pretrained("hf:user/model", dtype="float32", device="cpu")
    caption = again.caption(photo)
    assert caption.text == captioner.caption(photo).text and caption.familiarity == 1
    assert all(word.trust is not None for word in caption.words)
    weights = [request for request in hub.requests if request.endswith("/model.safetensors")]
    assert len([request for request in weights if request.startswith("GET")]) == 1


def test_without_a_name_or_transformers_the_remedy_is_named(monkeypatch: Any) -> None:
    with pytest.raises(ConfigError, match="hf:OWNER/MODEL"):
        Captioner.from_pretrained("hf:")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"captioner\[huggingface\]"):
        Captioner.from_pretrained("hf:someone/model")
