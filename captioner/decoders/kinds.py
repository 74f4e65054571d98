"""Which decoders there are; none is imported, so that a configuration is checked without torch."""

from __future__ import annotations

__all__ = ["KINDS"]

KINDS = {
    "lstm": "captioner.decoders.lstm:LSTMDecoder",
    "top_down": "captioner.decoders.top_down:TopDownDecoder",
    "transformer": "captioner.decoders.transformer:TransformerDecoder",
}
"""Where the class of each `DecoderConfig.kind` is, as MODULE:CLASS; a decoder of one's own is a row
more (docs/design.md)."""
