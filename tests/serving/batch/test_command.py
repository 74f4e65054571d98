"""`captioner batch` as people run it."""

from __future__ import annotations

import contextlib
import csv
import gc
import io
import json
import os
import pty
import shutil
import subprocess
import termios
import threading
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


def test_records_are_those_of_caption_in_the_order_of_the_photos(
    run_batch: Run,
    run_main: Run,
    lively_file: Path,
    photos: Photos,
    tmp_path: Path,
) -> None:
    folder = photos(12)
    names = sorted(str(path) for path in folder.iterdir())
    output = tmp_path / "captions.jsonl"
    result = run_batch(folder, "--output", output, "--attention", "--captions", 2)
    assert (result.returncode, result.stdout) == (0, "")
    assert "12 photos in" in result.stderr and "float32 on cpu" in result.stderr
    records = read_lines(output)
    assert [record["image"] for record in records] == names
    assert len({record["score"] for record in records}) > 6
    single = run_main(
        "caption", names[7], "--json", "--attention", "--captions", 2,
        "--checkpoint", lively_file, "--dtype", "float32",
    )  # fmt: skip
    wanted = json.loads(single.stdout)
    got = records[7]
    assert got["caption"] == wanted["caption"]
    assert got["alternatives"][0]["caption"] == wanted["alternatives"][0]["caption"]
    assert got["score"] == pytest.approx(wanted["score"], abs=2e-4)
    assert got["model"] == wanted["model"]
    for ours, theirs in zip(got["words"], wanted["words"], strict=True):
        assert ours["word"] == theirs["word"]
        assert ours["attention"]["weights"] == pytest.approx(
            theirs["attention"]["weights"], abs=1e-4
        )
    assert sorted(path.name for path in tmp_path.iterdir() if "captions" in path.name) == [
        "captions.jsonl",
        "captions.jsonl.run.json",
    ]


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
    checkpoint, folder, output = tmp_path / "seen.safetensors", photos(40), tmp_path / "c.csv"
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

    def run(*more: object) -> str:
        model = ("--checkpoint", checkpoint, "--dtype", "float32")
        result = run_batch(*more, "--output", output, *model)
        assert result.returncode == 0, result.stderr
        return " ".join(result.stderr.split())

    assert "unlike" not in run(folder / "p007.jpg")
    strange = str(folder / "strange 00.png")
    said = run(strange)
    assert "1 photo is unlike the training data (familiarity below 0.01); check" in said
    assert f"captions of {strange}" in said
    said = run(folder)
    assert "11 photos are unlike" in said and said.count(".png") == 10 and "and 1 more" in said
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file))
    unlike = [row["image"] for row in rows if float(row["familiarity"]) < 0.01]
    assert len(rows) == 52 and all("strange" in name for name in unlike) and len(unlike) == 12


def test_parquet(tiny: Captioner, photos: Photos, tmp_path: Path) -> None:
    from pyarrow import parquet

    folder = photos(3)
    shutil.copy(folder / "p000.jpg", os.fsencode(folder) + b"/z\xff.jpg")
    output = tmp_path / "captions.parquet"
    made = list(caption_batch(folder, output=output, captioner=tiny))
    rows = parquet.read_table(output).to_pylist()
    assert [row["caption"] for row in rows] == [record["caption"] for record in made]
    assert rows[0]["image"] == str(folder / "p000.jpg")
    assert rows[3]["image"] == str(folder / r"z\xff.jpg")
    assert rows[0]["score"] == pytest.approx(made[0]["score"])
    # What one run wrote, another reads.
    table = tmp_path / "again.parquet"
    parquet.write_table(parquet.read_table(output).slice(0, 3), table)
    again = list(caption_batch(Inputs(sources=(str(table),), column="image"), captioner=tiny))
    assert [record["caption"] for record in again] == [record["caption"] for record in made[:3]]


def test_wording_and_review(tiny: Captioner, photos: Photos, tmp_path: Path) -> None:
    folder = photos(12)
    plain = list(caption_batch(folder, captioner=tiny))
    middle = sorted(record["score"] for record in plain)[6]
    word = plain[0]["caption"].split()[0]
    config = BatchConfig(
        wording=Wording(template="> Photo: {caption}.", replace=((word, r"X\1"), (word[:-1], "Y"))),
        min_score=middle,
        sidecar="txt",
    )
    output = tmp_path / "sure.jsonl"
    records = list(caption_batch(folder, output=output, config=config, captioner=tiny))
    assert len(records) == 12
    unsure = [record for record in read_lines(output) if "review" in record]
    sure = [record for record in read_lines(output) if "review" not in record]
    assert [record["score"] >= middle for record in sure] == [True] * len(sure)
    assert [record["score"] < middle for record in unsure] == [True] * len(unsure)
    assert (len(sure), len(unsure)) == (sum(r["score"] >= middle for r in plain), 12 - len(sure))
    assert len(unsure) >= 3
    first = next(r for r in sure + unsure if r["image"] == plain[0]["image"])
    replaced = " ".join(r"X\1" if w == word else w for w in plain[0]["caption"].split())
    assert first["caption"] == f"> Photo: {replaced}."
    assert first["words"] == plain[0]["words"]
    beside = {path.stem for path in folder.glob("*.txt")}
    assert beside == {Path(record["image"]).stem for record in sure}


