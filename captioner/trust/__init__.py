"""How far words and captions can be trusted, and which sentence of a beam is chosen."""
