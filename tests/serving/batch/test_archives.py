"""Archives that claim what they do not have: every failure is a member's or an archive's own."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from captioner.readers import IMAGE_SUFFIXES
from captioner_serving.batch.inputs.archives import archive_photos
from captioner_serving.batch.inputs.photos import LostPhoto, Photo


def jpeg(colour: str = "red") -> bytes:
    Image.new("RGB", (8, 8), colour).save(buffer := io.BytesIO(), "JPEG")
    return buffer.getvalue()


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def member(name: str, data: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    return header(name, len(data), kind) + data + bytes(-len(data) % 512)


def sparse(size: int) -> bytes:
    """An old GNU sparse member: nothing but a hole of so many bytes."""
    data = bytearray(header("hole.jpg", 0, tarfile.GNUTYPE_SPARSE))
    data[386:410] = b"%011o\0%011o\0" % (0, 0)
    data[483:495] = b"%011o\0" % size
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data)
    return bytes(data)


def photos(path: Path) -> list[Photo]:
    tracemalloc.start()
    try:
        found = list(archive_photos(str(path), IMAGE_SUFFIXES))
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
    return found


def lost(found: list[Photo]) -> list[str]:
    return [photo.reason for photo in found if isinstance(photo, LostPhoto)]


BROKEN = {
    "pax without length": member("x", b"no length=1\n", tarfile.XHDTYPE),
    "pax of a negative size": member("x", b"12 size=-99\n", tarfile.XHDTYPE),
    "pax of a size in words": member("x", b"13 size=many\n", tarfile.XHDTYPE),
    "pax of a huge size": member("x", b"30 size=99999999999999999999\n\n", tarfile.XHDTYPE),
    "pax of other bytes": member("x", bytes(range(256)), tarfile.XHDTYPE),
    "pax sparse": member("x", b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n", tarfile.XHDTYPE),
    "pax header of 8 GB": header("x", (1 << 33) - 1, tarfile.XHDTYPE),
    "name of 8 GB": header("x", (1 << 33) - 1, tarfile.GNUTYPE_LONGNAME),
    "no header": b"\xff" * 512,
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_damaged_header_is_an_error_of_the_archive(
    tmp_path: Path, kind: str, compressed: bool
) -> None:
    path = tmp_path / ("a.tar.gz" if compressed else "a.tar")
    data = member("good.jpg", jpeg()) + BROKEN[kind] + member("next.jpg", jpeg()) + bytes(1024)
    path.write_bytes(gzip.compress(data) if compressed else data)
    found = photos(path)
    assert found[0].name == f"{path}/good.jpg" and found[0].read() == jpeg()
    for reason in lost(found):
        assert str(path) in reason and reason.endswith((": copy it again", ": unpack it"))


@pytest.mark.parametrize("compressed", [False, True])
def test_holes_are_not_read(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / ("a.tar.gz" if compressed else "a.tar")
    data = sparse(1 << 32) + member("next.jpg", jpeg()) + bytes(1024)
    path.write_bytes(gzip.compress(data) if compressed else data)
    hole, photo = photos(path)
    assert "hole.jpg has 4,294,967,296 bytes" in lost([hole])[0]
    assert photo.read() == jpeg()


def test_a_compressed_member_is_measured_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header("zeros.jpg", 1 << 29))
        for _ in range(1 << 9):
            file.write(bytes(1 << 20))
        file.write(member("next.jpg", jpeg()) + bytes(1024))
    zeros, photo = photos(path)
    assert "zeros.jpg has 536,870,912 bytes" in lost([zeros])[0]
    assert photo.read() == jpeg()


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".zip"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_both_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    first, second = jpeg("red"), jpeg("blue")
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.jpg", first)
            archive.writestr("a.jpg", second)
    else:
        data = member("a.jpg", first) + member("a.jpg", second) + bytes(1024)
        path.write_bytes(gzip.compress(data) if suffix == ".tar.gz" else data)
    found = photos(path)
    assert [photo.name for photo in found] == [f"{path}/a.jpg", f"{path}/a.jpg#2"]
    assert [photo.read() for photo in found] == [first, second]


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".zip"])
def test_a_pipe_with_the_name_of_an_archive_holds_nothing_up(tmp_path: Path, suffix: str) -> None:
    os.mkfifo(tmp_path / f"a{suffix}")
    (reason,) = lost(photos(tmp_path / f"a{suffix}"))
    assert "it is not a regular file" in reason