def test_captions_of_little_trust_are_marked_in_every_output(
    tiny: Captioner, photos: Photos, tmp_path: Path, run_main: Run
) -> None:
    """They get a sidecar when their mark is removed."""
    sure, folder = Captioner(tiny.checkpoint, device="cpu", trust=make_trust()), photos(8)
    trusts = sorted(record["trust"] for record in caption_batch(folder, captioner=sure))
    assert trusts[0] < trusts[4]

    config = BatchConfig(minimum_trust=trusts[4])
    output = tmp_path / "sure.csv"
    assert len(list(caption_batch(folder, output=output, config=config, captioner=sure))) == 8
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(float(row["trust"]) for row in rows) == trusts
    assert all((row["review"] == "True") == (float(row["trust"]) < trusts[4]) for row in rows)
    records = read_lines(Path(f"{output}.journal.jsonl"))
    unsure = [record for record in records if record.get("review") is True]
    assert sum(row["review"] == "True" for row in rows) == len(unsure)
    result = run_main("convert", output, "--sidecar", "txt")
    assert f"{8 - len(unsure)} sidecars written; {len(unsure)} to review skipped" in result.stderr
    assert len(list(folder.glob("*.txt"))) == 8 - len(unsure)
    output.write_text(output.read_text().replace(",True", ","))
    assert "8 sidecars written" in run_main("convert", output, "--sidecar", "caption").stderr


def test_shards_are_disjoint_and_complete(
    tiny: Captioner, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(8)
    monkeypatch.chdir(tmp_path)  # names are the same in each run, and no shard is empty
    parts = [
        [
            record["image"]
            for record in caption_batch(
                "photos", config=BatchConfig(shard=Shard(index=index, count=3)), captioner=tiny
            )
        ]
        for index in (1, 2, 3)
    ]
    assert all(parts)
    assert sorted(chain.from_iterable(parts)) == [f"photos/p{number:03}.jpg" for number in range(8)]


# As torch raises them for a GPU, a CPU and a Mac, and Python for lists.
OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 4000000000000 bytes. Error code 12 (Cannot ...)"),
    RuntimeError("MPS backend out of memory (MPS allocated: 5.00 GB, max allowed: 9.07 GB)."),
    MemoryError(),
]  # fmt: skip


