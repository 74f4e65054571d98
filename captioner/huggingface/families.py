"""The supported classes of models: their image encoder, special tokens and forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from torch import Tensor, nn

_Read = tuple[Tensor, Sequence[Tensor]]


def _read_blip(model: Any, images: Tensor, tokens: Tensor, cache: Any = None) -> _Read:
    # The whole model does not return cross-attention.
    output = model.text_decoder(
        tokens, encoder_hidden_states=images.squeeze(1), cache=cache, output_attentions=True
    )
    return output.logits, output.cross_attentions


def _read_encoder_decoder(model: Any, images: Tensor, tokens: Tensor, cache: Any = None) -> _Read:
    output = model(
        pixel_values=images, decoder_input_ids=tokens, cache=cache, output_attentions=True
    )
    return output.logits, output.cross_attentions


def _read_git(model: Any, images: Tensor, tokens: Tensor, cache: Any = None) -> _Read:
    output = model(tokens, pixel_values=images, cache=cache, output_attentions=True)
    count = images.shape[2]  # one sequence: image tokens, then text
    attention = [layer[:, :, count:, :count] for layer in output.attentions]
    return output.logits[:, count:], attention


class Family(NamedTuple):
    """A class of models in transformers.

    encoder: the attribute of the image encoder.
    special: returns a model's start token and end token; the end token may be a list.
    read: takes the model, encoded images (R, 1, L', D), tokens (R, S) and a cache, or None. Returns
        the logits (R, S, V) of the next tokens, and for each layer the attention (R, H, S, L') to
        the image.
    """

    encoder: str
    special: Callable[[Any], tuple[int, Any]]
    read: Callable[..., _Read]


FAMILIES = {
    "BlipForConditionalGeneration": Family(
        "vision_model",
        attrgetter("config.text_config.bos_token_id", "config.text_config.sep_token_id"),
        _read_blip,
    ),
    "VisionEncoderDecoderModel": Family(
        "encoder",
        attrgetter("generation_config.decoder_start_token_id", "generation_config.eos_token_id"),
        _read_encoder_decoder,
    ),
    "GitForCausalLM": Family(
        "git.image_encoder", attrgetter("config.bos_token_id", "config.eos_token_id"), _read_git
    ),
}
"""The supported families, by the name of the class."""


class EncodedImages(nn.Module):
    """Replaces a model's image encoder, for images (B, 1, L', D) that are encoded already.

    They are passed to the model's `generate` as pixels, so that it does not encode an image again
    for every beam.
    """

    main_input_name = "pixel_values"

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config  # transformers compares its size with the decoder's

    def forward(self, pixel_values: Tensor, **_: Any) -> Any:
        """Return (B, L', D) as an encoder's output."""
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(last_hidden_state=pixel_values.squeeze(1))
