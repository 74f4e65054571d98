"""Parts of the page that are our own: static/NAME.html and NAME.css in a gr.HTML.

static/NAME.js brings it to life: a module that the browser imports, and calls with the element and
its props.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

__all__ = ["STATIC", "make_element", "read_static"]

STATIC = Path(__file__).parent / "static"
"""What the browser gets as it lies there, under page/static."""

# Relative to the page, which a proxy may show below a path of its own.
_IMPORT = """import(new URL("page/static/NAME.js", document.baseURI).href)
  .then((module) => module.start(element, props));"""


def read_static(name: str) -> str:
    """The text of a file beside the page."""
    return (STATIC / name).read_text(encoding="utf-8")


def make_element(name: str, value: Any, **props: Any) -> gr.HTML:
    """Make the element NAME, with its id; its script works with `props.value` and `props`."""
    return gr.HTML(
        value,
        html_template=read_static(f"{name}.html"),
        css_template=read_static(f"{name}.css"),
        js_on_load=_IMPORT.replace("NAME", name),
        apply_default_css=False,
        elem_id=name,
        **props,
    )
