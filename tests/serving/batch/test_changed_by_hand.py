"""Outputs that somebody has changed: they are refused, and never cut or copied from."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from captioner import Captioner, OutputError
from captioner_serving.batch import caption_batch

Photos = Callable[..., Path]


def test_a_changed_output_is_not_cut(tiny: Captioner, photos: Photos, tmp_path: Path) -> None:
    folder, output = photos(3), tmp_path / "c.jsonl"
    list(caption_batch(folder, output=output, captioner=tiny))
    whole = output.read_bytes()
    output.write_bytes(whole.replace(b'"caption": "', b'"caption": "no: ', 1))
    changed = output.read_bytes()
    with pytest.raises(OutputError, match="was changed after the run"):
        list(caption_batch(folder, output=output, captioner=tiny))
    assert output.read_bytes() == changed
    os.truncate(output, 10)
    with pytest.raises(OutputError, match="put the file back"):
        list(caption_batch(folder, output=output, captioner=tiny))
    output.unlink()
    with pytest.raises(OutputError, match=r"c\.jsonl is gone: put the file back"):
        list(caption_batch(folder, output=output, captioner=tiny))
    assert not output.exists()
    output.write_bytes(whole)
    state = Path(f"{output}.run.json").rename(tmp_path / "state")
    with pytest.raises(OutputError, match="already exists, and no run of this output"):
        list(caption_batch(folder, output=output, captioner=tiny))
    assert output.read_bytes() == whole
    state.rename(f"{output}.run.json")
    assert list(caption_batch(folder, output=output, captioner=tiny)) == []


def test_lines_added_by_hand_are_not_cut(tiny: Captioner, photos: Photos, tmp_path: Path) -> None:
    folder, output = photos(3), tmp_path / "c.jsonl"
    run = partial(caption_batch, folder, output=output, captioner=tiny)
    list(run())
    whole = output.read_bytes()
    output.write_bytes(whole + b'{"image": "mine.jpg"}\n')
    for _ in range(2):
        with pytest.raises(OutputError, match="was changed after the run"):
            list(run())
    assert output.read_bytes().endswith(b'mine.jpg"}\n')
    output.write_bytes(whole)
    assert list(run()) == []
    # What follows the last commit of a run that was killed is its own, and is done again.
    state = Path(f"{output}.run.json")
    killed = state.read_text().replace('"ended": true', '"ended": false')
    for torn in (b'{"image": "half', b'{"image": "half' + bytes(40), bytes(40)):  # a power cut
        state.write_text(killed)
        output.write_bytes(whole + torn)
        assert list(run()) == []
        assert output.read_bytes() == whole
    # But lines that no run writes are somebody's, after a kill too.
    for mine in (b'{"image": "mine.jpg", "caption": "my dog"}\n', b"a note\n", b"to be done"):
        state.write_text(killed)
        output.write_bytes(whole + mine)
        with pytest.raises(OutputError, match="was changed after the run"):
            list(run())
        assert output.read_bytes() == whole + mine
