"""Files are replaced atomically, and no command overwrites its inputs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from captioner import ConfigError, OutputError
from captioner.shared.files import new_part, refuse_input, replace_file
from captioner.shared.paths import bundled_checkpoint, checkpoint_file, there_is_no


def write(path: Path, data: bytes) -> None:
    with replace_file(path) as file:
        file.write(data)


def test_readers_find_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "captions.json"
    path.write_bytes(b"old")
    with replace_file(path) as file:
        file.write(b"ne")
        file.flush()
        assert path.read_bytes() == b"old"
        assert Path(file.name).parent == tmp_path and Path(file.name).read_bytes() == b"ne"
        file.write(b"w")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_part_that_a_crash_left_is_overwritten(tmp_path: Path) -> None:
    path, part = tmp_path / "captions.json", new_part()
    (tmp_path / part).write_bytes(b"half of an older file")
    with replace_file(path, part=part) as file:
        file.write(b"new")
        assert Path(file.name) == tmp_path / part
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: BaseException
) -> None:
    path = tmp_path / "captions.json"
    path.write_bytes(b"old")
    expected = OutputError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as raised, replace_file(path) as file:
        file.write(b"half")
        raise error
    if expected is OutputError:
        assert str(raised.value) == f"{path} cannot be written: No space left on device"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_of_the_old_file_or_the_default(tmp_path: Path) -> None:
    old, new, plain = tmp_path / "old", tmp_path / "new", tmp_path / "plain"
    old.write_bytes(b"old")
    old.chmod(0o640)
    write(old, b"new")
    write(new, b"new")
    plain.touch()
    assert old.stat().st_mode & 0o7777 == 0o640
    assert new.stat().st_mode == plain.stat().st_mode
    before = os.umask(0o027)
    try:
        write(tmp_path / "private", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "private").stat().st_mode & 0o7777 == 0o640


def test_links_are_written_through(tmp_path: Path) -> None:
    target, link = tmp_path / ("n" * 251 + ".txt"), tmp_path / "link"  # a long name fits
    target.write_bytes(b"old")
    link.symlink_to(target)
    write(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "a.txt"
    with pytest.raises(OutputError) as raised:
        write(missing, b"")
    assert str(raised.value) == f"{missing} cannot be written: No such file or directory"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for there in (tmp_path, pipe):
        with pytest.raises(OutputError, match="cannot be written: it is not a file"):
            write(there, b"")
    assert list(tmp_path.iterdir()) == [pipe]


def test_the_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, happened = tmp_path / "a.txt", []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        happened.append((Path(f"/proc/self/fd/{descriptor}").resolve().name, path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    write(path, b"new")
    (temporary, named), last = happened
    assert temporary.startswith(".captioner-") and not named
    assert last == (tmp_path.name, True)


def test_a_similar_name_is_suggested_in_any_case(tmp_path: Path) -> None:
    for name, near in (("img_12.jpg", "IMG_12.JPG"), ("SHEEP.PNG", "sheep.png")):
        (tmp_path / near).touch()
        expected = f"there is no file {tmp_path / name}, did you mean {tmp_path / near}?"
        assert there_is_no("file", tmp_path / name) == expected


def test_a_run_named_bundled_comes_before_the_bundled_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bundled").mkdir()
    assert checkpoint_file("bundled") == bundled_checkpoint()  # the folder has no checkpoint
    (tmp_path / "bundled" / "best.safetensors").touch()
    assert checkpoint_file("bundled") == Path("bundled", "best.safetensors")


def test_a_file_that_is_read_is_not_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.tar").touch()
    (tmp_path / "boxes.json").touch()
    (tmp_path / "link.json").symlink_to("boxes.json")
    read = (data, None, tmp_path / "boxes.json")
    for name in ("boxes.json", "link.json", "data/train.tar", "data/../boxes.json"):
        with pytest.raises(ConfigError, match=f"--report .*{name} would overwrite"):
            refuse_input("--report", tmp_path / name, read)
    for name in ("new.json", "data/new.json", "other/boxes.json"):
        refuse_input("--report", tmp_path / name, read)
