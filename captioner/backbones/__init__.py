"""Networks for the encoder."""
