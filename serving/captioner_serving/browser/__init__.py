"""The page of an exported model, which captions in the browser."""
