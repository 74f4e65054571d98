"""Records in their own letters."""

from __future__ import annotations

import json

import pytest

from captioner.json_line import json_line

NAMES = [
    "Müller.jpg",
    "日本.jpg",
    "a\u2028b\x85c",
    "\udcff\ud800",
    "\x9b2J",
    "\u202egpj.exe",
    '"\\\n\x1b',
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "latin-1"])
def test_a_record_is_a_line_that_any_program_reads(name: str, encoding: str) -> None:
    record = {"image": name, "words": [{"word": name}]}
    line = json_line(record, encoding=encoding)
    assert json.loads(line.encode(encoding)) == record  # no surrogate is left to fail
    assert len(line.splitlines()) == 1
    assert not any(0x7F <= ord(letter) < 0xA0 or ord(letter) == 0x202E for letter in line)


def test_letters_stay_where_the_stream_holds_them() -> None:
    assert json_line({"image": "日本 ü.jpg"}) == '{"image": "日本 ü.jpg"}'
    for other in ("latin-1", None):  # a StringIO has none
        assert json_line({"image": "ü"}, encoding=other) == r'{"image": "\u00fc"}'
