"""`captioner batch` as people run it."""

from __future__ import annotations

import csv
import gc
import io
import json
import os
import shutil
import subprocess
import time
from dataclasses import replace
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from captioner import Captioner, CaptionerError
from captioner.trust.familiarity import Familiarity, pool
from captioner.trust.trust import digest_weights, trust_file
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.config import Shard
from captioner_serving.batch.engine import LocalEngine
from captioner_serving.batch.inputs.photos import LostPhoto, Photo, PhotoFile
from captioner_serving.batch.inputs.sources import Inputs
from captioner_serving.batch.progress import ProgressBar
from captioner_serving.batch.wording import Wording
from tests.conftest import make_trust
from tests.launcher import Run
from tests.serving.batch.conftest import Photos, Start, read_lines
from tests.serving.server.running import until


def test_records_are_those_of_caption_in_the_order_of_the_photos(
    run_batch: Run, run_main: Run, lively_file: Path, photos: Photos, tmp_path: Path
) -> None:
    folder = photos(12)
    names = sorted(map(str, folder.iterdir()))
    output, options = tmp_path / "captions.jsonl", ("--attention", "--captions", 2)
    result = run_batch(folder, "--output", output, *options)
    assert (result.returncode, result.stdout) == (0, "")
    assert "12 photos in" in result.stderr and "float32 on cpu" in result.stderr
    records = read_lines(output)
    assert [record["image"] for record in records] == names
    assert len({record["score"] for record in records}) > 6
    model = ("--checkpoint", lively_file, "--dtype", "float32")
    single = run_main("caption", names[7], "--json", *options, *model)
    got, wanted = records[7], json.loads(single.stdout)
    assert got["alternatives"][0]["caption"] == wanted["alternatives"][0]["caption"]
    assert (got["caption"], got["model"]) == (wanted["caption"], wanted["model"])
    assert got["score"] == pytest.approx(wanted["score"], abs=2e-4)
    for ours, theirs in zip(got["words"], wanted["words"], strict=True):
        weights = (word["attention"]["weights"] for word in (ours, theirs))
        assert ours["word"] == theirs["word"] and next(weights) == pytest.approx(
            next(weights), abs=1e-4
        )
    assert {path.name for path in tmp_path.glob("c*")} == {output.name, f"{output.name}.run.json"}


def test_a_list_on_standard_input_and_records_on_standard_output(
    start_batch: Start, photos: Photos, tmp_path: Path
) -> None:
    folder = photos(3)
    listed = "\n".join(str(folder / name) for name in ("p002.jpg", "p000.jpg", "missing.jpg"))
    process = start_batch("-", "--output", "-", stdin=subprocess.PIPE)
    out, said = process.communicate(listed, timeout=300)
    assert process.returncode == 1
    first, second, third = map(json.loads, out.splitlines())
    assert [Path(one["image"]).name for one in (first, second)] == ["p002.jpg", "p000.jpg"]
    assert third["error"]["type"] == "image-not-found"
    assert "missing.jpg cannot be read (No such file or directory)" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def test_the_summary_names_the_photos_that_are_unlike_the_training(
    run_batch: Run, lively_file: Path, photos: Photos, tmp_path: Path
) -> None:
    checkpoint, folder, output = tmp_path / "seen.safetensors", photos(40), tmp_path / "c.jsonl"
    shutil.copy(lively_file, checkpoint)
    captioner = Captioner.from_pretrained(checkpoint, dtype="float32")
    seen = np.stack([captioner.prepare(path).pixels for path in sorted(folder.iterdir())])
    means = pool(captioner.encode(seen).features)
    wider = 2 * means - means.mean(axis=0)  # or the outermost of them would be unlike the others
    known = make_trust(weights=digest_weights(checkpoint))
    replace(known, familiarity=Familiarity.fit(means, wider)).save(trust_file(checkpoint))
    for number in range(12):
        board = Image.frombytes("L", (2, 2), bytes((number, 255, 255, number)))
        board.resize((96, 96), 0).save(folder / f"strange {number:02}.png")
    result = run_batch(folder, "--output", output, "--checkpoint", checkpoint, "--dtype", "float32")
    assert result.returncode == 0, result.stderr
    assert "(familiarity below 0.01): 12 photos; " in result.stderr
    assert result.stderr.count(".png") == 10 and "and 2 more" in result.stderr
    records = read_lines(output)
    unlike = [record["image"] for record in records if record["familiarity"] < 0.01]
    assert len(records) == 52 and all("strange" in name for name in unlike) and len(unlike) == 12


