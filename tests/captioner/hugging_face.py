"""Hugging Face models of each class, tiny or as large as usual, with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

WORDS = [
    "a",
    "dog",
    "red",
    "ball",
    "run",
    "##ning",
    "##s",
    "on",
    "the",
    "grass",
    "two",
    "man",
    "'",
    "s",
]
SIZE, PATCH = 32, 8  # a grid of 4 x 4
_LAYERS = {
    "hidden_size": 32,
    "num_hidden_layers": 4,  # the attention is that of the last three
    "num_attention_heads": 2,
    "intermediate_size": 37,
}
_BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
_BASE_SIZE, _BASE_PATCH, _BASE_WORDS = 384, 16, 30_000


def bert_tokenizer(folder: Path, words: Sequence[str] = WORDS) -> Any:
    """Make a WordPiece tokenizer: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, then WORDS."""
    from transformers import BertTokenizer

    path = folder / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    return BertTokenizer(str(path))


def gpt2_tokenizer(words: Sequence[str] = WORDS) -> Any:
    """Make a byte-level BPE tokenizer with a word and its continuation."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    space = "\u0120"  # stands for a space in front
    tokens = [
        *(word.replace("##", "") for word in words),
        *(space + word for word in words if word[0] != "#"),
    ]
    vocabulary = dict.fromkeys(["<|end|>", *tokens])
    tokenizer = Tokenizer(models.BPE({word: at for at, word in enumerate(vocabulary)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = "<|end|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=end, eos_token=end, pad_token=end
    )


def _model(kind: str, tokenizer: Any, size: int, patch: int, layers: dict[str, int]) -> Any:
    import transformers as hf

    words, width = len(tokenizer), layers["hidden_size"]
    vision = {**layers, "image_size": size, "patch_size": patch}
    text = {**layers, "vocab_size": words, "max_position_embeddings": 64}
    special = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    if kind == "blip":
        text |= {"encoder_hidden_size": width, "sep_token_id": 3, **special}
        config = hf.BlipConfig(text_config=text, vision_config=vision, projection_dim=width)
        return hf.BlipForConditionalGeneration(config)
    if kind == "git":
        return hf.GitForCausalLM(hf.GitConfig(vision_config=vision, **text, **special))
    decoder = hf.GPT2Config(
        vocab_size=words, n_embd=width, n_layer=layers["num_hidden_layers"],
        n_head=layers["num_attention_heads"], n_positions=64,
        bos_token_id=0, eos_token_id=0, pad_token_id=0, add_cross_attention=True, is_decoder=True,
    )  # fmt: skip
    both = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        hf.ViTConfig(**vision), decoder, decoder_start_token_id=0, pad_token_id=0, eos_token_id=0
    )
    return hf.VisionEncoderDecoderModel(config=both)


def _processor(kind: str, tokenizer: Any, size: int) -> Any:
    import transformers as hf

    square = {"height": size, "width": size}
    if kind == "blip":
        return hf.BlipProcessor(hf.BlipImageProcessor(size=square), tokenizer)
    if kind == "git":
        images = hf.CLIPImageProcessor(size={"shortest_edge": size + 4}, crop_size=square)
        return hf.GitProcessor(images, tokenizer)
    return hf.ViTImageProcessor(size=square)


def save_tiny(kind: str, folder: Path, *, seed: int = 0) -> Path:
    """Save a model of the kind "blip", "git" or "vit-gpt2" with tokenizer and processor."""
    torch.manual_seed(seed)
    return _save(kind, folder, WORDS, SIZE, PATCH, _LAYERS, spread=0.4)


def save_base(kind: str, folder: Path) -> Path:
    """Save a model of the usual size, with 30,000 words."""
    words = [*WORDS, *(f"word{number}" for number in range(_BASE_WORDS))]
    return _save(kind, folder, words, _BASE_SIZE, _BASE_PATCH, _BASE, spread=0.02)


def _save(
    kind: str,
    folder: Path,
    words: Sequence[str],
    size: int,
    patch: int,
    layers: dict[str, int],
    *,
    spread: float,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    is_gpt2 = kind == "vit-gpt2"
    tokenizer = gpt2_tokenizer(words) if is_gpt2 else bert_tokenizer(folder, words)
    model = _model(kind, tokenizer, size, patch, layers)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # transformers' own start makes all tiny sentences alike
                torch.nn.init.normal_(parameter, std=spread)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _processor(kind, tokenizer, size).save_pretrained(folder)
    return folder
