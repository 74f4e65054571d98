"""The choice of a style, which the page has for models that know several."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from captioner.bundled import bundled_checkpoint
from captioner.checkpoint import load_checkpoint
from tests.conftest import make_styled
from tests.serving.server.conftest import Server, serve
from tests.serving.server.page.conftest import Visit


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the bundled model, in which two styles were put."""
    folder = tmp_path_factory.mktemp("styles")
    make_styled(load_checkpoint(bundled_checkpoint())).save(folder / "styled.safetensors")
    with serve(folder / "files", "--checkpoint", folder / "styled.safetensors") as running:
        yield running


def style_of(visit: Visit) -> str:
    with visit.tab.expect_download() as download:
        visit.tab.click(".json")
    return json.loads(Path(download.value.path()).read_text())["style"]


def test_a_style_is_chosen_and_kept(visit: Visit) -> None:
    tab = visit.tab
    assert style_of(visit) == "long"  # the first is the usual one
    tab.click("text=Search settings")
    style = tab.get_by_label("Style")
    assert style.input_value() == "long"
    assert style.locator("option").all_inner_texts() == ["long", "short"]
    visit.forget()
    style.select_option("short")
    visit.settled()
    assert style_of(visit) == "short"
    visit.forget()
    tab.click("[data-sample=chelsea]")
    visit.settled()
    assert style_of(visit) == "short"
    visit.forget()
    tab.reload()
    visit.settled()
    tab.click("text=Search settings")
    assert tab.get_by_label("Style").input_value() == "short" == style_of(visit)


def test_a_style_that_is_not_known_is_refused(server: Server) -> None:
    with server.client() as client:
        client.get("/")
        fields: dict[str, Any] = {"sample": (None, "coffee"), "style": (None, "loud")}
        answer = client.post("/page/captions", files=fields)
    error = json.loads(answer.text.splitlines()[-1])["error"]
    assert error["type"] == "config-error" and "no style 'loud'" in error["detail"]
