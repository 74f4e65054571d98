"""An XMP sidecar with a caption brought in: every byte of the old one, and ours between."""

from __future__ import annotations

from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest

from captioner import OutputError
from captioner_serving.batch.outputs.xmp import merge_xmp
from tests.serving.batch.test_sidecars import LIGHTROOM, exiftool, needs_exiftool

# Whatever a writer that makes the tree anew loses: line breaks and references in attributes, both
# kinds of quotes, comments, processing instructions, CDATA, references, prefixes of its own.
ODD = """<?xml version='1.0' encoding="UTF-8"   standalone='yes'?>
<?xpacket begin='\ufeff' id='W5M0MpCehiHzreSzNTczkc9d'?>
<!-- <rdf:Description> in a comment -->
<x:xmpmeta xmlns:x='adobe:ns:meta/'>
<r:RDF xmlns:r='http://www.w3.org/1999/02/22-rdf-syntax-ns#'>
  <r:Description   r:about=''
      xmlns:ours='http://purl.org/dc/elements/1.1/'
      xmlns:dc='http://example.org/not-dublin-core/'
      xmlns:xmp='http://ns.adobe.com/xap/1.0/'
      xmp:Label='a
b\tc&#10;d "e" &gt; f'
      xmp:Rating = "4" >
    <?keep this="too"?>
    <dc:description>not ours</dc:description>
    <ours:subject><r:Bag><r:li><![CDATA[sea & sun]]></r:li>
<r:li>&#x41;&#66;</r:li ></r:Bag></ours:subject>
    <ours:description><r:Alt><!-- kept -->
      <r:li xml:lang='x-default'>Meer &amp; Strand</r:li>
      <r:li xml:lang='de'>Meer &amp; Strand</r:li>
      <r:li xml:lang="fr"><![CDATA[la <mer>]]></r:li></r:Alt></ours:description>
    <ours:format/>
  </r:Description>
  <r:Description r:about="" xmlns:tiff="http://ns.adobe.com/tiff/1.0/"
    tiff:Make = "Ca&quot;non"/>
</r:RDF></x:xmpmeta>
<?xpacket end='w'?>

  """

BOM = b"\xef\xbb\xbf"


def merged(old: bytes, caption: str = "a dog", existing: Any = "skip") -> bytes:
    new = merge_xmp(old, caption, language="en", existing=existing, path="photo.xmp")
    assert new is not None
    return new


def added(old: bytes, new: bytes) -> list[bytes]:
    """What stands in the new file between the bytes of the old one, of which none is gone."""
    parts = []
    for kind, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        assert kind in ("equal", "insert"), (kind, old[i1:i2], new[j1:j2])
        if kind == "insert":
            parts.append(new[j1:j2])
    return parts


@needs_exiftool
@pytest.mark.parametrize(
    "change",
    [
        lambda old: old,
        lambda old: BOM + old,
        lambda old: old.replace(b"\n", b"\r\n"),
        lambda old: old.replace(b"\n", b"\r"),
        lambda old: b"\xff\xfe" + old.decode().replace("UTF-8", "UTF-16").encode("utf-16-le"),
    ],
    ids=["as it is", "byte order mark", "CRLF", "CR", "UTF-16"],
)
def test_every_byte_of_others_stays(change: Any, tmp_path: Path) -> None:
    path = tmp_path / "photo.xmp"
    old = change(ODD.encode())
    path.write_bytes(old)
    before = exiftool(path, odd=True)
    new = merged(old)
    # Two places: the other language in the list, and the property that was missing.
    assert len(added(old, new)) <= 4 and len(new) > len(old)
    path.write_bytes(new)
    after = exiftool(path, odd=True)
    assert after["Description-en"] == after["AltTextAccessibility"] == "a dog"
    assert after["Description-de"] == after["Description"] == "Meer & Strand"
    assert after["Description-fr"] == "la <mer>"
    ours = {"Description-en", "AltTextAccessibility", "AltTextAccessibility-en"}
    assert {key: value for key, value in after.items() if key not in ours} == before
    assert merge_xmp(new, "a dog", language="en", existing="skip", path="photo.xmp") is None
    if b"\r" in old and b"\0" not in old:
        assert new.count(b"\n") == (new.count(b"\r") if b"\r\n" in old else 0)


def test_a_longer_text_keeps_the_bytes_of_the_old_one() -> None:
    old = LIGHTROOM.replace("Am Strand", "S&#228;nd &amp;\r\n<![CDATA[<sea>]]>").encode()
    old = old.replace(b'"de"', b'"en"')
    for existing in ("append", "prepend"):
        new = merged(old, existing=existing)
        assert len(added(old, new)) == 3, existing  # twice the words, once the other property
        again = merge_xmp(new, "a dog", language="en", existing=existing, path="x")  # type: ignore
        assert again is None


@needs_exiftool
def test_latin_1_stays_latin_1(tmp_path: Path) -> None:
    path = tmp_path / "photo.xmp"
    text = LIGHTROOM.replace('<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n', "")
    old = ('<?xml version="1.0" encoding="iso-8859-1"?>' + text.replace("Am", "Süd")).encode("l1")
    new = merged(old, "a dog in 日本")
    assert b"".join(added(old, new)).count(b"a dog in &#26085;&#26412;") == 3
    path.write_bytes(new)
    assert "S\xfcd Strand".encode("l1") in new and b"&#26085;" in new


def test_a_word_of_the_vocabulary_cannot_steer_whoever_shows_it() -> None:
    new = merged(LIGHTROOM.encode(), "a \x1b[2J\x9bdog\x00\ud800\ufffe")
    assert "a \ufffd[2J\ufffddog\ufffd\ufffd\ufffd".encode() in new
    assert merge_xmp(new, "a \x1b[2J\x9bdog\x00\ud800\ufffe", language="en",
                     existing="append", path="x") in (None, new)  # fmt: skip


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ("<rdf:Bag><rdf:li>mine</rdf:li></rdf:Bag>", "is not a text in some languages"),
        ("<rdf:Alt><rdf:li><rdf:value>mine</rdf:value></rdf:li></rdf:Alt>", "is not a text"),
    ],
)
def test_a_text_in_a_form_of_its_own_is_refused(old: str, said: str) -> None:
    begin = LIGHTROOM.index("<rdf:Alt>")
    end = LIGHTROOM.index("</rdf:Alt>") + len("</rdf:Alt>")
    data = (LIGHTROOM[:begin] + old + LIGHTROOM[end:]).encode()
    with pytest.raises(OutputError, match=said):
        merged(data, existing="overwrite")


def test_entities_are_refused() -> None:
    declared = '<!DOCTYPE x [<!ENTITY mine "text">]>' + LIGHTROOM[LIGHTROOM.index("<x:") :]
    with pytest.raises(OutputError, match="declares an entity, mine"):
        merged(declared.replace("Am Strand", "&mine;").encode())


@pytest.mark.parametrize(
    ("old", "said"),
    [
        (b"<x>" + b"<y/>" * (1 << 18) + b"</x>", "more than 262,144 elements"),
        (b'<?xml version="1.0" encoding="idna"?><x/>', "unknown encoding: idna"),
    ],
)
def test_what_would_take_all_memory_or_time_is_refused(old: bytes, said: str) -> None:
    with pytest.raises(OutputError, match=said):
        merged(old)
