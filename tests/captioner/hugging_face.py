"""Tiny Hugging Face models of each class, with random weights, saved as a folder."""

from __future__ import annotations

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
_VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 37,
    "image_size": SIZE,
    "patch_size": PATCH,
}
_TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
}


def bert_tokenizer(folder: Path) -> Any:
    """Make a WordPiece tokenizer: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, then WORDS."""
    from transformers import BertTokenizer

    path = folder / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    return BertTokenizer(str(path))


def gpt2_tokenizer() -> Any:
    """Make a byte-level BPE tokenizer with a word and its continuation."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    space = "\u0120"  # stands for a space in front
    words = [
        *(word.replace("##", "") for word in WORDS),
        *(space + word for word in WORDS if word[0] != "#"),
    ]
    vocabulary = dict.fromkeys(["<|end|>", *words])
    tokenizer = Tokenizer(models.BPE({word: at for at, word in enumerate(vocabulary)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = "<|end|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=end, eos_token=end, pad_token=end
    )


def _model(kind: str, tokenizer: Any) -> Any:
    import transformers as hf

    size = len(tokenizer)
    if kind == "blip":
        text = {
            **_TEXT,
            "vocab_size": size,
            "encoder_hidden_size": 32,
            "bos_token_id": 2,
            "eos_token_id": 3,
            "sep_token_id": 3,
            "pad_token_id": 0,
        }
        config = hf.BlipConfig(text_config=text, vision_config=_VIT, projection_dim=32)
        return hf.BlipForConditionalGeneration(config)
    if kind == "git":
        special = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
        return hf.GitForCausalLM(
            hf.GitConfig(vision_config=_VIT, vocab_size=size, **_TEXT, **special)
        )
    decoder = hf.GPT2Config(
        vocab_size=size, n_embd=32, n_layer=2, n_head=2, n_positions=64,
        bos_token_id=0, eos_token_id=0, pad_token_id=0, add_cross_attention=True, is_decoder=True,
    )  # fmt: skip
    both = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        hf.ViTConfig(**_VIT), decoder, decoder_start_token_id=0, pad_token_id=0, eos_token_id=0
    )
    return hf.VisionEncoderDecoderModel(config=both)


def _processor(kind: str, tokenizer: Any) -> Any:
    import transformers as hf

    if kind == "blip":
        square = {"height": SIZE, "width": SIZE}
        return hf.BlipProcessor(hf.BlipImageProcessor(size=square), tokenizer)
    if kind == "git":
        crop = {"height": SIZE, "width": SIZE}
        images = hf.CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size=crop)
        return hf.GitProcessor(images, tokenizer)
    return hf.ViTImageProcessor(size={"height": SIZE, "width": SIZE})


def save_tiny(kind: str, folder: Path, *, seed: int = 0) -> Path:
    """Save a model of the kind "blip", "git" or "vit-gpt2" with tokenizer and processor."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = gpt2_tokenizer() if kind == "vit-gpt2" else bert_tokenizer(folder)
    torch.manual_seed(seed)
    model = _model(kind, tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # its own start is so small that all sentences are alike
                torch.nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _processor(kind, tokenizer).save_pretrained(folder)
    return folder
