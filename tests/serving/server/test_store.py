"""What becomes of the page's uploads on a disk that is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from captioner_serving.server.store import UploadStore


def test_a_folder_that_somebody_has_cleared_away_is_made_again(tmp_path: Path) -> None:
    store = UploadStore(keep=60, max_bytes=10, folder=tmp_path / "store")
    store.sweep()
    kept = store.save("a.jpg", b"12345", owner="me")
    assert Path(kept).read_bytes() == b"12345"
    assert store.folder.stat().st_mode & 0o777 == 0o700


def test_what_others_put_in_its_place_is_left_alone(tmp_path: Path) -> None:
    store = UploadStore(keep=0, max_bytes=10, folder=tmp_path / "store")
    (tmp_path / "theirs").mkdir()
    holiday = tmp_path / "theirs" / "holiday.jpg"
    holiday.write_bytes(b"12345")
    os.utime(holiday, (0, 0))
    store.folder.symlink_to(tmp_path / "theirs")
    store.sweep()
    with pytest.raises(FileExistsError):
        store.save("a.jpg", b"12345", owner="me")
    assert list((tmp_path / "theirs").iterdir()) == [holiday]


def test_a_file_that_could_not_be_written_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = UploadStore(keep=60, max_bytes=10, folder=tmp_path / "store")
    store.folder.mkdir()
    kept = store.save("a.jpg", b"12345", owner="me")

    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            store.save("b.jpg", b"12345", owner="me")
    assert [path.name for path in store.folder.rglob("*.jpg")] == ["a.jpg"]
    store.save("c.jpg", b"12345", owner="me")  # for which nothing has to make way
    assert store.owns(kept, "me")
