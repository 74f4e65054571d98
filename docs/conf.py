"""Sphinx configuration of the site: `make docs`."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from captioner import __version__
from captioner.cli import VERBS, main
from captioner_training.commands.prepare import KINDS

# The source folder is the repository, so that links work on the site and in the repository.
root_doc = "docs/index"
include_patterns = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/*.md"]
include_patterns += ["assets/MODEL_CARD.md", "tests/README.md"]
exclude_patterns = [".*", "build", "dist", "runs"]  # not searched

project = "Captioner"
author = "the Captioner authors"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
default_role = "code"  # `name` in docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True}
toc_object_entries_show_parents = "hide"
highlight_language = "text"

NAVIGATION = {  # title and page
    "Begin": {"Install, first photo": "/README", "The bundled model": "/assets/MODEL_CARD"},
    "Caption": {
        "One photo": "records",
        "Many photos": "batch",
        "Sidecars": "sidecars",
        "Trust": "trust",
    },
    "Serve": {
        "The page": "page",
        "The HTTP API": "api",
        "Ollama and OpenAI": "protocols",
        "Run a server": "serving",
        "Without PyTorch": "export",
    },
    "Train": {
        "Prepare data": "data",
        "Train": "training",
        "Evaluate": "evaluation",
        "Hugging Face": "huggingface",
    },
    "Learn": {
        "Attention": "attention",
        "Exercises": "exercises",
        "Results": "results",
        "Performance": "performance",
    },
    "Look up": {
        "All options": "commands",
        "Python": "python",
        "Design": "design",
        "Contributing": "/CONTRIBUTING",
        "Tests": "/tests/README",
        "Security": "/SECURITY",
        "Changelog": "/CHANGELOG",
    },
}

html_theme = "furo"
html_title = f"Captioner {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False


class CommandHelp(SphinxDirective):
    """The output of `--help` of all verbs, a section for each."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        os.environ["COLUMNS"] = "88"
        pages = []
        for words in [*VERBS, *(f"prepare {kind}" for kind in (*KINDS, "coco"))]:
            text = io.StringIO()
            with redirect_stdout(text), suppress(SystemExit):
                main([*words.split(), "--help"])
            pages.append(f"## captioner {words}\n\n```text\n{text.getvalue()}```\n")
        return self.parse_text_to_nodes("\n".join(pages), allow_section_headings=True)


def _add_navigation(_: Sphinx, document: str, source: list[str]) -> None:
    if document == root_doc:
        for caption, pages in NAVIGATION.items():
            lines = "\n".join(f"{title} <{page}>" for title, page in pages.items())
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"


_attributes: dict[str, list[str]] = {}


def _keep(_: Sphinx, what: str, name: str, *event: Any) -> None:
    if what == "attribute":
        _attributes[name] = [*event[-1]]  # the docstring's lines


def _restore(_: Sphinx, what: str, name: str, *event: Any) -> None:
    """Undo napoleon's change of attributes: it takes the text before a colon for a type."""
    if what == "attribute":
        event[-1][:] = _attributes[name]


def _write_start(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        page = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
        (Path(app.outdir) / "index.html").write_text(page)


def setup(app: Sphinx) -> None:
    """Add the directive, the navigation, and a first page that leads to docs/index.html."""
    app.connect("source-read", _add_navigation)
    app.add_directive("command-help", CommandHelp)
    app.connect("autodoc-process-docstring", _keep, priority=400)
    app.connect("autodoc-process-docstring", _restore, priority=600)
    app.connect("build-finished", _write_start)
