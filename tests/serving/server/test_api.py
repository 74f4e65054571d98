"""The API of the contract over a real socket."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image, ImageChops, ImageStat

from captioner.caption import Caption
from captioner.captioner import Captioner
from captioner_serving.server.errors import RefusedError
from captioner_serving.server.records import needs_preview, served_record
from captioner_serving.server.service import CaptionService
from tests.captioner.pictures import encode
from tests.conftest import make_heads, make_tiny, make_trust
from tests.serving.server.conftest import SAMPLES, Server
from tests.serving.server.running import serving
from tests.serving.server.test_life import metric


def jpeg(size: tuple[int, int] = (64, 48), color: str = "seagreen") -> bytes:
    return encode(Image.new("RGB", size, color), "JPEG")


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
    body = api.post("/api/caption", files={"image": ("x.jpg", b"")}).json()
    assert body["type"] == "image-empty" and body["status"] == 422 and body["detail"]
    bad = [("image", ("b.txt", b"text")), ("image", ("a.jpg", b""))]
    answer = api.post("/api/caption", files=bad)
    assert answer.status_code == 415  # of the first
    kinds = [(record["image"], record["error"]["type"]) for record in answer.json()["records"]]
    assert kinds == [("b.txt", "image-format"), ("a.jpg", "image-empty")]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"beam_size": "0", "captions": "21"},
         "or equal to 1; captions is '21': it should be less than or equal to 20"),
        ({"beam_size": "many"}, "beam_size"),
        ({"beam_size": "2", "captions": "3"}, "captions"),
        ({"attention": "perhaps"}, "attention"),
    ],
)  # fmt: skip
def test_fields_out_of_range_are_named(
    api: httpx.Client, fields: dict[str, str], named: str
) -> None:
    answer = api.post("/api/caption", files={"image": jpeg()}, data=fields)
    assert answer.status_code == 422
    assert named in answer.json()["detail"]
    for path in ("caption", "sheet"):
        answer = api.post(f"/api/{path}?{next(iter(fields))}=3", files={"image": jpeg()})
        assert answer.status_code == 400 and next(iter(fields)) in answer.json()["detail"]


def test_a_request_can_name_a_model(saved_tiny: Path) -> None:
    first, tiny = Captioner(make_heads("scaled_dot", 4)), Captioner.from_pretrained(saved_tiny)
    photo = (SAMPLES / "rocket.jpg").read_bytes()
    with serving(first, None, tiny) as url, httpx.Client(base_url=url, timeout=300) as client:

        def ask(**form: str) -> httpx.Response:
            return client.post("/api/caption", files={"image": photo}, data=form)

        assert ask().json()["records"][0]["model"]["name"] == "variant"
        (record,) = ask(model="tiny").json()["records"]
        assert record["caption"] == tiny.caption(SAMPLES / "rocket.jpg").text
        answer = ask(model="no")
        assert answer.status_code == 404 and "use variant, tiny" in answer.json()["detail"]
        assert client.get("/api/health/ready").status_code == 200
        with pytest.MonkeyPatch.context() as patch:

            def check(service: CaptionService) -> None:
                if service.captioner is tiny:
                    raise RefusedError("not-ready", "a batch is stuck")

            patch.setattr(CaptionService, "check", check)
            assert client.get("/api/health/ready").status_code == 503
        health = client.get("/api/health").json()
        assert health["status"] == "ready" and health["model"]["name"] == "variant"


def test_metrics_count_requests_batches_and_errors(server: Server) -> None:
    with server.client() as client:
        client.post("/api/caption", files={"image": jpeg()})
        before = metric(client, "captioner_captions_total")
        client.post("/api/caption", files=[("image", jpeg()), ("image", b"bad"), ("image", jpeg())])
        assert metric(client, "captioner_captions_total") == before + 2
        bad = 'captioner_errors_total{type="image-format"}'
        coded = {"images": [base64.b64encode(b"bad").decode()]}
        for path, body in {
            "/api/caption": {"files": {"image": b"bad"}},
            "/api/sheet": {"files": {"image": b"bad"}},
            "/api/generate": {"json": coded},
        }.items():
            before = metric(client, bad)
            assert client.post(path, **body).status_code == 415
            assert metric(client, bad) == before + 1
        client.post("/api/sheet", files={"photo": jpeg()})
        text = client.get("/metrics").text
        memory = re.search(r"^process_resident_memory_bytes (\S+)", text, re.MULTILINE)
        assert memory and float(memory[1]) > 1e8  # of the server, which holds torch and a model
    for line in (
        'captioner_requests_total{route="/api/caption",status="200"}',
        'captioner_requests_total{route="/api/caption",status="415"}',
        'captioner_requests_total{route="/api/sheet",status="400"}',
        "captioner_batch_images_count",
        "captioner_queue_images 0.0",
    ):
        assert line in text


def test_the_documentation_asks_no_other_host(api: httpx.Client) -> None:
    page = api.get("/docs").text
    assert "swagger-ui" in page and "https://" not in page
    schema = api.get("/openapi.json").json()
    assert {"/api/caption", "/api/overlay", "/metrics"} <= set(schema["paths"])
    body = schema["paths"]["/api/caption"]["post"]["requestBody"]["content"]
    assert set(body["multipart/form-data"]["schema"]["properties"]) == {
        "preview", "image", "image_url", "beam_size", "captions", "style", "attention",
        "check_attention", "minimum_trust", "model",
    }  # fmt: skip


PICTURES = {"overlay": "image/png", "sheet": "image/png", "animation": "image/webp"}


def recorded(client: httpx.Client, photo: bytes, **fields: str) -> dict[str, Any]:
    fields = {"attention": "true", **fields}
    answer = client.post("/api/caption", files={"image": ("a.jpg", photo)}, data=fields)
    (record,) = answer.json()["records"]
    return record


def test_what_is_doubtful_is_marked_in_every_sentence() -> None:
    def sentence(trust: float, **words: float) -> dict[str, Any]:
        said = [{"word": word, "probability": 0.5, "trust": of} for word, of in words.items()]
        return {"caption": " ".join(words), "score": -1.0, "trust": trust, "words": said}

    doubted = sentence(0.009, cats=0.1, run=0.4)
    text = {**sentence(0.3, dogs=0.9, run=0.4), "alternatives": [doubted]}
    record = served_record(Caption.from_record(text), name="a.jpg", attention=False)
    (other,) = record["alternatives"]
    assert [word.get("doubtful") for word in record["words"]] == [None, True]
    assert [word.get("doubtful") for word in other["words"]] == [True, True]
    assert "doubt" not in record and other["doubt"] == "This may be wrong: 'cats', or 'dogs'"


def test_a_caption_below_the_least_trust_is_marked(api: httpx.Client) -> None:
    captioner, photo = Captioner(make_tiny(), device="cpu", trust=make_trust()), jpeg()
    with serving(captioner) as url, httpx.Client(base_url=url, timeout=300) as client:
        plain = recorded(client, photo)
        for least in (plain["trust"], round(plain["trust"] + 1e-4, 4)):
            review = {"review": True} if least > plain["trust"] else {}
            assert recorded(client, photo, minimum_trust=str(least)) == plain | review
        odd = client.post("/api/caption", files={"image": photo}, data={"minimum_trust": "2"})
        assert odd.status_code == 422 and "minimum_trust" in odd.json()["detail"]
    none = api.post("/api/caption", files={"image": photo}, data={"minimum_trust": "0.5"})
    assert (none.status_code, none.json()["type"]) == (422, "config-error")


@pytest.mark.parametrize(
    ("kind", "count", "drawn"),
    [
        *(("JPEG", 1, False), ("AVIF", 1, False), ("WEBP", 1, False)),
        *(("TIFF", 1, True), ("GIF", 2, True), ("WEBP", 2, True), ("PNG", 2, True)),
    ],
)
def test_a_preview_is_of_what_browsers_do_not_show(
    api: httpx.Client, kind: str, count: int, drawn: bool
) -> None:
    """EXIF gives one WebP picture the container of animations."""
    (exif := Image.Exif())[0x0112] = 1
    first, *rest = (Image.new("RGB", (60, 40), color) for color in ("red", "blue")[:count])
    more = {"save_all": True, "append_images": rest} if rest else {"exif": exif}
    record = recorded(api, encode(first, kind, **more), preview="true")
    assert ("preview" in record) is drawn
    if drawn:
        preview = record["preview"]
        data = base64.b64decode(preview["image"].removeprefix("data:image/jpeg;base64,"))
        picture = Image.open(io.BytesIO(data))
        assert picture.size == (preview["width"], preview["height"]) == (60, 40)
        red, _, blue = picture.getpixel((30, 20))
        assert red > 200 > blue  # the first frame


def test_bigtiff_and_kinds_of_heif_have_previews_by_their_first_bytes() -> None:
    brands = {b"heic": True, b"mif1": True, b"avis": True, b"avif": False}
    starts = {b"\0\0\0\x18ftyp" + brand: drawn for brand, drawn in brands.items()}
    for start, drawn in (starts | {b"MM\0*": True, b"II+\0": True, b"MM\0+": True}).items():
        assert needs_preview(start + bytes(16)) is drawn, start


@pytest.mark.parametrize("kind", PICTURES)
def test_a_picture_is_of_the_caption_that_the_fields_ask_for(kind: str) -> None:
    captioner = Captioner(make_heads("scaled_dot", 4), device="cpu")
    look: dict[str, Any] = {"smooth": False, "strength": 0.5, "colors": "spotlight"}
    search = {"captions": "3", "beam_size": "4", "sentence": "2"}
    fields = {**search, **{name: str(value) for name, value in look.items()}}
    found = captioner.caption(jpeg(), captioner.generation.for_request(beam_size=4, captions=3))
    caption, count = found.choose(1), len(found.choose(1).words)
    assert caption.text != found.text
    with serving(captioner) as url, httpx.Client(base_url=url, timeout=300) as client:

        def ask(**more: Any) -> httpx.Response:
            return client.post(f"/api/{kind}", files={"image": jpeg()}, data={**fields, **more})

        answer = ask()
        assert answer.status_code == 200 and answer.headers["content-type"] == PICTURES[kind]
        drawn = Image.open(io.BytesIO(answer.content))

        def apart(wanted: Image.Image) -> list[float]:
            return ImageStat.Stat(ImageChops.difference(drawn.convert("RGB"), wanted)).mean

        if kind == "overlay":
            assert max(apart(caption.overlay(photo=jpeg(), labelled=True, **look))) < 0.5
            assert ask(word=count).status_code == 200
            assert ask(word=count + 1).status_code == 422
        elif kind == "animation":
            assert drawn.n_frames == count + 2
            drawn.seek(1)
            plain = caption.animation(photo=jpeg())[1]
            assert max(apart(caption.animation(photo=jpeg(), **look)[1])) < 2 < max(apart(plain))
        else:
            assert max(apart(caption.contact_sheet(photo=jpeg(), **look))) < 0.5
            assert max(apart(found.contact_sheet(photo=jpeg(), **look))) > 0.5
        assert "sentence is 4, and captions is 3" in ask(sentence="4").json()["detail"]
        for bad in ({"colors": "pink"}, {"sentence": "4"}, {"beam_size": "0"}):
            refused = ask(**bad)
            assert refused.status_code == 422 and len(refused.json()["detail"].split()) > 3
        unknown = ask(record="{}")
        assert unknown.status_code == 400 and "'record' is not a field" in unknown.json()["detail"]
