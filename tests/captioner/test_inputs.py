"""No command writes over what it reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from captioner.errors import ConfigError
from captioner.files import refuse_input


def test_a_file_that_is_read_is_not_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.tar").touch()
    (tmp_path / "boxes.json").touch()
    (tmp_path / "link.json").symlink_to("boxes.json")
    read = (data, None, tmp_path / "boxes.json")
    for name in ("boxes.json", "link.json", "data/train.tar", "data/../boxes.json"):
        with pytest.raises(ConfigError, match=f"--predictions .*{name} would overwrite"):
            refuse_input("--predictions", tmp_path / name, read)
    for name in ("new.json", "data/new.json", "other/boxes.json"):
        refuse_input("--predictions", tmp_path / name, read)


@pytest.mark.parametrize("option", ["--captions", "--checkpoint", "--boxes"])
def test_predictions_are_not_written_over_what_evaluate_reads(
    run_main: Callable[..., object], tmp_path: Path, option: str
) -> None:
    kept = tmp_path / "kept"
    kept.write_text("[]")
    options = ("--captions", kept, "--images", tmp_path)
    result = run_main("evaluate", *options, option, kept, "--predictions", kept)
    assert result.returncode == 2  # type: ignore[attr-defined]
    assert "would overwrite" in result.stderr  # type: ignore[attr-defined]
    assert kept.read_text() == "[]"
