"""The classes of models: how each encodes an image, generates sentences and reads them again."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from captioner.errors import CheckpointFormatError

__all__ = ["Family", "class_name", "family_of"]


class Family(Protocol):
    """A model behind three methods. L' counts patches and class tokens.

    end: the token, or the tokens, that end a sentence.
    """

    model: Any
    end: int | list[int]

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode normalised pixels (B, 3, size, size) to image tokens (B, L', D)."""

    def generate(self, features: Tensor, **settings: Any) -> Tensor:
        """Generate token ids (B * K, 1 + T), which begin with the start token."""

    def read(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Read sentences (R, S) of R images.

        Returns the logits (R, S, V) of the next tokens, and for each layer the attention
        (R, H, S, L') to the image tokens.
        """


class Blip:
    """BLIP: a ViT, and a BERT with cross-attention."""

    def __init__(self, model: Any) -> None:
        self.model, self.text = model, model.config.text_config
        self.end: int | list[int] = self.text.sep_token_id

    def encode(self, pixels: Tensor) -> Tensor:
        """See Family."""
        features: Tensor = self.model.vision_model(pixels).last_hidden_state
        return features

    def generate(self, features: Tensor, **settings: Any) -> Tensor:
        """See Family; as BlipForConditionalGeneration.generate does after its encoder."""
        start = torch.full((len(features), 1), self.text.bos_token_id, device=features.device)
        tokens: Tensor = self.model.text_decoder.generate(
            input_ids=start,
            attention_mask=torch.ones_like(start),
            encoder_hidden_states=features,
            encoder_attention_mask=torch.ones(features.shape[:-1], device=features.device).long(),
            eos_token_id=self.end,
            pad_token_id=self.text.pad_token_id,
            **settings,
        )
        return tokens

    def read(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """See Family."""
        output = self.model.text_decoder(
            tokens, encoder_hidden_states=features, output_attentions=True
        )
        return output.logits, output.cross_attentions


class VisionEncoderDecoder:
    """Any image encoder with any decoder that has cross-attention, such as ViT-GPT2."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.end: int | list[int] = model.generation_config.eos_token_id
        # Other implementations of attention do not return the weights.
        model.decoder.set_attn_implementation("eager")

    def encode(self, pixels: Tensor) -> Tensor:
        """See Family."""
        features: Tensor = self.model.encoder(pixels).last_hidden_state
        return features

    def generate(self, features: Tensor, **settings: Any) -> Tensor:
        """See Family."""
        tokens: Tensor = self.model.generate(encoder_outputs=_encoded(features), **settings)
        return tokens

    def read(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """See Family."""
        output = self.model(
            encoder_outputs=_encoded(features), decoder_input_ids=tokens, output_attentions=True
        )
        return output.logits, output.cross_attentions


class Git:
    """GIT: one sequence of image tokens and text tokens, without cross-attention."""

    def __init__(self, model: Any) -> None:
        if model.config.num_image_with_embedding is not None:
            raise CheckpointFormatError("it is a GIT model for videos, which are not supported.")
        self.model, self.end = model, model.config.eos_token_id
        self.encoder = model.git.image_encoder
        # `generate` would encode the image again for each beam.
        model.git.image_encoder = _Passthrough()

    def encode(self, pixels: Tensor) -> Tensor:
        """See Family."""
        features: Tensor = self.encoder(pixels).last_hidden_state
        return features

    def generate(self, features: Tensor, **settings: Any) -> Tensor:
        """See Family."""
        tokens: Tensor = self.model.generate(pixel_values=features.unsqueeze(1), **settings)
        return tokens

    def read(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """See Family."""
        output = self.model(tokens, pixel_values=features.unsqueeze(1), output_attentions=True)
        count = features.shape[1]
        attention = [layer[:, :, count:, :count] for layer in output.attentions]
        return output.logits[:, count:], attention


class _Passthrough(nn.Module):
    """Replaces GIT's image encoder: returns encoded images (B, 1, L', D) as they are."""

    def forward(self, features: Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=features.squeeze(1))


def _encoded(features: Tensor) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=features)


_FAMILIES: dict[str, tuple[str, type[Blip | VisionEncoderDecoder | Git]]] = {
    "blip": ("BlipForConditionalGeneration", Blip),
    "vision-encoder-decoder": ("VisionEncoderDecoderModel", VisionEncoderDecoder),
    "git": ("GitForCausalLM", Git),
}


def class_name(config: Any) -> str:
    """Name transformers' class for a configuration.

    Raises CheckpointFormatError: models of this class do not caption, or are not supported.
    """
    names = {kind: name for kind, (name, _) in _FAMILIES.items()}
    expected = names.get(config.model_type)
    actual: str = (config.architectures or [expected or config.model_type])[0]
    if actual != expected:
        raise CheckpointFormatError(
            f"it is a {actual} model; supported are {', '.join(names.values())}."
        )
    return actual


def family_of(model: Any) -> Family:
    """Wrap a model of transformers, which is changed."""
    return _FAMILIES[model.config.model_type][1](model)
