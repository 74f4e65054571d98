"""Bad uploads: each gets a status and a message, and the server keeps running."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.captioner.pictures import png
from tests.serving.server.conftest import SAMPLES, Server
from tests.serving.server.running import until
from tests.serving.server.test_limits import connect

PHOTO = (SAMPLES / "rocket.jpg").read_bytes()
BOUNDARY = "frontier"
MULTIPART = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def part(data: bytes, *, name: str = "image", filename: str = "x.jpg", extra: str = "") -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"'
    return f"{head}\r\n{extra}\r\n".encode() + data + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()

IMAGES: dict[str, tuple[bytes, int]] = {
    "truncated JPEG": (PHOTO[: len(PHOTO) // 3], 422),
    "bomb of 30,000 x 30,000": (png(30_000, 30_000), 422),
    "bomb of zeros": (png(9_999, 10_000, b"\0" * 50_000_000), 422),
    "text": (b"I am a photo, honestly", 415),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"><image href="/etc/passwd"/></svg>', 415),
    "HEIC that is cut off": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64), 422),
    "executable": (b"\x7fELF" + bytes(200), 415),
    "FITS of a kind that Pillow knows": (b"SIMPLE  =                    T", 415),
    "WebP that lies about its length": (b"RIFF\xff\xff\xff\x7fWEBPVP8 " + bytes(20), 422),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_a_bad_image_gets_its_status_and_a_sentence(api: httpx.Client, kind: str) -> None:
    data, status = IMAGES[kind]
    answer = api.post("/api/caption", files={"image": ("photo.jpg", data)})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.json()["detail"].split()) > 3
    assert "Traceback" not in answer.text


def test_no_file_of_the_name_of_an_upload_is_opened_or_written(server: Server) -> None:
    polyglot = PHOTO + b"<script>alert(1)</script>PK\x03\x04"
    names = ["../../etc/passwd", "/etc/passwd", "a" * 3000, "\u202egpj.exe", "%00.jpg"]
    with server.client() as client:
        answer = client.post("/api/caption", files=[("image", (name, polyglot)) for name in names])
    assert len(answer.json()["records"]) == len(names)
    assert all(record["image"] and record["words"] for record in answer.json()["records"])
    assert server.uploads() == []  # nothing is written


def field(name: str, value: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
    return head.encode() + value + b"\r\n"


TYPE = MULTIPART["Content-Type"]
# Bodies, types and statuses.
BODIES: dict[str, tuple[bytes, str | None, int]] = {
    "no multipart": (PHOTO, "text/plain", 415),
    "JSON": (b'{"image": "/etc/passwd"}', "application/json", 415),
    "no boundary": (b"x", "multipart/form-data", 400),
    "only an end": (END, TYPE, 400),
    "no image": (field("beam_size", b"5") + END, TYPE, 400),
    "a path in place of a file": (field("image", b"/etc/passwd") + END, TYPE, 400),
    "a URL": (field("image_url", b"https://example.org/a.jpg") + END, TYPE, 403),
    "a field given twice": (part(PHOTO) + field("beam_size", b"1") * 2 + END, TYPE, 400),
    "1,000 parts": (part(b"x") * 1000 + END, TYPE, 413),
    "1,000 fields": (b"".join(field(f"f{i}", b"1") for i in range(1000)) + END, TYPE, 400),
    "a part with a huge header": (
        part(PHOTO, extra="X-Big: " + "x" * 1_000_000 + "\r\n") + END, TYPE, 400,
    ),
    "a field of a megabyte": (field("beam_size", b"5" * 2_000_000) + END, TYPE, 413),
    "a field in a charset that takes hours": (
        field("beam_size-", b"-" + b"b" * 900_000) + END, f"{TYPE}; charset=punycode", 400,
    ),
    "a name in no charset": (
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; name=image; "
        "filename*=none''x\r\n\r\n".encode() + PHOTO + b"\r\n" + END, TYPE, 400,
    ),
    "a type without end": (END, f'{TYPE}; x="{";" * 50_000}', 400),
    "too large": (part(bytes(21_000_000)) + END, TYPE, 413),
    "too large together": (part(bytes(10_500_000)) * 2 + END, TYPE, 413),
}  # fmt: skip


# Starlette leaves the file of an unfinished part open until it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", BODIES)
def test_a_bad_request_gets_its_status_and_a_sentence(api: httpx.Client, kind: str) -> None:
    body, media_type, status = BODIES[kind]
    headers = {} if media_type is None else {"Content-Type": media_type}
    answer = api.post("/api/caption", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.json()["detail"].split()) > 3


def test_too_much_is_refused_before_it_is_sent(server: Server) -> None:
    head = "POST /api/caption HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000000000\r\n"
    with connect(server.url, f"{head}Content-Type: {TYPE}\r\n\r\n".encode()) as peer:
        assert b" 413 " in peer.recv(4096).split(b"\r\n")[0]

    def endless():
        yield part(b"")[:-2]
        for _ in range(1000):
            yield bytes(1_000_000)

    with server.client() as client:
        try:
            answer = client.post("/api/caption", content=endless(), headers=MULTIPART)
        except httpx.NetworkError:
            return  # the answer came, and the connection was closed, while we were still sending
        assert answer.status_code == 413


def test_headers_without_end_are_refused(server: Server) -> None:
    with connect(server.url, b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000 + b"\r\n\r\n") as peer:
        assert b" 400 " in peer.recv(4096).split(b"\r\n")[0]


def test_control_characters_in_paths_are_escaped(server: Server) -> None:
    with server.client() as client:
        assert client.get("/%1b%5b31mred%0acaptioner:").status_code == 404
    said = server.said(0, r"\\x1b\[31mred\\ncaptioner:")
    assert "\x1b" not in said and said.count(r"\x1b[31mred\ncaptioner:") == 1


def resident(server: Server) -> int:
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc for memory")
@pytest.mark.slow
def test_memory_is_released_after_bad_uploads(server: Server) -> None:
    heavy = [part(IMAGES[kind][0]) + END for kind in ("bomb of zeros", "truncated JPEG")]
    heavy += [part(bytes(19_000_000)) + END, BODIES["too large"][0]]
    with server.client() as client:

        def storm() -> None:
            for body in heavy:
                client.post("/api/caption", content=body, headers=MULTIPART)

        for _ in range(2):
            storm()
        before = resident(server)
        for _ in range(4):
            storm()
        # In kB. Four decoded bombs would be 1,600 MB, four kept uploads 80 MB and as much again.
        assert until(lambda: resident(server) - before < 60_000)
        assert client.get("/api/health").status_code == 200
