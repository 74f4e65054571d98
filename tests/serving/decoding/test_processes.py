"""Decoding processes: crashes, limits, and isolation from other photos."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from captioner import CaptionerError, ImageFormatError
from captioner.photos.open import open_image
from captioner.photos.transform import Transform, TransformConfig
from captioner_serving.decoding.child import Line
from captioner_serving.decoding.fair_queue import Budget
from captioner_serving.decoding.photo import Decoded, EncodedPhoto, Square
from captioner_serving.decoding.pool import Reader
from tests.captioner.pictures import encode
from tests.process_tree import children

pytestmark = pytest.mark.slow

SMALL = TransformConfig(mode="crop", size=96)


class Act(EncodedPhoto):
    """A photo that does something to the process that reads it."""

    def read(self) -> bytes:
        what, _, rest = self.data.partition(b" ")
        if what == b"once":
            if not Path(os.fsdecode(rest)).exists():
                Path(os.fsdecode(rest)).touch()
                os.kill(os.getpid(), signal.SIGSEGV)
            return jpeg(7)
        if what == b"sleep":
            time.sleep(float(rest or 3600))
            return jpeg(7)
        if what == b"environment":
            raise ImageFormatError(json.dumps(dict(os.environ)))
        if what == b"answer":
            lie(rest)
        if what == b"eat":
            return bytes(1 << 40)
        os.kill(os.getpid(), int(rest))
        return b""


class Trap:
    """An object that makes a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("trap",)


def lie(what: bytes) -> None:
    """Answer as a process that a photo has taken over."""
    frame = sys._getframe()
    while not isinstance(line := frame.f_locals.get("line"), Line):
        assert frame.f_back is not None
        frame = frame.f_back
    good = json.dumps(Decoded(b"", (1, 1), bytes(3), (1, 1)).head()).encode()
    if what == b"pickle":
        line.send(pickle.dumps(Trap()))
    if what == b"32 TB":  # which the parent must not even allocate
        line.socket.sendall((1 << 45).to_bytes(8, "big"))
    if what == b"half":
        line.socket.sendall((1000).to_bytes(8, "big") + b"half")
        time.sleep(3600)
    for head, pixels in LIES.get(what, ()):
        head = head.replace(b"GOOD", good)
        line.send(len(head).to_bytes(8, "big"), head, pixels)
    time.sleep(0.02)
    os._exit(0)


def sized(shape: str, count: int) -> bytes:
    """The head of a photo whose pixels have a shape, as a process that lies answers it."""
    head = '{"content": "", "size": [1, 1], "shape": %s, "pixels": %d, "box": [0, 0, 1, 1], '
    return f'[{head % (shape, count)}"error": null}}]'.encode()


# Messages, each of JSON and pixels.
LIES = {
    b"well": ((b"[GOOD]", bytes(3)),),
    b"text": ((b"yes", b""),),
    b"list": ((b"[1]", b""),),
    b"deep": ((b"[" * 100_000, b""),),
    b"nothing": ((b"[]", b""),),
    b"two answers": ((b"[GOOD, GOOD]", bytes(6)),),
    b"room twice": ((b"9000000", b""), (b"9000000", b"")),
    b"negative room": ((b"-9000000", b""),),
    b"negative sizes": ((sized("[-1, -1]", 3), bytes(3)),),
    b"too many pixels": ((sized("[60000, 60000]", 10_800_000_000), b""),),
    b"too few": ((b"[GOOD]", bytes(2)),),
    b"too many": ((b"[GOOD]", bytes(4)),),
    b"too long": ((b"[GOOD]", bytes(1 << 21)),),
}