@pytest.mark.parametrize("measure", ["score", "trust"])
def test_captions_to_review_are_marked_in_every_output(
    tiny: Captioner, photos: Photos, tmp_path: Path, run_main: Run, measure: str
) -> None:
    """They get a sidecar when their mark is removed."""
    sure, folder = Captioner(tiny.checkpoint, device="cpu", trust=make_trust()), photos(8)
    plain = list(caption_batch(folder, captioner=sure))
    low, *_, limit = values = sorted(record[measure] for record in plain)[:5]
    assert low < limit
    option = {"score": "min_score", "trust": "minimum_trust"}[measure]
    word, output = plain[0]["caption"].split()[0], tmp_path / "sure.csv"
    replaced = ((word, r"X\1"), (word[:-1], "Y"))
    wording = Wording(template="> Photo: {caption}.", replace=replaced)
    config = BatchConfig(wording=wording, sidecar="txt", **{option: limit})  # type: ignore[arg-type]
    made = list(caption_batch(folder, output=output, config=config, captioner=sure))
    marked = [record["image"] for record in plain if record[measure] < limit]
    assert made == read_lines(Path(f"{output}.journal.jsonl")) and 0 < len(marked) < 8
    assert [record["image"] for record in made if record.get("review") is True] == marked
    assert all("review" not in record for record in made if record["image"] not in marked)
    with output.open(newline="") as file:
        assert [r["image"] for r in csv.DictReader(file) if r["review"] == "True"] == marked
    assert len(values) == 5 and len(list(folder.glob("*.txt"))) == 8 - len(marked)
    first = " ".join(r"X\1" if w == word else w for w in plain[0]["caption"].split())
    assert made[0]["caption"] == f"> Photo: {first}." and made[0]["words"] == plain[0]["words"]
    output.write_text(output.read_text().replace(",True", ",", 1))
    said = run_main("convert", output, "--sidecar", "caption").stderr
    assert f"{9 - len(marked)} sidecar" in said
    assert len(list(folder.glob("*.caption"))) == 9 - len(marked)


def test_shards_are_disjoint_and_complete(
    tiny: Captioner, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(8)
    monkeypatch.chdir(tmp_path)  # names are the same in each run, and no shard is empty
    configs = [BatchConfig(shard=Shard(index=index, count=3)) for index in (1, 2, 3)]
    parts = [list(caption_batch("photos", config=config, captioner=tiny)) for config in configs]
    names = sorted(record["image"] for record in chain.from_iterable(parts))
    assert all(parts) and names == [f"photos/p{number:03}.jpg" for number in range(8)]


# As torch raises them for a GPU, a CPU and a Mac, and Python for lists.
OUT_OF_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 4000000000000 bytes. Error code 12 (Cannot ...)"),
    RuntimeError("MPS backend out of memory (MPS allocated: 5.00 GB, max allowed: 9.07 GB)."),
    MemoryError("no room"),
)  # fmt: skip


