"""What a run must not write over: photos, inputs, the files of others, its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from captioner import Captioner, ConfigError, OutputError
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.files import lock

Run = Callable[..., subprocess.CompletedProcess[str]]
Photos = Callable[..., Path]
Read = Callable[[Path], list[dict[str, Any]]]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".json"])
def test_files_that_no_run_left_stay(
    tiny: Captioner, photos: Photos, tmp_path: Path, suffix: str, restart: bool
) -> None:
    folder, output = photos(2), tmp_path / f"mine{suffix}"
    output.write_text("the work of years\n")
    before = contents(tmp_path)
    config = BatchConfig(restart=restart)
    with pytest.raises(OutputError, match="already exists") as caught:
        list(caption_batch(folder, output=output, captioner=tiny, config=config))
    assert "--restart" not in str(caught.value)  # which would be bad advice
    assert contents(tmp_path) == before


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_table_is_not_its_own_output(
    run_batch: Run, photos: Photos, tmp_path: Path, suffix: str, restart: bool
) -> None:
    (photo,) = photos(1).iterdir()
    table = tmp_path / f"table{suffix}"
    row = json.dumps({"path": str(photo)})
    table.write_text(f"{row}\n" if suffix == ".jsonl" else f"path\n{photo}\n")
    before = contents(tmp_path)
    link = tmp_path / "photos" / f"link{suffix}"
    link.symlink_to(table)
    more = ("--restart",) if restart else ()
    for output in (table, link):
        result = run_batch(table, "--column", "path", "--output", output, *more)
        assert result.returncode == 2 and "is an input" in result.stderr
    assert contents(tmp_path) == before


def test_a_review_is_a_file_of_its_own(tiny: Captioner, photos: Photos, tmp_path: Path) -> None:
    folder = photos(2)
    for output, review in (
        ("c.jsonl", "c.jsonl"),
        ("c.jsonl", "c.jsonl.errors.jsonl"),
        ("c.jsonl", "photos/../c.jsonl.written.jsonl"),
        ("c.csv", "c.csv.journal.jsonl"),
    ):
        config = BatchConfig(min_score=-1, review=str(tmp_path / review))
        with pytest.raises(ConfigError, match="a file that the run itself writes"):
            list(caption_batch(folder, output=tmp_path / output, config=config, captioner=tiny))
    assert sorted(contents(tmp_path)) == []


def test_a_review_belongs_to_one_output(
    run_batch: Run, photos: Photos, tmp_path: Path, read: Read
) -> None:
    """Else a run that was killed before its own first unsure record would cut the others' off."""
    folder, review = photos(3), tmp_path / "unsure.jsonl"
    (folder / "a.jpg").write_bytes(b"no photo")

    def run(output: str, *more: object, review: Path = review) -> subprocess.CompletedProcess[str]:
        unsure = ("--min-score", 0, "--review", review)
        return run_batch(*more, "--output", tmp_path / output, *unsure)

    assert run("one.jsonl", folder / "a.jpg").returncode == 1
    assert review.read_bytes() == b""
    for more in ((), ("--restart",)):
        refused = run("two.jsonl", folder, "--shard", "2/2", *more)
        assert refused.returncode == 1
        assert f"{review} already exists, and no run of this output has left it" in refused.stderr
    refused = run("one.csv", folder, review=tmp_path / "one.jsonl")
    assert refused.returncode == 1 and "one.jsonl already exists" in refused.stderr
    assert run("one.jsonl", folder).returncode == 1
    assert [Path(record["image"]).stem for record in read(review)] == ["p000", "p001", "p002"]
    names = ("one.jsonl", "one.jsonl.errors.jsonl", "one.jsonl.run.json", "unsure.jsonl")
    assert sorted(contents(tmp_path)) == list(names)


def test_restart_removes_what_the_run_wrote_and_nothing_else(
    tiny: Captioner, photos: Photos, tmp_path: Path, read: Read
) -> None:
    folder, output = photos(3), tmp_path / "c.jsonl"
    review, mine = tmp_path / "unsure.jsonl", tmp_path / "mine.jsonl"
    mine.write_text("mine\n")

    def run(**options: Any) -> None:
        list(caption_batch(folder, output=output, captioner=tiny, config=BatchConfig(**options)))

    run(min_score=0.0, review=str(review))
    unsure = review.read_bytes()
    with pytest.raises(OutputError, match=r"mine\.jsonl already exists"):
        run(min_score=-1e-9, review=str(mine), restart=True)
    assert (mine.read_text(), review.read_bytes()) == ("mine\n", unsure)
    run(restart=True)
    assert len(read(output)) == 3 and review.read_bytes() == unsure


@pytest.mark.parametrize("restart", [False, True])
def test_a_review_of_the_same_name_elsewhere_stays(
    tiny: Captioner,
    photos: Photos,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    restart: bool,
) -> None:
    folder, output, elsewhere = photos(2), tmp_path / "c.jsonl", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "unsure.jsonl").write_text("mine\n")
    monkeypatch.chdir(tmp_path)
    config = BatchConfig(min_score=-1e6, review="unsure.jsonl")
    list(caption_batch(folder, output=output, captioner=tiny, config=config))
    monkeypatch.chdir(elsewhere)
    config = BatchConfig(min_score=-1e6, review="unsure.jsonl", restart=restart)
    with pytest.raises(
        (ConfigError, OutputError), match=r"review was|unsure\.jsonl already exists"
    ):
        list(caption_batch(folder, output=output, captioner=tiny, config=config))
    assert (elsewhere / "unsure.jsonl").read_text() == "mine\n"


