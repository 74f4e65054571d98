"""Pictures of a caption: overlay, contact sheet, animation, and what they are drawn with."""