def test_out_of_memory_halves_the_batch(
    tiny: Captioner, photos: Photos, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos(24)
    wanted = [record["caption"] for record in caption_batch(folder, captioner=tiny)]
    real, sizes, failures = Captioner.caption_prepared, [], cycle(OUT_OF_MEMORY)

    def short_of_memory(self: Captioner, images: Any, *rest: Any, **more: Any) -> Any:
        sizes.append(len(images))
        if len(images) > 3:
            raise next(failures)
        return real(self, images, *rest, **more)

    monkeypatch.setattr(Captioner, "caption_prepared", short_of_memory)
    config = BatchConfig(batch_size=16)
    records = list(caption_batch(folder, config=config, captioner=tiny))
    assert [record["caption"] for record in records] == wanted
    assert sizes.count(16) >= 1 and max(sizes[-2:]) <= 3
    assert sum(size > 3 for size in sizes) >= len(OUT_OF_MEMORY)


def test_the_end_of_a_batch_depends_on_its_photos_alone(tiny: Captioner, photos: Photos) -> None:
    """So a resumed run makes the same batches. Those that fail take no place, up to eight times."""
    photo = str(photos(1) / "p000.jpg")
    inputs: list[Photo] = [
        PhotoFile(name=f"{number}", file=photo) if sound else LostPhoto(name=f"{number}", reason="")
        for number, sound in enumerate([0, 1, 1, 0, 0, 1, 1, 1, *[0] * 16])
    ]
    with LocalEngine(tiny, tiny.generation, BatchConfig(batch_size=2, workers=1)) as engine:
        batches = list(engine.run(iter(inputs)))
    assert [len(batch) for batch in batches] == [3, 4, 16, 1]
    assert [outcome.photo for outcome in chain.from_iterable(batches)] == inputs


def test_two_batches_are_captioned_at_the_same_time(
    tiny: Captioner, photos: Photos, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch waits until another has begun."""
    real, both = Captioner.caption_prepared, threading.Barrier(2)

    def together(*given: Any, **more: Any) -> Any:
        both.wait(timeout=30)
        return real(*given, **more)

    monkeypatch.setattr(Captioner, "caption_prepared", together)
    files = [PhotoFile(name=path.name, file=str(path)) for path in sorted(photos(8).iterdir())]
    config = BatchConfig(batch_size=2, workers=1)
    with LocalEngine(tiny, tiny.generation, config, share=2) as engine:
        batches = list(engine.run(iter(files)))
    assert [outcome.photo for outcome in chain.from_iterable(batches)] == files
    assert len(batches) == 4


@pytest.mark.parametrize(
    ("failure", "kind", "said"),
    [
        (
            MemoryError("no room"),
            CaptionerError,
            r"memory for one photo \(no room\): use",
        ),
        (RuntimeError("shapes differ"), RuntimeError, "^shapes differ$"),
    ],
)
def test_a_failure_that_no_smaller_batch_avoids_ends_the_run(
    tiny: Captioner,
    photos: Photos,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    kind: type[Exception],
    said: str,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(Captioner, "caption_prepared", fail)
    with pytest.raises(kind, match=said):
        list(caption_batch(photos(3), captioner=tiny))


def test_garbage_collections_skip_the_model_only_during_a_run(
    tiny: Captioner, photos: Photos
) -> None:
    before, at_start = gc.get_threshold(), gc.get_freeze_count()
    records = caption_batch(photos(2), captioner=tiny)
    next(records)
    assert gc.get_freeze_count() > at_start + 1000
    list(records)
    assert gc.get_threshold() == before and gc.get_freeze_count() <= at_start


def test_failed_photos_that_are_no_longer_inputs_do_not_count(
    run_batch: Run, photos: Photos, tmp_path: Path
) -> None:
    folder, output, listed = photos(3), tmp_path / "captions.jsonl", tmp_path / "list"
    (folder / "p001.jpg").write_bytes(b"no photo")
    names = [str(folder / name) for name in ("p000.jpg", "p001.jpg", "p02.jpg")]
    errors = Path(f"{output}.errors.jsonl")

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        listed.write_text("\n".join(names))
        return run_batch("--list", listed, "--output", output, *more)

    assert run().returncode == 1
    names[2] = str(folder / "p002.jpg")  # as it should have been typed
    result = run()
    assert result.returncode == 1 and "1 of these failed in an earlier run" in result.stderr
    assert "1 that failed before is no longer an input" in result.stderr
    del names[1]
    result = run()
    assert result.returncode == 0
    assert "2 that failed before are no longer inputs" in result.stderr
    assert len(errors.read_text().splitlines()) == 2
    result = run("--retry-errors")
    assert (result.returncode, errors.exists()) == (0, False)
    assert "failed" not in result.stderr


def test_the_summary_leaves_out_what_belongs_to_photos(
    run_batch: Run, photos: Photos, tmp_path: Path
) -> None:
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
            assert {"p000.jpg.txt", "p000.png.txt", "p001.txt", "c.csv.journal.jsonl"} <= names


def test_photos_that_are_newer_than_their_records_are_mentioned(
    run_batch: Run, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(3), tmp_path / "c.jsonl"
    assert "newer" not in run_batch(folder, "--output", output).stderr
    written = output.stat().st_mtime
    for number, seconds in enumerate((-10, 10, -10)):
        os.utime(folder / f"p00{number}.jpg", (written + seconds, written + seconds))
    result = run_batch(folder, "--output", output)
    assert "1 photo is newer than the records; --restart captions all" in result.stderr


# What a person sees of a run


def await_count(progress: ProgressBar) -> None:
    deadline = time.perf_counter() + 300
    while progress._total is None and time.perf_counter() < deadline:
        time.sleep(0.01)


def test_a_log_has_failures_and_no_bar_in_the_first_minute() -> None:
    said = io.StringIO()
    with ProgressBar(quiet=False, stream=said) as progress:
        progress.update({"image": "c", "error": {"detail": "c is broken"}})
        progress.say("1 photo")
    assert said.getvalue() == "captioner: c is broken\n1 photo\n"


def test_a_bar_on_a_terminal(photos: Photos) -> None:
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 60))
    with (
        open(follower, "w") as terminal,  # noqa: PTH123
        ProgressBar(quiet=False, stream=terminal) as progress,
    ):
        progress.count(Inputs(sources=(str(photos(3)),)), None, done=0)
        await_count(progress)
        for record in ({"caption": "a"}, {"error": {"detail": "broken"}}, {"caption": "b"}):
            time.sleep(0.15)  # tqdm draws ten times a second
            progress.update(record)
        progress.say("4 photos")
    shown = ""
    with contextlib.suppress(OSError):  # how Linux says that the other side has gone
        while part := os.read(leader, 4096):
            shown += part.decode()
    os.close(leader)
    assert "3/3" in shown and "photos/s" in shown and "errors=1" in shown
    assert "captioner: broken" in shown and "4 photos" in shown


def test_quiet_prints_failures_only_with_escaped_names() -> None:
    said = io.StringIO()
    with ProgressBar(quiet=True, stream=said) as progress:
        progress.update({"image": "x", "error": {"detail": "a\x1b[2J\x9b5m\u202e\n.jpg is broken"}})
        progress.say("done")
    assert said.getvalue() == "captioner: a\\x1b[2J\\x9b5m\\u202e\\n.jpg is broken\n"
