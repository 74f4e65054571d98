"""Nothing lost, nothing twice: killed, interrupted, full disks, changed settings."""

from __future__ import annotations

import resource
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from captioner import Captioner, ConfigError
from captioner_serving.batch import BatchConfig, caption_batch
from tests.launcher import Run
from tests.process_tree import children
from tests.serving.batch.conftest import Photos, Start, await_records, read_lines
from tests.serving.server.running import until

pytestmark = pytest.mark.slow


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_killed_run_is_resumed(
    run_batch: Run, start_batch: Start, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(120), tmp_path / "captions.csv"
    process = start_batch(folder, "--output", output, "--batch-size", 2)
    journal = Path(f"{output}.journal.jsonl")
    await_records(process, journal)
    workers = children(process.pid)
    process.kill()
    process.communicate()
    assert workers and not output.exists()
    assert until(lambda: not any(map(is_alive, workers)))  # no worker outlives the run
    with journal.open("ab") as file:
        file.write(b'{"image": "torn')
    done = journal.read_bytes().count(b"\n")
    # What is done is not read again: those photos may even be gone.
    for number in range(done):
        (folder / f"p{number:03}.jpg").write_bytes(b"gone")
    result = run_batch(folder, "--output", output, "--batch-size", 32)
    assert (result.returncode, result.stdout) == (0, "")
    assert not done or f"{done} done before" in result.stderr
    assert [record["image"] for record in read_lines(journal)] == sorted(map(str, folder.iterdir()))
    assert len(output.read_text().splitlines()) == 121


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_it_has_finished(
    start_batch: Start, photos: Photos, tmp_path: Path, number: signal.Signals
) -> None:
    output = tmp_path / "c.jsonl"
    process = start_batch(photos(600), "--output", output, "--batch-size", 1)
    await_records(process, output)
    process.send_signal(number)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "interrupted; run the same command to resume"
    assert output.read_bytes().endswith(b"}\n")


def test_a_full_disk_costs_nothing_that_was_done(
    run_batch: Run, start_batch: Start, photos: Photos, tmp_path: Path
) -> None:
    """In the middle of a record, and of a sidecar."""
    folder, whole = photos(40), tmp_path / "whole.jsonl"
    assert run_batch(folder, "--batch-size", 4, "--output", whole).returncode == 0
    size = whole.stat().st_size
    for name, limit, more in (
        ("a.jsonl", size // 2, ()),
        ("b.csv", 2000, ("--sidecar", "json", "--attention")),
    ):
        output = tmp_path / name
        command = (folder, "--batch-size", 4, "--output", output, *more)
        # The limit on the size of a file is met as a full disk is: in the middle of a write.
        sizes = (resource.RLIMIT_FSIZE, (limit, limit))
        process = start_batch(*command, preexec_fn=partial(resource.setrlimit, *sizes))
        _, said = process.communicate(timeout=300)
        assert process.returncode == 1 and "Traceback" not in said, said
        assert "cannot be written" in said and "File too large" in said
        assert said.count("run the same command to resume") == 1
        assert run_batch(*command).returncode == 0
    assert (tmp_path / "a.jsonl").read_bytes() == whole.read_bytes()


def test_other_settings_are_refused_and_restart_begins_anew(
    tiny: Captioner, saved_tiny: Path, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(3), tmp_path / "c.jsonl"

    def run(captioner: Captioner = tiny, **options: Any) -> int:
        config = BatchConfig(**options)
        records = caption_batch(folder, output=output, config=config, captioner=captioner)
        return len(list(records))

    assert run() == 3
    before = output.read_bytes()
    changes = r": --beam-size was 5 and is 3; --language was en and is de\. .*--restart"
    with pytest.raises(ConfigError, match=changes):
        run(beam_size=3, language="de")
    # The name and version are the same; the weights are not.
    with pytest.raises(ConfigError, match="the model of --checkpoint was"):
        run(Captioner.from_pretrained(saved_tiny))
    assert output.read_bytes() == before
    # What does not change the records may change; and photos may come to those that are there.
    photos(2, first=3)
    assert run(batch_size=2, workers=1) == 2
    assert run(beam_size=3, restart=True) == 5
    for photo in folder.iterdir():
        photo.unlink()  # it may be moved when it is done
    assert run(beam_size=3) == 0
    assert len(output.read_text().splitlines()) == 5


def test_errors_are_kept_and_retried_when_asked(
    tiny: Captioner, photos: Photos, tmp_path: Path
) -> None:
    """The limit of pixels may change between runs: it does not change records."""
    folder, output = photos(4), tmp_path / "c.jsonl"
    good = (folder / "p003.jpg").read_bytes()
    for name in ("p001.jpg", "p003.jpg"):
        (folder / name).write_bytes(b"")
    errors = Path(f"{output}.errors.jsonl")

    def run(**options: Any) -> list[str]:
        made = caption_batch(folder, output=output, config=BatchConfig(**options), captioner=tiny)
        return [Path(record["image"]).stem + ("!" if "error" in record else "") for record in made]

    assert run(max_pixels=2399, restart=True) == ["p000!", "p001!", "p002!", "p003!"]
    assert run(max_pixels=2400, retry_errors=True) == ["p000", "p001!", "p002", "p003!"]
    (folder / "p003.jpg").write_bytes(good)
    assert run() == [] and len(read_lines(errors)) == 2
    assert run(retry_errors=True) == ["p001!", "p003"]
    assert [record["image"] for record in read_lines(errors)] == [str(folder / "p001.jpg")]
    (folder / "p001.jpg").write_bytes(good)
    assert run(retry_errors=True) == ["p001"]
    assert run() == [] and not errors.exists()
    names = [Path(record["image"]).stem for record in read_lines(output)]
    assert names == ["p000", "p002", "p003", "p001"]
