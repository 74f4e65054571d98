"""A run does not overwrite photos, inputs and foreign or finished files; and --restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from captioner import Captioner, OutputError
from captioner.shared.text import json_line
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.files import RunFiles
from captioner_serving.batch.outputs.written import WrittenFiles
from captioner_serving.batch.wording import Wording
from tests.conftest import read_tree
from tests.launcher import Run
from tests.serving.batch.conftest import Photos, read_lines

Caption = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def caption(tiny: Captioner, tmp_path: Path) -> Caption:
    """Caption photos, by default into c.jsonl."""

    def run(sources: Any, output: str = "c.jsonl", **options: Any) -> list[dict[str, Any]]:
        config = BatchConfig(**options)
        return list(caption_batch(sources, output=tmp_path / output, config=config, captioner=tiny))

    return run


def test_lines_that_are_not_records_are_never_cut(
    caption: Caption, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(3), tmp_path / "c.jsonl"
    state = Path(f"{output}.run.json")
    caption(folder)
    whole = output.read_bytes()
    changes = {whole + b"a note\n": 4, whole + b"to be done": 4, b"[]\n" + whole: 1}
    for changed, line in {**changes, whole + b"{}\n": 4}.items():
        output.write_bytes(changed)
        for _ in range(2):
            with pytest.raises(OutputError, match=rf"\(line {line}\): restore .*--restart"):
                caption(folder)
        assert output.read_bytes() == changed
    output.unlink()
    with pytest.raises(OutputError, match=r"c\.jsonl is missing: restore the file"):
        caption(folder)
    assert not output.exists()
    output.write_bytes(whole)
    saved = state.read_bytes()
    state.unlink()
    with pytest.raises(OutputError, match="exists and is not from an earlier run"):
        caption(folder)
    assert output.read_bytes() == whole
    state.write_bytes(saved)
    # A torn line is cut off, and so are the zeros that a power cut leaves.
    for torn in (b"", b"{", b'{"image": "half', b'{"image": "half' + bytes(40), bytes(40)):
        output.write_bytes(whole + torn)
        assert caption(folder) == [] and output.read_bytes() == whole
    first, second, third = whole.splitlines(keepends=True)
    output.write_bytes(first + second[:50] + bytes(20) + b"\n" + third)
    assert len(caption(folder)) == 2 and output.read_bytes() == whole


def test_records_that_were_corrected_by_hand_stay(
    caption: Caption, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(3), tmp_path / "c.jsonl"
    caption(folder)
    first, second, third = read_lines(output)
    corrected = {**first, "caption": "a corrected caption"}
    text = json.dumps(corrected, separators=(",", ":")) + "\n"
    text += json.dumps(dict(reversed(second.items()))) + "\n" + json.dumps(third) + "\n"
    output.write_text(text)
    photos(1, first=3)
    (new,) = caption(folder)
    assert output.read_text() == text + json_line(new) + "\n"


@pytest.mark.parametrize("damaged", ["", '{"format": 1, "settings": {}}'])
def test_a_damaged_state_is_a_sentence(
    caption: Caption, photos: Photos, tmp_path: Path, damaged: str
) -> None:
    folder = photos(1)
    caption(folder)
    (tmp_path / "c.jsonl.run.json").write_text(damaged)
    before = read_tree(tmp_path)
    with pytest.raises(OutputError, match=r"run\.json is damaged or from another version"):
        caption(folder)
    assert read_tree(tmp_path) == before


def test_restart_deletes_the_sidecars_that_the_run_and_convert_created(
    caption: Caption, photos: Photos, tmp_path: Path, run_main: Run
) -> None:
    """Sidecars that were there before the run, or were edited since, stay."""
    folder = photos(4)
    texts = [folder / f"p00{number}.txt" for number in range(4)]
    texts[1].write_text("mine\r\n")

    def run(prefix: str, **options: Any) -> list[str]:
        wording = Wording(template=prefix + "{caption}")
        return [one["caption"] for one in caption(folder, wording=wording, **options)]

    before = run("Old: ", sidecar="txt", existing="append")
    assert texts[1].read_text() == f"mine {before[1]}\n"
    texts[2].write_text("edited")
    convert = ("convert", tmp_path / "c.jsonl", "--template", "New: {caption}", "--sidecar")
    assert run_main(*convert, "txt", "--existing", "append").returncode == 0
    assert run_main(*convert, "xmp").returncode == 0
    kept = [text.read_text() for text in texts]
    assert kept[0].startswith("Old: ") and "New: " in kept[0]
    run("No sidecars: ", restart=True)
    assert [text.exists() for text in texts] == [False, True, True, False]
    assert [texts[at].read_text() for at in (1, 2)] == kept[1:3] and not list(folder.glob("*.xmp"))
    assert not RunFiles(tmp_path / "c.jsonl").written.exists()


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
    written.delete_files()
    assert not one.exists() and not files.written.exists()
    assert two.read_bytes() == b"theirs"


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
