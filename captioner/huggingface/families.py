"""The classes of models: where the encoder is, how sentences begin and end, how they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from torch import Tensor, nn

from captioner.errors import CheckpointFormatError

__all__ = ["EncodedImages", "Family", "family_of"]


def _read_blip(model: Any, images: Tensor, tokens: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    # The whole model does not return cross-attention.
    output = model.text_decoder(
        tokens, encoder_hidden_states=images.squeeze(1), output_attentions=True
    )
    return output.logits, output.cross_attentions


def _read_encoder_decoder(
    model: Any, images: Tensor, tokens: Tensor
) -> tuple[Tensor, Sequence[Tensor]]:
    output = model(pixel_values=images, decoder_input_ids=tokens, output_attentions=True)
    return output.logits, output.cross_attentions


def _read_git(model: Any, images: Tensor, tokens: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    output = model(tokens, pixel_values=images, output_attentions=True)
    count = images.shape[2]  # one sequence: image tokens, then text
    attention = [layer[:, :, count:, :count] for layer in output.attentions]
    return output.logits[:, count:], attention


class Family(NamedTuple):
    """A class of transformers.

    encoder: the attribute of the image encoder.
    start, end: the tokens around a sentence; the end may be a list.
    read: takes the model, encoded images (R, 1, L', D) and tokens (R, S). Returns the logits
        (R, S, V) of the next tokens, and for each layer the attention (R, H, S, L') to the image.
    """

    name: str
    encoder: str
    start: Callable[[Any], Any]
    end: Callable[[Any], Any]
    read: Callable[[Any, Tensor, Tensor], tuple[Tensor, Sequence[Tensor]]]


_FAMILIES = {
    "blip": Family(
        "BlipForConditionalGeneration",
        "vision_model",
        attrgetter("config.text_config.bos_token_id"),
        attrgetter("config.text_config.sep_token_id"),
        _read_blip,
    ),
    "vision-encoder-decoder": Family(
        "VisionEncoderDecoderModel",
        "encoder",
        attrgetter("generation_config.decoder_start_token_id"),
        attrgetter("generation_config.eos_token_id"),
        _read_encoder_decoder,
    ),
    "git": Family(
        "GitForCausalLM",
        "git.image_encoder",
        attrgetter("config.bos_token_id"),
        attrgetter("config.eos_token_id"),
        _read_git,
    ),
}


class EncodedImages(nn.Module):
    """Replaces a model's image encoder: returns encoded images (B, 1, L', D) as they are.

    So a model's own `generate` takes them for pixels, and encodes no image twice.
    """

    main_input_name = "pixel_values"

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config  # transformers compares its size with the decoder's

    def forward(self, pixel_values: Tensor, **_: Any) -> Any:
        """Return (B, L', D) as an encoder's output."""
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(last_hidden_state=pixel_values.squeeze(1))


def family_of(config: Any) -> Family:
    """Return the class of a configuration.

    Raises CheckpointFormatError: models of this class do not caption, or are not supported.
    """
    family = _FAMILIES.get(config.model_type)
    name = (config.architectures or [family.name if family else config.model_type])[0]
    if family is None or name != family.name:
        names = ", ".join(family.name for family in _FAMILIES.values())
        raise CheckpointFormatError(f"it is a {name} model; supported are {names}.")
    if getattr(config, "num_image_with_embedding", None) is not None:
        raise CheckpointFormatError("it is a GIT model for videos, which are not supported.")
    return family
