"""Pictures of a caption: overlay, contact sheet, animation, notebook sheet."""
