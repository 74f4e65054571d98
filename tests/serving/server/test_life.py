"""Starting, being busy, being left, and stopping."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from PIL import Image

from tests.captioner.pictures import encode
from tests.serving.server.conftest import Server
from tests.serving.server.running import until

pytestmark = pytest.mark.slow


def photos(count: int) -> list[tuple[str, tuple[str, bytes]]]:
    photo = encode(Image.new("RGB", (64, 48), "olive"), "JPEG")
    return [("image", (f"{i}.jpg", photo)) for i in range(count)]


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def busy(client: httpx.Client) -> None:
    """Wait until photos are on their way through the model."""
    done = metric(client, "captioner_batch_images_sum")
    assert until(
        lambda: (
            metric(client, "captioner_queue_images")
            or metric(client, "captioner_batch_images_sum") > done
        )
    )


def test_a_signal_finishes_what_was_accepted_and_ends_well(
    start: Callable[..., Server], saved_tiny: Path, tmp_path: Path
) -> None:
    (other := tmp_path / "other.safetensors").write_bytes(saved_tiny.read_bytes())
    server = start("--checkpoint", saved_tiny, "--checkpoint", other, "--max-batch", 2)
    answers: list[httpx.Response] = []

    def send() -> None:
        with server.client() as client:
            answers.append(client.post("/api/caption", files=photos(60), data={"beam_size": "20"}))

    with server.client() as client:
        for name in (str(saved_tiny), str(other)):
            answer = client.post("/api/caption", files=photos(1), data={"model": name})
            assert answer.json()["records"][0]["model"]["name"] == name
            assert client.get(f"/v1/models/{name}").json()["id"] == name
        # Its open connection, which browsers keep too, must not keep the server.
        thread = threading.Thread(target=send)
        thread.start()
        busy(client)
        assert server.stop() == 0
        thread.join()
    assert answers[0].status_code == 200
    assert all("caption" in record for record in answers[0].json()["records"])
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url, timeout=300)
    assert not any("Traceback" in line for line in server.lines)
    assert any("finishing accepted requests" in line for line in server.lines)


def test_a_second_signal_stops_at_once_and_says_so(start: Callable[..., Server]) -> None:
    server = start("--max-batch", 2, "--queue", 512)

    answers: list[httpx.Response] = []

    def send() -> None:
        with server.client() as client, suppress(httpx.HTTPError):
            answers.append(client.post("/api/caption", files=photos(400), data={"beam_size": "20"}))

    thread = threading.Thread(target=send)
    with server.client() as client:
        thread.start()
        busy(client)
    server.process.send_signal(signal.SIGINT)
    server.said(0, "finishing accepted requests")
    assert server.stop(signal.SIGINT) == 1
    thread.join()
    server.said(0, "stopped; requests cut off: 1$")
    assert [answer.json()["type"] for answer in answers] == ["closing"]
    assert not any("Traceback" in line or "Error" in line for line in server.lines)
