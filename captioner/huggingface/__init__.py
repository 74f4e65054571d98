"""Hugging Face captioning models behind the interface of `Captioner`."""
