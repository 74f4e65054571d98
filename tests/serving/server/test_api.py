"""The API of the contract over a real socket."""

from __future__ import annotations

import io
import json
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from PIL import Image

from captioner.checkpoint import Checkpoint
from captioner.predictor import Captioner
from tests.serving.server.conftest import SAMPLES, Server


def jpeg(size: tuple[int, int] = (64, 48), color: str = "seagreen") -> bytes:
    Image.new("RGB", size, color).save(buffer := io.BytesIO(), "JPEG")
    return buffer.getvalue()


def test_one_image_gets_the_record_of_the_command_line(api: httpx.Client, saved_tiny: Path) -> None:
    photo = SAMPLES / "coffee.jpg"
    fields = {"beam_size": "3", "captions": "2", "attention": "true"}
    answer = api.post(
        "/api/caption", files={"image": (photo.name, photo.read_bytes())}, data=fields
    )
    assert answer.status_code == 200
    (record,) = answer.json()["records"]
    captioner = Captioner.from_pretrained(saved_tiny)
    config = replace(captioner.generation, beam_size=3, captions=2)
    expected = captioner.caption(photo, config).record(attention=True)
    assert record == {**expected, "image": "coffee.jpg"}


def test_many_images_come_back_in_order_and_a_bad_one_fails_alone(api: httpx.Client) -> None:
    parts = [
        ("image", ("a.jpg", jpeg(color="red"))),
        ("image", ("b.txt", b"not an image")),
        ("image", ("c.png", jpeg(color="blue"))),
    ]
    answer = api.post("/api/caption", files=parts)
    assert answer.status_code == 200
    records = answer.json()["records"]
    assert [record["image"] for record in records] == ["a.jpg", "b.txt", "c.png"]
    assert [("error" in record) for record in records] == [False, True, False]
    assert records[1]["error"]["type"] == "image-format"


@pytest.mark.needs("curl")
def test_curl_sends_what_the_documentation_says(server: Server) -> None:
    photo = SAMPLES / "rocket.jpg"
    made = subprocess.run(
        ["curl", "-sS", "-F", f"image=@{photo}", f"{server.url}/api/caption"],
        capture_output=True,
        check=True,
    )
    assert json.loads(made.stdout)["records"][0]["words"]


def test_a_failure_is_a_problem_with_status_and_remedy(api: httpx.Client) -> None:
    answer = api.post("/api/caption", files={"image": ("x.jpg", b"")})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["type"] == "image-empty" and body["status"] == 422 and body["detail"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"beam_size": "0"}, "beam_size is '0': it should be greater than or equal to 1"),
        ({"beam_size": "21"}, "beam_size is '21': it should be less than or equal to 20"),
        ({"beam_size": "many"}, "beam_size"),
        ({"beam_size": "2", "captions": "3"}, "captions"),
        ({"attention": "perhaps"}, "attention"),
    ],
)
def test_fields_out_of_range_are_named(
    api: httpx.Client, fields: dict[str, str], named: str
) -> None:
    answer = api.post("/api/caption", files={"image": jpeg()}, data=fields)
    assert answer.status_code == 422
    assert named in answer.json()["detail"]


def test_a_style_can_be_asked_for(
    start: Callable[..., Server], api: httpx.Client, styled: Checkpoint, tmp_path: Path
) -> None:
    path = tmp_path / "styled.safetensors"
    styled.save(path)
    captioner = Captioner.from_pretrained(path)
    photo = SAMPLES / "coffee.jpg"
    with start("--checkpoint", path).client() as client:
        for style in captioner.vocabulary.styles:
            answer = client.post(
                "/api/caption", files={"image": photo.read_bytes()}, data={"style": style}
            )
            (record,) = answer.json()["records"]
            expected = captioner.caption(photo, captioner.generation.asked(style=style))
            assert record["style"] == style and record["caption"] == expected.text
    answer = api.post("/api/caption", files={"image": jpeg()}, data={"style": "long"})
    assert answer.status_code == 422 and "no style 'long'" in answer.json()["detail"]


def test_health_names_the_model(api: httpx.Client) -> None:
    answer = api.get("/api/health")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ready" and answer.json()["model"]["name"] == "tiny"


def test_metrics_count_requests_batches_and_errors(server: Server) -> None:
    with server.client() as client:
        client.post("/api/caption", files={"image": jpeg()})
        client.post("/api/caption", files={"image": b"bad"})
        text = client.get("/metrics").text
    for line in (
        'captioner_requests_total{route="/api/caption",status="200"}',
        'captioner_requests_total{route="/api/caption",status="415"}',
        'captioner_errors_total{type="image-format"}',
        "captioner_batch_images_count",
        "captioner_queue_images 0.0",
    ):
        assert line in text


def test_the_documentation_asks_no_other_host(api: httpx.Client) -> None:
    page = api.get("/docs").text
    assert "swagger-ui" in page and "https://" not in page
    schema = api.get("/openapi.json").json()
    assert {"/api/caption", "/api/overlay", "/api/effect", "/metrics"} <= set(schema["paths"])
    body = schema["paths"]["/api/caption"]["post"]["requestBody"]["content"]
    assert set(body["multipart/form-data"]["schema"]["properties"]) == {
        "preview", "image", "beam_size", "captions", "style", "attention", "check_attention",
    }  # fmt: skip


def test_requests_at_the_same_moment_share_batches(server: Server) -> None:
    def count() -> tuple[float, float]:
        with server.client() as client:
            lines = dict(
                line.rsplit(" ", 1)
                for line in client.get("/metrics").text.splitlines()
                if line.startswith("captioner_batch_images_")
            )
        return (
            float(lines["captioner_batch_images_sum"]),
            float(lines["captioner_batch_images_count"]),
        )

    images, batches = count()

    def send() -> None:
        with server.client() as client:
            parts = [("image", (f"{i}.jpg", jpeg())) for i in range(8)]
            answer = client.post("/api/caption", files=parts)
            assert answer.status_code == 200 and len(answer.json()["records"]) == 8

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    more_images, more_batches = count()
    assert more_images - images == 32
    assert more_batches - batches <= 16


def test_a_file_that_is_not_there_is_a_problem_too(api: httpx.Client) -> None:
    answer = api.get("/page/static/none.js")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "no-such-route"