def test_out_of_memory_halves_the_batch(
    tiny: Captioner, photos: Photos, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure that no smaller batch avoids ends the run."""
    folder = photos(24)
    wanted = [record["caption"] for record in caption_batch(folder, captioner=tiny)]
    real, sizes, failures, most = Captioner.caption_prepared, [], cycle(OUT_OF_MEMORY), 3

    def short_of_memory(self: Captioner, images: Any, *rest: Any, **more: Any) -> Any:
        sizes.append(len(images))
        if len(images) > most:
            raise next(failures)
        return real(self, images, *rest, **more)

    monkeypatch.setattr(Captioner, "caption_prepared", short_of_memory)
    config = BatchConfig(batch_size=16)
    records = list(caption_batch(folder, config=config, captioner=tiny))
    assert [record["caption"] for record in records] == wanted
    assert sizes.count(16) >= 1 and max(sizes[-2:]) <= 3
    assert sum(size > 3 for size in sizes) >= len(OUT_OF_MEMORY)
    most = 0
    with pytest.raises(CaptionerError, match="memory for one photo"):
        list(caption_batch(folder, captioner=tiny))
    failures = cycle([RuntimeError("shapes differ")])
    with pytest.raises(RuntimeError, match="shapes differ"):
        list(caption_batch(folder, captioner=tiny))


def test_the_end_of_a_batch_depends_on_its_photos_alone(tiny: Captioner, photos: Photos) -> None:
    """So a resumed run makes the same batches. Those that fail take no place, up to eight times.

    Settings of the process are as before the run.
    """
    before = gc.get_threshold(), gc.get_freeze_count(), torch.get_num_threads()
    photo = str(photos(1) / "p000.jpg")
    inputs: list[Photo] = [
        PhotoFile(name=f"{number}", path=photo) if sound else LostPhoto(name=f"{number}", reason="")
        for number, sound in enumerate([0, 1, 1, 0, 0, 1, 1, 1, *[0] * 16])
    ]
    config = BatchConfig(batch_size=2, workers=1)
    with LocalEngine(tiny, tiny.generation, config, share=2) as engine:
        batches = list(engine.run(iter(inputs)))
    assert [len(batch) for batch in batches] == [3, 4, 16, 1]
    assert [outcome.photo for outcome in chain.from_iterable(batches)] == inputs
    assert (gc.get_threshold(), gc.get_freeze_count(), torch.get_num_threads()) == before


def test_photos_that_failed_count_until_they_are_retried(
    run_batch: Run, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(2), tmp_path / "captions.jsonl"
    (folder / "p001.jpg").write_bytes(b"no photo")
    command = (folder, "--output", output)
    assert run_batch(*command).returncode == 1
    (folder / "p001.jpg").unlink()
    result = run_batch(*command)
    assert result.returncode == 1 and "1 of these failed in an earlier run" in result.stderr
    result = run_batch(*command, "--retry-errors")
    assert result.returncode == 0 and "failed" not in result.stderr
    assert not Path(f"{output}.errors.jsonl").exists()


def test_the_summary_leaves_out_what_belongs_to_photos(run_batch: Run, photos: Photos) -> None:
    folder = photos(3)
    shutil.copy(folder / "p000.jpg", folder / "p000.png")
    (folder / "bad.jpg").write_bytes(b"no photo")
    for name in ("p001.caption", "p002.jpg.xmp", "bad.json", "a.txt", "raw.cr2"):
        (folder / name).write_text("mine\n")
    for name in ("p001.txt", "p002.txt"):
        (folder / name).write_text("mine\n")
    # One photo is named twice, and counts once.
    command = (folder, folder / "p001.jpg", "--output", folder / "c.csv", "--sidecar", "txt")
    longer = "2 sidecars named photo.jpg.* (photos share a stem)"
    for more, counts in (
        ((), f"4 captions in total; 2 sidecars unchanged; {longer}"),
        ((), "4 captions in total; 5 done before"),
        (
            ("--restart", "--existing", "overwrite"),
            f"4 captions in total; 2 sidecars overwritten; {longer}",
        ),
        (("--restart", "--min-score", 0), "4 captions in total; 4 new ones to review"),
    ):
        result = run_batch(*command, "--captions", 2, *more)
        *_, left_out = lines = result.stderr.splitlines()
        assert left_out == "skipped: 1 .cr2"
        assert f"{counts}; 1 failed, in {folder}/c.csv.errors.jsonl" in lines
        assert not any(line.startswith(" ") for line in lines)  # whole, in a file
        if not more:
            names = {path.name for path in folder.iterdir()}
            assert {"p000.jpg.txt", "p000.png.txt", "p001.txt"} <= names


def test_photos_that_are_newer_than_their_records_are_mentioned(
    run_batch: Run, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(3), tmp_path / "c.jsonl"
    assert "newer" not in run_batch(folder, "--output", output).stderr
    written = output.stat().st_mtime
    for number, seconds in enumerate((-10, 10, -10)):
        os.utime(folder / f"p00{number}.jpg", (written + seconds, written + seconds))
    result = run_batch(folder, "--output", output)
    assert "newer than the records: 1 photo; --restart" in result.stderr


@pytest.mark.parametrize("quiet", [False, True])
def test_a_log_has_failures_with_escaped_names_and_no_bar_in_the_first_minute(quiet: bool) -> None:
    with ProgressBar(quiet=quiet, stream=io.StringIO()) as progress:
        progress.update({"image": "x", "error": {"detail": "a\x1b[2J\x9b5m\u202e\n.jpg is broken"}})
        progress.say("1 photo")
        said = progress._stream.getvalue()  # type: ignore[attr-defined]
    error = "captioner: a\\x1b[2J\\x9b5m\\u202e\\n.jpg is broken\n"
    assert said == error + ("" if quiet else "1 photo\n")


def test_a_bar_on_a_terminal(photos: Photos, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal := io.StringIO(), "isatty", lambda: True)
    with ProgressBar(quiet=False, stream=terminal) as progress:
        progress.count(Inputs(sources=(str(photos(3)),)), None, done=0)
        assert until(lambda: progress._bar.total is not None)
        for record in ({"caption": "a"}, {"error": {"detail": "broken"}}, {"caption": "b"}):
            time.sleep(0.15)  # tqdm draws ten times a second
            progress.update(record)
        progress.say("4 photos")
    shown = terminal.getvalue()
    assert "3/3" in shown and "photos/s" in shown and "errors=1" in shown
    assert "captioner: broken" in shown and "4 photos" in shown
