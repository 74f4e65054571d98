"""Render the HTML templates of this folder."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from captioner.terminal import printable


def render(template: str, **values: object) -> str:
    """Fill in a template. Text is untrusted: all of it is escaped, except Markup."""
    environment = Environment(
        loader=PackageLoader("captioner_training", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_in_a_line,
    )
    svg = environment.get_template("plot.svg")
    environment.globals["svg"] = lambda plot: Markup(svg.render(plot=plot))
    return environment.get_template(template).render(**values)


def _in_a_line(value: object) -> object:
    """Put text on one line and make control characters visible."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(" ".join(value.split()))
    return value
