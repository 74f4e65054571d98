"""Archives with wrong headers: an error affects only the member or the archive."""

from __future__ import annotations

import os
import random
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from captioner import ImageError, ImageNotFoundError
from captioner_serving.batch.inputs.archives import archive_photos
from captioner_serving.batch.inputs.photos import LostPhoto, Photo
from captioner_serving.batch.inputs.sources import Inputs
from tests.captioner.pictures import encode
from tests.captioner.test_fuzz import mutated


def jpeg(colour: str = "red") -> bytes:
    return encode(Image.new("RGB", (8, 8), colour), "JPEG")


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


def tar_of(folder: Path, *parts: bytes) -> Path:
    path = folder / "a.tar"
    path.write_bytes(b"".join(parts) + bytes(1024))
    return path


def zip_of(path: Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def photos(path: Path) -> list[Photo]:
    tracemalloc.start()
    try:
        found = list(archive_photos(str(path)))
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
    "link of 8 GB": header("x", (1 << 33) - 1, tarfile.GNUTYPE_LONGLINK),
    "global header of 8 GB": header("x", (1 << 33) - 1, tarfile.XGLTYPE),
    "header of Solaris of 8 GB": header("x", (1 << 33) - 1, tarfile.SOLARIS_XHDTYPE),
    "no header": b"\xff" * 512,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_damaged_header_is_an_error_of_the_archive(tmp_path: Path, kind: str) -> None:
    path = tar_of(tmp_path, member("good.jpg", jpeg()), BROKEN[kind], member("next.jpg", jpeg()))
    found = photos(path)
    assert found[0].name == f"{path}/good.jpg" and found[0].read() == jpeg()
    for reason in lost(found):
        assert str(path) in reason and reason.endswith((": copy it again", ": unpack it first"))


def test_what_is_no_file_is_no_photo(tmp_path: Path) -> None:
    """Nor are hidden files, and what macOS adds."""
    names = (".jpg", ".a/b.jpg", "__MACOSX/c.jpg", "notes.txt", "./d/e.JPG")
    album, pipe = header("album.jpg", kind=tarfile.DIRTYPE), header("p.jpg", kind=tarfile.FIFOTYPE)
    members = [member(name, jpeg()) for name in names]
    path = tar_of(tmp_path, album, pipe, *members)
    assert [photo.name for photo in photos(path)] == [f"{path}/./d/e.JPG"]


def test_an_archive_that_is_gone_is_named(tmp_path: Path) -> None:
    path = tar_of(tmp_path, member("a.jpg", jpeg()))
    (photo,) = photos(path)
    path.unlink()
    with pytest.raises(ImageNotFoundError, match=rf"{path}/a\.jpg .*No such file"):
        photo.read()
    (reason,) = lost(photos(path))
    assert reason.startswith(f"{path} cannot be read to its end (No such file")
    for suffix in (".tar", ".zip"):  # and a pipe does not block
        os.mkfifo(tmp_path / f"pipe{suffix}")
        (reason,) = lost(photos(tmp_path / f"pipe{suffix}"))
        assert "it is not a regular file" in reason


def test_a_sparse_member_is_not_read(tmp_path: Path) -> None:
    path = tar_of(tmp_path, sparse(1 << 32), member("a.jpg", jpeg()))
    hole, photo = photos(path)
    assert f"{path}/hole.jpg is a sparse file" in lost([hole])[0]
    assert photo.read() == jpeg()


def test_archives_are_known_by_their_suffix(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.ZIP", ("a.jpg", jpeg()))
    inputs = Inputs(sources=(str(path),))
    assert [photo.name for photo in inputs.photos()] == [f"{path}/a.jpg"]
    assert inputs.countable and inputs.without_folder() == str(path)
    for suffix in (".tgz", ".Tar.GZ", ".tar.bz2", ".tbz2", ".tar.xz", ".txz"):
        (reason,) = lost(list(Inputs(sources=(f"a{suffix}",)).photos()))
        assert f"a{suffix} is a compressed tar file: unpack it first" in reason


@pytest.mark.parametrize("suffix", [".tar", ".zip"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_large_archive_is_read_to_its_end_and_members_of_one_name_are_numbered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """The limit in bytes is that of small archives: photos hardly compress."""
    largest = max(len(jpeg(colour)) for colour in ("red", "blue", "lime"))
    monkeypatch.setattr("captioner_serving.batch.inputs.archives._LARGEST_DEFLATED", largest)
    pictures = [jpeg(colour) for colour in ("red", "blue", "lime")]
    members = [("a.jpg", picture) for picture in pictures]
    if suffix == ".zip":
        path = zip_of(tmp_path / "a.zip", *members)
    else:
        path = tar_of(tmp_path, *(member(*pair) for pair in members))
    found = photos(path)
    assert [photo.name for photo in found] == [f"{path}/a.jpg{end}" for end in ("", "#2", "#3")]
    assert [photo.read() for photo in found] == pictures


HALF = bytes(1 << 19)


def test_a_member_of_a_zip_file_is_measured_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("captioner_serving.batch.inputs.archives._LARGEST_DEFLATED", 1 << 16)
    large = ("zeros.jpg", bytes((1 << 16) + 1))
    found = photos(zip_of(tmp_path / "a.zip", large, ("next.jpg", jpeg())))
    assert "zeros.jpg has 65,537 bytes; the limit in an archive is 65,536" in lost(found)[0]
    assert found[1].read() == jpeg()
    stored = photos(zip_of(tmp_path / "b.zip", large, method=zipfile.ZIP_STORED))
    assert stored[0].read() == large[1]  # it takes no more than its bytes, as in a .tar


def test_an_encrypted_member_of_a_zip_file_is_named(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.zip", ("a.jpg", jpeg()))
    data = bytearray(path.read_bytes())
    for magic, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(magic) + flags] |= 1
    path.write_bytes(data)
    with pytest.raises(ImageNotFoundError, match=r"a\.jpg is encrypted: unpack the archive first"):
        photos(path)[0].read()


@pytest.mark.parametrize("overlapping", [False, True])
def test_a_zip_file_that_unpacks_to_a_thousand_times_its_size_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlapping: bool
) -> None:
    monkeypatch.setattr("captioner_serving.batch.inputs.archives._LARGEST_DEFLATED", 1 << 20)
    zeros = [(f"{number}.jpg", HALF) for number in range(6)]
    path = zip_of(tmp_path / "a.zip", *zeros[: 1 if overlapping else 6])
    if overlapping:  # six members that are all the first
        with zipfile.ZipFile(path, "a") as archive:
            archive.filelist *= 6
            archive._didModify = True  # type: ignore[attr-defined]
    *read, rest = photos(path)
    assert len(read) == 2
    assert overlapping or read[0].read() == HALF  # zipfile may refuse what overlaps
    assert lost([rest]) == [
        f"{path} cannot be read to its end (it unpacks to more than 1,048,576 bytes): copy it again"
    ]


def test_no_more_of_a_member_is_unpacked_than_it_claims(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.zip", ("liar.jpg", bytes(1 << 26)), ("next.jpg", jpeg()))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2") + 24
    data[at : at + 4] = (1000).to_bytes(4, "little")
    path.write_bytes(data)
    liar, photo = photos(path)
    tracemalloc.start()
    try:
        with pytest.raises(ImageNotFoundError, match=r"liar\.jpg cannot be read \(Bad CRC-32"):
            liar.read()
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
    assert photo.read() == jpeg()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_unpacks_without_a_bound_is_named(tmp_path: Path, method: int) -> None:
    """Forty bytes of bzip2 are 46 MB of zeros, and zipfile takes them all at once."""
    path = zip_of(tmp_path / "a.zip", ("a.jpg", jpeg()), method=method)
    (reason,) = lost(photos(path))
    assert reason.startswith(f"{path}/a.jpg has compression method {method}")


@pytest.mark.parametrize("suffix", [".tar", ".zip"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_mutated_archives_end_in_photos_or_errors(tmp_path: Path, suffix: str) -> None:
    """Each error names the archive. Headers have right checksums, so that lies are believed."""
    chance, sound = random.Random(1), 0
    members = [(name, jpeg()) for name in ("a.jpg", "b/ü.jpg", "long" * 20 + ".jpg", "c.jpg")]
    path = zip_of(tmp_path / "a.zip", *members)
    if suffix == ".tar":
        path = tar_of(tmp_path, *(member(*pair) for pair in members))
    for number, data in enumerate([path.read_bytes()] * 40):
        way = chance.choice((1, -1))  # the directory of a zip file is at its end
        new = bytearray(mutated(data[::way], chance)[::way])
        for at in range(0, len(new) - 511, 512):
            if new[at + 257 : at + 262] == b"ustar":
                new[at + 148 : at + 156] = b" " * 8
                new[at + 148 : at + 156] = b"%06o\0 " % sum(new[at : at + 512])
        (path := tmp_path / f"{number}{suffix}").write_bytes(new)
        for photo in photos(path):
            try:
                sound += len(photo.read()) > 0
            except ImageError as error:
                assert str(path) in str(error)
    assert sound > 40


def test_damaged_archives_cost_what_is_behind_the_damage(tmp_path: Path) -> None:
    path = tar_of(tmp_path, *(member(f"{number}.jpg", jpeg()) for number in range(6)))
    path.write_bytes(path.read_bytes()[: 3 * len(member("0.jpg", jpeg())) + 600])
    (tmp_path / "b.zip").write_bytes(b"PK\3\4 and no more")
    sound, failed = 0, []
    for photo in Inputs(sources=(str(path), f"{tmp_path}/b.zip", f"{tmp_path}/none.tar")).photos():
        try:
            sound += photo.read() == jpeg()
        except ImageError:
            failed.append(photo.name)
    assert sound == 3 and failed[0].startswith(str(path))
    assert failed[-2:] == [f"{tmp_path}/b.zip", f"{tmp_path}/none.tar"]