def jpeg(number: int, side: int = 64, *, noise: bool = False) -> bytes:
    if noise:
        image = Image.frombytes("RGB", (side, side), os.urandom(side * side * 3))
    else:
        image = Image.new("RGB", (side, side), (number * 20 % 256, 90, 160))
    return encode(image, "JPEG", quality=98)


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with Reader(SMALL, workers=2, max_pixels=2_000_000) as made:
        yield made


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes as users have them, in place of forks."""
    monkeypatch.setattr("captioner_serving.decoding.process.subprocess", subprocess)


def submit(reader: Reader, photo: EncodedPhoto) -> Future[list[Decoded]]:
    return reader.produce(photo, [Square(reader._transform)])


def decode(reader: Reader, photo: EncodedPhoto) -> Decoded:
    (decoded,) = submit(reader, photo).result(timeout=300)
    return decoded


def error_of(decoded: Decoded) -> str:
    assert decoded.error is not None
    return decoded.error["detail"]


def test_a_stream_keeps_its_order_and_ends_with_what_the_photos_raise(reader: Reader) -> None:
    """Each photo gets its own square, from the same processes."""
    decode(reader, EncodedPhoto("first.jpg", jpeg(1)))
    before, framing, names = set(children(os.getpid())), Transform(SMALL), []

    def photos() -> Iterator[EncodedPhoto]:
        for n in range(40):
            yield EncodedPhoto(str(n), jpeg(n, 1000 if n % 7 == 0 else 60 + n, noise=n % 3 == 0))
        raise CaptionerError("the list ends here")

    with pytest.raises(CaptionerError, match="the list ends here"):
        for photo, decoded in reader.stream(photos(), ahead=32):
            alone = framing.square(open_image(photo.data, at_least=framing.at_least))
            assert bytes(decoded.pixels) == alone.tobytes()
            names.append(photo.name)
    assert names == [str(n) for n in range(40)]
    assert before <= set(children(os.getpid()))


@pytest.mark.parametrize(
    ("act", "error", "place"),
    [
        (b"kill %d" % signal.SIGSEGV, "bad.jpg crashed the image decoder", 0),
        (b"answer two answers", "bad.jpg crashed the image decoder", 3),
        (b"eat", "bad.jpg needs too much memory", 7),
    ],
)
def test_a_bad_photo_of_a_stream_fails_alone(
    act: bytes, error: str, place: int, reader: Reader
) -> None:
    photos = [EncodedPhoto(str(number), jpeg(number)) for number in range(12)]
    photos[place] = Act("bad.jpg", act)
    results = list(reader.stream(iter(photos), ahead=32))  # groups of 8
    assert [photo for photo, _ in results] == photos
    for photo, decoded in results:
        if photo.name == "bad.jpg":
            assert decoded.error is not None and error in decoded.error["detail"]
        else:
            alone = decode(reader, photo)
            assert decoded == alone and decoded.error is None


def test_the_time_limit_of_a_photo_does_not_depend_on_its_neighbours() -> None:
    naps = [b"0.8", b"0.8", b"0.8", b"0.8", b"0", b"3600", b"0", b"0"]
    photos = [Act(nap.decode(), b"sleep " + nap) for nap in naps]
    with Reader(SMALL, workers=1, seconds=3.0) as reader:
        results = list(reader.stream(iter(photos), ahead=8))  # groups of 4
    assert [photo.name for photo, decoded in results if decoded.error] == ["3600"]


def test_a_stream_yields_all_photos_before_one_that_has_no_result(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("captioner_serving.decoding.process.time.sleep", lambda _: None)
    photos = [EncodedPhoto(str(number), jpeg(number)) for number in range(8)]
    photos[5] = Act("victim.jpg", b"kill %d" % signal.SIGKILL)
    names = []
    with pytest.raises(CaptionerError, match="memory is short"):
        for photo, _ in reader.stream(iter(photos), ahead=32):
            names.append(photo.name)
    assert names == ["0", "1", "2", "3", "4"]
    with pytest.raises(CaptionerError, match="memory is short"):
        decode(reader, photos[5])
    assert decode(reader, photos[0]).error is None


def test_large_photos_and_large_squares_do_not_wait_for_each_other() -> None:
    data = jpeg(0, 3000, noise=True)  # 14 MB, more than any pipe holds
    photos = (EncodedPhoto(str(number), data) for number in range(4))
    with Reader(TransformConfig(size=512), workers=2) as reader:
        lengths = {len(decoded.pixels) for _, decoded in reader.stream(photos, ahead=64)}
    assert lengths == {3 * 512 * 512}


def test_a_photo_that_takes_too_long_is_ended() -> None:
    before = set(children(os.getpid()))
    with Reader(SMALL, seconds=0.5) as reader:
        for act in (b"sleep", b"answer half"):
            error = decode(reader, Act("slow.jpg", act)).error
            assert error == {
                "type": "image-timeout",
                "title": "Decoding takes too long",
                "detail": "slow.jpg takes more than 0.5 s to decode: export it again, smaller",
            }
            assert set(children(os.getpid())) == before


def test_a_photo_that_crashes_is_tried_twice(reader: Reader, tmp_path: Path) -> None:
    mark = os.fsencode(tmp_path / "mark")
    assert decode(reader, Act("once.jpg", b"once " + mark)).error is None
    assert Path(os.fsdecode(mark)).exists()
    said = error_of(decode(reader, Act("always.jpg", b"kill %d" % signal.SIGSEGV)))
    assert "always.jpg crashed the image decoder (status -11)" in said


def test_a_process_has_no_torch_and_nothing_of_ours_in_its_environment(
    real: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(children(os.getpid()))
    monkeypatch.setenv("CAPTIONER_AUTH", "me:secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    with Reader(SMALL, workers=1, environment={"TOKEN": "for URLs"}) as reader:
        found = json.loads(error_of(decode(reader, Act("", b"environment"))))
        (process,) = set(children(os.getpid())) - before
        assert "torch" not in Path(f"/proc/{process}/maps").read_text()
    assert found.keys() <= {
        *("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PYTHONPATH", "MALLOC_ARENA_MAX")
    }


def test_an_answer_of_a_process_cannot_run_code(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for what in (b"pickle", b"32 TB", *LIES):
        photo = Act(what.decode(), b"answer " + what)
        decoded = decode(reader, photo)
        if what == b"well":
            assert decoded.pixels == bytes(3)  # the control: an honest answer
        else:
            assert decoded.error and "crashed the image decoder" in decoded.error["detail"], what
        assert not any(tmp_path.iterdir()), what
        following = decode(reader, EncodedPhoto("next.jpg", jpeg(1)))
        assert following.error is None, what


def test_large_photos_are_decoded_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[int] = []
    most: list[int] = []
    data = jpeg(0, 2500)

    class Watched(Budget):
        @contextmanager
        def hold(self, amount: int) -> Iterator[None]:
            with super().hold(amount):
                under_way.append(amount)
                most.append(sum(under_way))
                yield
                under_way.pop()

    monkeypatch.setattr("captioner_serving.decoding.pool.Budget", Watched)
    with Reader(SMALL, workers=3, budget=7_000_000) as reader:
        futures = [submit(reader, EncodedPhoto(str(number), data)) for number in range(9)]
        assert all(future.result(timeout=300)[0].error is None for future in futures)
        streamed = reader.stream((EncodedPhoto(str(number), data) for number in range(9)), ahead=24)
        assert all(decoded.error is None for _, decoded in streamed)
    assert most == [6_250_000] * 18


def test_a_process_that_cannot_start_says_why(
    real: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "captioner.py").write_text("import nothing_of_this_name")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with Reader(SMALL, workers=1) as reader:
        future = submit(reader, EncodedPhoto("innocent.jpg", jpeg(1)))
        with pytest.raises(CaptionerError, match=r"cannot start: .*No module named"):
            future.result(timeout=300)


def test_a_reader_ends_at_once_and_leaves_no_process() -> None:
    before = set(children(os.getpid()))
    with Reader(SMALL, workers=2, seconds=3600) as reader:
        decode(reader, EncodedPhoto("first.jpg", jpeg(1)))
        slow = [submit(reader, Act(str(number), b"sleep")) for number in range(4)]
        while len(set(children(os.getpid())) - before) < 2:
            time.sleep(0.01)
    assert set(children(os.getpid())) <= before
    for future in slow:
        with pytest.raises(CaptionerError, match="the reader is closed"):
            future.result(timeout=300)
    with pytest.raises(CaptionerError, match="the reader is closed"):
        submit(reader, EncodedPhoto("late.jpg", jpeg(1)))
