"""Nothing lost, nothing twice: killed, full disks, changed settings."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from captioner import Captioner, ConfigError
from captioner_serving.batch import BatchConfig, caption_batch
from tests.process_tree import children

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]
Photos = Callable[..., Path]


def test_killed_once_and_gone_on(
    run_batch: Run, start_batch: Start, photos: Photos, tmp_path: Path
) -> None:
    folder = photos(300)
    output = tmp_path / "captions.csv"
    arguments = (folder, "--output", output, "--batch-size", 2)
    process = start_batch(*arguments)
    journal = Path(f"{output}.journal.jsonl")
    while process.poll() is None and not (journal.exists() and journal.stat().st_size):
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert not output.exists()
    with journal.open("ab") as file:
        file.write(b'{"image": "torn')
    end = json.loads(Path(f"{output}.run.json").read_text())["ends"][0]
    done = journal.read_bytes()[:end].count(b"\n")
    # What is done is not read again: those photos may even be gone.
    for number in range(done):
        (folder / f"p{number:03}.jpg").write_bytes(b"gone")
    result = run_batch(*arguments)
    assert (result.returncode, result.stdout) == (0, "")
    assert not done or f"{done} done before" in result.stderr
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [record["image"] for record in records] == sorted(map(str, folder.iterdir()))
    assert len(output.read_text().splitlines()) == 301


def test_no_worker_outlives_a_kill(start_batch: Start, photos: Photos, tmp_path: Path) -> None:
    process = start_batch(photos(400), "--output", tmp_path / "c.jsonl", "--batch-size", 1)
    output = tmp_path / "c.jsonl"
    while process.poll() is None and not (output.exists() and output.stat().st_size):
        time.sleep(0.005)
    workers = children(process.pid)
    assert workers
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 300
    while any(_alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in workers)


def _alive(pid: int) -> bool:
    try:
        return "(Z)" not in Path(f"/proc/{pid}/stat").read_text().replace(" Z ", "(Z)")
    except OSError:
        return False


def test_a_full_disk_costs_nothing_that_was_done(
    run_batch: Run, photos: Photos, tmp_path: Path, tiny: Captioner
) -> None:
    folder = photos(80)
    output = tmp_path / "captions.jsonl"
    whole = list(caption_batch(folder, output=tmp_path / "whole.jsonl", captioner=tiny))
    arguments = (folder, "--output", output, "--batch-size", 4)
    # The limit on the size of a file is met as a full disk is: in the middle of a write.
    size = (tmp_path / "whole.jsonl").stat().st_size // 2
    result = run_batch(*arguments, file_size=size)
    assert result.returncode == 1
    assert f"{output} cannot be written" in result.stderr and "File too large" in result.stderr
    assert "the same command goes on from there" in result.stderr
    assert "Traceback" not in result.stderr
    assert output.stat().st_size <= size
    result = run_batch(*arguments)
    assert result.returncode == 0
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [r["caption"] for r in records] == [r["caption"] for r in whole]
    assert [r["image"] for r in records] == [r["image"] for r in whole]


def test_other_settings_are_refused_and_restart_begins_anew(
    tiny: Captioner, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(5), tmp_path / "c.jsonl"
    list(caption_batch(folder, output=output, captioner=tiny))
    before = output.read_bytes()
    other = BatchConfig(beam_size=3)
    with pytest.raises(ConfigError, match="--beam-size was 5 and is 3") as caught:
        list(caption_batch(folder, output=output, config=other, captioner=tiny))
    assert "--restart" in str(caught.value) and output.read_bytes() == before
    # What does not change the records may change.
    free = BatchConfig(batch_size=2, workers=1)
    assert not list(caption_batch(folder, output=output, config=free, captioner=tiny))
    anew = BatchConfig(beam_size=3, restart=True)
    assert len(list(caption_batch(folder, output=output, config=anew, captioner=tiny))) == 5
    assert len(output.read_text().splitlines()) == 5


def test_another_checkpoint_is_refused(
    tiny: Captioner, saved_tiny: Path, photos: Photos, tmp_path: Path
) -> None:
    """The name and version are the same; the weights are not."""
    output = tmp_path / "c.jsonl"
    folder = photos(2)
    list(caption_batch(folder, output=output, captioner=tiny))
    with pytest.raises(ConfigError, match="the model of --checkpoint was"):
        list(caption_batch(folder, output=output, captioner=Captioner.from_pretrained(saved_tiny)))


def test_errors_are_kept_and_retried_when_asked(
    tiny: Captioner, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(6), tmp_path / "c.jsonl"
    good = (folder / "p003.jpg").read_bytes()
    for name in ("p001.jpg", "p003.jpg"):
        (folder / name).write_bytes(b"")
    errors = Path(f"{output}.errors.jsonl")

    def run(**options: Any) -> list[str]:
        made = caption_batch(folder, output=output, config=BatchConfig(**options), captioner=tiny)
        return [Path(record["image"]).name + ("!" if "error" in record else "") for record in made]

    assert run() == ["p000.jpg", "p001.jpg!", "p002.jpg", "p003.jpg!", "p004.jpg", "p005.jpg"]
    (folder / "p003.jpg").write_bytes(good)
    assert run() == []
    assert len(errors.read_text().splitlines()) == 2
    assert run(retry_errors=True) == ["p001.jpg!", "p003.jpg"]
    assert [json.loads(line)["image"] for line in errors.read_text().splitlines()] == [
        str(folder / "p001.jpg")
    ]
    (folder / "p001.jpg").write_bytes(good)
    assert run(retry_errors=True) == ["p001.jpg"]
    assert not errors.exists()
    assert run() == []
    names = [json.loads(line)["image"] for line in output.read_text().splitlines()]
    assert len(names) == len(set(names)) == 6


def test_new_photos_are_added(tiny: Captioner, photos: Photos, tmp_path: Path) -> None:
    output = tmp_path / "c.jsonl"
    folder = photos(3, first=10)
    list(caption_batch(folder, output=output, captioner=tiny))
    photos(13)
    added = list(caption_batch(folder, output=output, captioner=tiny))
    assert [Path(record["image"]).stem for record in added] == [f"p{n:03}" for n in range(10)]
    assert len(output.read_text().splitlines()) == 13
