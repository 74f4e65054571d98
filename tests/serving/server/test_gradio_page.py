"""The internal parts of Gradio that the product uses, in the installed version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import gradio as gr
import pytest
from fastapi import FastAPI

from captioner_serving.server import gradio_page
from tests.serving.server.conftest import run_async


@pytest.fixture
def blocks() -> gr.Blocks:
    async def build() -> gr.Blocks:  # in a loop, or Gradio makes one and leaves it open
        with gr.Blocks(analytics_enabled=False) as made:
            gr.Button().click(
                lambda value: value, gr.Number(), gr.Number(), api_name=gradio_page.ENDPOINT
            )
        made.queue()
        return made

    return run_async(build())


def test_settings_of_blocks_have_their_names(blocks: gr.Blocks) -> None:
    assert blocks.has_launched is False  # otherwise paths would be checked without us
    gradio_page.check_paths(blocks)
    assert blocks.has_launched is True
    assert isinstance(blocks.state_session_capacity, int)
    gradio_page.limit_sessions(blocks)
    assert hasattr(blocks, "delete_cache")
    gradio_page.delete_uploads(blocks, seconds=540)
    assert blocks.delete_cache == (30, 540)


def test_the_endpoint_has_an_identifier_and_its_inputs(blocks: gr.Blocks) -> None:
    identifier, count = gradio_page.endpoint_of(blocks)
    assert blocks.fns[identifier].api_name == "caption" and count == 1


def test_results_of_a_session_leave_the_queue(blocks: gr.Blocks) -> None:
    queue, call = cast(Any, blocks._queue), SimpleNamespace(_id="call", alive=True)
    queue.pending_event_ids_session["mine"] = {"call"}
    queue.event_ids_to_events["call"] = call
    queue.pending_messages_per_session["mine"] = "messages"
    queue.create_event_queue_for_fn(next(iter(blocks.fns.values())))
    (waiting,) = queue.event_queue_per_concurrency_id.values()
    waiting.queue.append(call)
    assert gradio_page.has_pending_calls(blocks, "mine")
    gradio_page.drop_results(blocks, "mine")
    assert not gradio_page.has_pending_calls(blocks, "mine")
    assert not waiting.queue and not queue.event_ids_to_events and not call.alive
    assert "mine" not in queue.pending_messages_per_session


def test_streams_of_the_mounted_application_can_be_stopped(blocks: gr.Blocks) -> None:
    app = FastAPI()

    async def mount() -> None:
        gr.mount_gradio_app(app, blocks, path="", ssr_mode=False)

    run_async(mount())
    (page,) = gradio_page.applications(app)
    gradio_page.stop_streams(app)
    assert page.stop_event.is_set()


def test_the_document_has_our_preview_tags() -> None:
    gradio_page.put_preview_tags()
    environment = cast(Any, gr.routes.templates.env)
    source, _, _ = environment.loader.get_source(environment, "frontend/index.html")
    assert source.count('property="og:title"') == 1 and 'content="Captioner"' in source
