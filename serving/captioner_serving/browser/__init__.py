"""The page of an exported model, which runs in the browser."""