@pytest.mark.parametrize("damaged", ["", '{"format": 1, "settings": {}}'])
def test_a_damaged_state_is_a_sentence(
    tiny: Captioner, photos: Photos, tmp_path: Path, damaged: str
) -> None:
    folder, output, state = photos(2), tmp_path / "c.jsonl", tmp_path / "c.jsonl.run.json"
    list(caption_batch(folder, output=output, captioner=tiny))
    state.write_text(damaged)
    before = contents(tmp_path)
    with pytest.raises(OutputError, match=r"run\.json was not written by this version"):
        list(caption_batch(folder, output=output, captioner=tiny))
    assert contents(tmp_path) == before


def test_two_runs_share_no_review_at_a_time(
    tiny: Captioner, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that it is not there; one is the first to hold it."""
    review, output = tmp_path / "unsure.jsonl", tmp_path / "c.jsonl"
    config = BatchConfig(min_score=0.0, review=str(review))
    with closing(lock(review)):
        monkeypatch.setattr("captioner_serving.batch.journal.check_free", lambda *_, **__: None)
        with pytest.raises(OutputError, match=r"another run is writing to unsure\.jsonl"):
            list(caption_batch(photos(2), output=output, config=config, captioner=tiny))


@pytest.mark.parametrize("sidecar", ["txt", "json"])
def test_a_photo_is_not_its_own_sidecar(
    tiny: Captioner, photos: Photos, tmp_path: Path, sidecar: Any
) -> None:
    (photo,) = photos(1).iterdir()
    odd = photo.rename(photo.with_suffix(f".{sidecar}"))
    other = Path(shutil.copy(odd, odd.with_suffix(".jpg")))
    data = odd.read_bytes()
    for name, problem in ((odd, "would be its own sidecar"), (other, "is not text")):
        config = BatchConfig(sidecar=sidecar, existing="overwrite")
        (record,) = caption_batch(name, config=config, captioner=tiny)
        assert problem in record["error"]["detail"]
        assert odd.read_bytes() == other.read_bytes() == data


def test_a_sidecar_that_is_a_link_is_written_through(tiny: Captioner, photos: Photos) -> None:
    (photo,) = photos(1).iterdir()
    link = photo.with_suffix(".txt")
    link.symlink_to("elsewhere.text")
    (record,) = caption_batch(photo, config=BatchConfig(sidecar="txt"), captioner=tiny)
    assert link.is_symlink()
    assert (photo.parent / "elsewhere.text").read_text() == record["caption"] + "\n"


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("kind", ["txt", "xmp"])
def test_a_link_out_of_the_folder_is_not_followed(
    tiny: Captioner, photos: Photos, tmp_path: Path, kind: Any, there: bool
) -> None:
    """Whoever made the folder of photos says nothing about the files beside it."""
    (photo,) = photos(1).iterdir()
    theirs = tmp_path / f"diary.{kind}"
    if there:
        theirs.write_text('<x:x xmlns:x="x"/>' if kind == "xmp" else "mine\n")
    before = contents(tmp_path)
    link = photo.with_suffix(f".{kind}")
    link.symlink_to(f"../diary.{kind}")
    config = BatchConfig(sidecar=kind, existing="overwrite")
    (record,) = caption_batch(photo, config=config, captioner=tiny)
    said = record["error"]["detail"]
    if kind == "txt" or not there:
        assert said.startswith(f"{link} is a link that leads out of its folder")
    assert record["caption"] and link.is_symlink()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("existing", ["skip", "overwrite"])
def test_a_sidecar_that_is_no_file_holds_nothing_up(
    tiny: Captioner, photos: Photos, existing: Any
) -> None:
    folder = photos(3)
    os.mkfifo(folder / "p000.txt")
    (folder / "p001.txt").mkdir()
    with (folder / "p002.txt").open("wb") as file:
        file.truncate(1 << 40)  # a hole
    config = BatchConfig(sidecar="txt", existing=existing)
    details = [
        record["error"]["detail"] for record in caption_batch(folder, config=config, captioner=tiny)
    ]
    assert [detail.removeprefix(f"{folder}/") for detail in details] == [
        "p000.txt cannot be read: it is not a regular file",
        "p001.txt cannot be read: Is a directory",
        "p002.txt cannot be read: it has 1,099,511,627,776 bytes, too many for a sidecar",
    ]


def test_maps_never_lie_among_the_photos(
    tiny: Captioner, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos(1)
    shutil.copy(folder / "p000.jpg", folder / "p000.jpg.png")
    before = contents(folder)
    monkeypatch.chdir(tmp_path)
    for place in (".", "photos", "photos/maps"):
        config = BatchConfig(maps="overlay", maps_to=place)
        with pytest.raises(ConfigError, match="the next run would caption them"):
            list(caption_batch("photos", captioner=tiny, config=config))
    config = BatchConfig(maps="overlay", maps_to=".")
    (record,) = caption_batch("photos/p000.jpg", captioner=tiny, config=config)
    assert "would lie among the photos" in record["error"]["detail"]
    assert contents(folder) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("verb", ["batch", "caption"])
def test_a_full_disk_behind_standard_output_is_a_sentence(
    run_captioner: Run, photos: Photos, lively_file: Path, verb: str
) -> None:
    more = ("--output", "-") if verb == "batch" else ("--json",)
    with Path("/dev/full").open("w") as full:
        result = run_captioner(
            verb, photos(1) / "p000.jpg", *more, "--checkpoint", lively_file, stdout=full
        )
    assert result.returncode == 1
    assert result.stderr.endswith("standard output cannot be written: the disk is full\n")
    assert "Traceback" not in result.stderr
