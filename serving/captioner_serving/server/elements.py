"""Parts of the page that are our own: static/NAME.html, NAME.css and NAME.js in a gr.HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

__all__ = ["make_element", "read_static"]

_STATIC = Path(__file__).parent / "static"


def read_static(name: str) -> str:
    """The text of a file beside the page."""
    return (_STATIC / name).read_text(encoding="utf-8")


def make_element(name: str, value: Any, **props: Any) -> gr.HTML:
    """Make the element NAME, with its id; `value` and `props` are what its script works with."""
    return gr.HTML(
        value,
        html_template=read_static(f"{name}.html"),
        css_template=read_static(f"{name}.css"),
        js_on_load=read_static(f"{name}.js"),
        apply_default_css=False,
        elem_id=name,
        **props,
    )
