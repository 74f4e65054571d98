"""--restart takes back what a run wrote beside the photos, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from captioner import Captioner, OutputError
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.files import RunFiles
from captioner_serving.batch.outputs.written import WrittenFiles
from captioner_serving.batch.wording import Wording

Photos = Callable[..., Path]


def test_restart_takes_back_sidecars_that_nobody_has_changed(
    tiny: Captioner, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(4), tmp_path / "c.jsonl"
    (folder / "p001.txt").write_text("mine\r\n")
    (folder / "p003.txt").write_text("mine too")

    def run(prefix: str, **options: Any) -> list[str]:
        config = BatchConfig(wording=Wording(prefix=prefix), **options)
        records = caption_batch(folder, output=output, config=config, captioner=tiny)
        return [record["caption"] for record in records]

    text: dict[str, Any] = {"sidecar": "txt", "existing": "prepend"}
    before = run("Old: ", **text)
    assert (folder / "p001.txt").read_text() == f"{before[1]} mine\n"
    (folder / "p002.txt").write_text("edited")
    (folder / "p003.txt").write_text(f"{before[3]} edited")
    after = run("New: ", restart=True, **text)
    assert [(folder / f"p00{number}.txt").read_text() for number in range(4)] == [
        f"{after[0]}\n",
        f"{after[1]} mine\n",
        f"{after[2]} edited\n",
        f"{after[3]} {before[3]} edited\n",
    ]
    run("No sidecars: ", restart=True)
    assert not (folder / "p000.txt").exists()
    assert (folder / "p001.txt").read_bytes() == b"mine\r\n"
    assert (folder / "p002.txt").read_text() == "edited"
    assert not RunFiles(output).written.exists()


def test_restart_takes_back_maps(tiny: Captioner, photos: Photos, tmp_path: Path) -> None:
    folder, output, maps = photos(2), tmp_path / "c.jsonl", tmp_path / "maps"
    config = BatchConfig(maps="overlay", maps_to=str(maps))
    list(caption_batch(folder, output=output, config=config, captioner=tiny))
    first, second = sorted(maps.rglob("*.png"))
    second.write_bytes(b"mine")
    list(caption_batch(folder, output=output, config=BatchConfig(restart=True), captioner=tiny))
    assert not first.exists() and second.read_bytes() == b"mine"


@pytest.mark.parametrize("torn", [b"", b'{"path": "torn'])
def test_a_killed_run_knows_what_it_wrote(torn: bytes, tmp_path: Path) -> None:
    files, one, two = RunFiles(tmp_path / "c.jsonl"), tmp_path / "one", tmp_path / "two"
    written = WrittenFiles(files)
    written.write(one, b"first", old=None)
    written.close()
    with files.written.open("ab") as file:
        file.write(torn)
    written.write(one, b"second", old=b"first")
    two.mkdir()  # it cannot be written
    with pytest.raises(OutputError):
        written.write(two, b"never written", old=b"theirs")
    two.rmdir()
    two.write_bytes(b"theirs")
    written.take_back()
    assert not one.exists() and not files.written.exists()
    assert two.read_bytes() == b"theirs"
