"""Tiny Hugging Face models of each class, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

WORDS = ["a", "dog", "red", "ball", "run", "##ning", "##s", "on", "the", "grass", "two", "man"]
WORDS += ["'", "s"]
SIZE, PATCH = 32, 8  # a grid of 4 x 4
_LAYERS = {
    "hidden_size": 32,
    "num_hidden_layers": 4,  # the attention is that of the last three
    "num_attention_heads": 2,
    "intermediate_size": 37,
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
    tokens = [
        *(word.replace("##", "") for word in WORDS),
        *(space + word for word in WORDS if word[0] != "#"),
    ]
    vocabulary = dict.fromkeys(["<|end|>", *tokens])
    tokenizer = Tokenizer(models.BPE({word: at for at, word in enumerate(vocabulary)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = "<|end|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=end, eos_token=end, pad_token=end
    )


def _model(kind: str, tokenizer: Any) -> Any:
    import transformers as hf

    words, width = len(tokenizer), _LAYERS["hidden_size"]
    vision = {**_LAYERS, "image_size": SIZE, "patch_size": PATCH}
    text = {**_LAYERS, "vocab_size": words, "max_position_embeddings": 64}
    special = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    if kind == "blip":
        text |= {"encoder_hidden_size": width, "sep_token_id": 3, **special}
        config = hf.BlipConfig(text_config=text, vision_config=vision, projection_dim=width)
        return hf.BlipForConditionalGeneration(config)
    if kind == "git":
        return hf.GitForCausalLM(hf.GitConfig(vision_config=vision, **text, **special))
    decoder = hf.GPT2Config(
        vocab_size=words, n_embd=width, n_layer=_LAYERS["num_hidden_layers"],
        n_head=_LAYERS["num_attention_heads"], n_positions=64,
        bos_token_id=0, eos_token_id=0, pad_token_id=0, add_cross_attention=True, is_decoder=True,
    )  # fmt: skip
    both = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        hf.ViTConfig(**vision), decoder, decoder_start_token_id=0, pad_token_id=0, eos_token_id=0
    )
    return hf.VisionEncoderDecoderModel(config=both)


def _processor(kind: str, tokenizer: Any) -> Any:
    import transformers as hf

    square = {"height": SIZE, "width": SIZE}
    if kind == "blip":
        return hf.BlipProcessor(hf.BlipImageProcessor(size=square), tokenizer)
    if kind == "git":
        images = hf.CLIPImageProcessor(size={"shortest_edge": SIZE + 4}, crop_size=square)
        return hf.GitProcessor(images, tokenizer)
    return hf.ViTImageProcessor(size=square)


def save_tiny(kind: str, folder: Path, *, seed: int = 0) -> Path:
    """Save a model of the kind "blip", "git" or "vit-gpt2" with tokenizer and processor."""
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = gpt2_tokenizer() if kind == "vit-gpt2" else bert_tokenizer(folder)
    model = _model(kind, tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # transformers' own start makes all tiny sentences alike
                torch.nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _processor(kind, tokenizer).save_pretrained(folder)
    return folder
