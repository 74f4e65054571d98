"""An XMP sidecar with a caption brought in: as exiftool reads it, and all of the old one."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captioner import OutputError
from captioner_serving.batch.outputs.xmp import merge_xmp
from tests.properties import FEW
from tests.serving.batch.conftest import exiftool

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
needs_exiftool = pytest.mark.needs("exiftool")

LIGHTROOM = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="Adobe XMP Core 7.0">
 <!-- edited by hand -->
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""
    xmlns:xmp="http://ns.adobe.com/xap/1.0/"
    xmlns:crs="http://ns.adobe.com/camera-raw-settings/1.0/"
    xmlns:dc="http://purl.org/dc/elements/1.1/"
   xmp:Rating="4" crs:Exposure2012="+0.35">
   <dc:subject>
    <rdf:Bag><rdf:li>holiday &amp; sea</rdf:li><rdf:li>2024</rdf:li></rdf:Bag>
   </dc:subject>
   <dc:description>
    <rdf:Alt>
     <rdf:li xml:lang="x-default">Am Strand</rdf:li>
     <rdf:li xml:lang="de">Am Strand</rdf:li>
    </rdf:Alt>
   </dc:description>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""
# What a writer that makes the tree anew may lose: references in attributes, comments, processing
# instructions, CDATA, prefixes of its own.
ODD = """<?xml version='1.0' encoding="UTF-8"   standalone='yes'?>
<?xpacket begin='\ufeff' id='W5M0MpCehiHzreSzNTczkc9d'?>
<!-- <rdf:Description> in a comment -->
<x:xmpmeta xmlns:x='adobe:ns:meta/'>
<r:RDF xmlns:r='http://www.w3.org/1999/02/22-rdf-syntax-ns#'>
  <r:Description   r:about=''
      xmlns:ours='http://purl.org/dc/elements/1.1/'
      xmlns:dc='http://example.org/not-dublin-core/'
      xmlns:xmp='http://ns.adobe.com/xap/1.0/'
      xmp:Label='a b c&#10;d "e" &gt; f'
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
ALT = LIGHTROOM[LIGHTROOM.index("<rdf:Alt>") : LIGHTROOM.index("</rdf:Alt>") + len("</rdf:Alt>")]
HEAD = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns'
    '#"><r:Description r:about="" xmlns:d="http://purl.org/dc/elements/1.1/"'
)
TAIL = "</r:RDF></x:xmpmeta>"


def merge(
    old: bytes, caption: str = "a dog", existing: Any = "skip", language: str = "en"
) -> bytes | None:
    return merge_xmp(old, caption, language=language, existing=existing, path="photo.xmp")


def merged(old: bytes, caption: str = "a dog", existing: Any = "skip") -> bytes:
    """Bring a caption in. A run that was killed does it again, and nothing changes."""
    new = merge(old, caption, existing)
    assert new is not None and merge(new, caption, existing) in (None, new)
    return new


def descriptions(tags: dict[str, Any]) -> dict[str, Any]:
    return {tag: text for tag, text in tags.items() if tag.startswith("Description")}


def tags_of(folder: Path, *files: bytes | None, odd: bool = False) -> list[dict[str, Any]]:
    """Everything that exiftool finds; it may remark on a file only if that is odd."""
    paths = [folder / f"{number:02}.xmp" for number in range(len(files))]
    for path, data in zip(paths, files, strict=True):
        assert data is not None
        path.write_bytes(data)
    options = ("-json", "-XMP:all", "-Warning", "-Error", "-validate")
    found: list[dict[str, Any]] = json.loads(exiftool(*options, *paths))
    for one in found:
        assert odd or ("Warning" not in one and "Error" not in one), one
        del one["SourceFile"]
    return found


@needs_exiftool
def test_a_sidecar_keeps_all_it_holds(tmp_path: Path) -> None:
    old, caption, later = LIGHTROOM.encode(), "a <dog> & 'cat'", "a bird"
    ways = {
        "skip": caption,
        "overwrite": later,
        "append": f"{caption} {later}",
    }
    news = [merged(old, caption, way) for way in ways]
    again = [merge(new, later, way) or new for new, way in zip(news, ways, strict=True)]
    before, *found = tags_of(tmp_path, old, *news, *again)
    added = {"Description-en", "AltTextAccessibility", "AltTextAccessibility-en", "Description"}
    for way, after, last in zip(ways, found[:3], found[3:], strict=True):
        assert after["Description-en"] == after["AltTextAccessibility-en"] == caption
        assert after["Description"] == (caption if way == "overwrite" else "Am Strand")
        assert last["Description-en"] == ways[way]
        for one in (after, last):
            assert one["Description-de"] == "Am Strand"
            assert {k: v for k, v in one.items() if k not in added} == {
                k: v for k, v in before.items() if k not in added
            }
    assert all(b"<!-- edited by hand -->" in new and b"<?xpacket begin=" in new for new in news)


@needs_exiftool
def test_a_regional_form_is_a_text_in_the_language(tmp_path: Path) -> None:
    old = LIGHTROOM.replace("Am Strand</rdf:li>\n     <rdf:li", "Sea</rdf:li>\n     <rdf:li")
    cases = [
        ("en-US", "en", True),
        ("en-us", "EN", True),
        ("en", "en-GB", True),
        ("en-US", "en-GB", False),
        ("enm", "en", False),
        ("pt-BR", "pt-PT", False),
        ("zh-Hant-TW", "zh-Hant", True),
    ]
    news = [
        merge(
            old.replace('xml:lang="de">Am Strand', f'xml:lang="{there}">Sea').encode(),
            language=language,
            existing=existing,
        )
        for there, language, _ in cases
        for existing in ("skip", "overwrite")
    ]
    found = [descriptions(tags) for tags in tags_of(tmp_path, *news)]
    for case, kept, written in zip(cases, found[::2], found[1::2], strict=True):
        assert kept.pop("Description") == "Sea", case
        assert written.pop("Description") == "a dog" and "a dog" in written.values(), case
        assert len(kept) == len(written) == (1 if case[2] else 2), case


@pytest.mark.parametrize("blank", ["", "  ", "\n"])
@pytest.mark.parametrize("language", ["x-default", "en", "en-US"])
def test_a_blank_text_is_filled(blank: str, language: str) -> None:
    item = f'<rdf:Alt><rdf:li xml:lang="{language}">{blank}</rdf:li></rdf:Alt>'
    texts = languages(merged(LIGHTROOM.replace(ALT, item).encode()), "description")
    assert len(texts) == 2 and set(texts.values()) == {"a dog"}
    short = merged(f'{HEAD} d:description="{blank.strip()}"/>{TAIL}'.encode())
    assert set(languages(short, "description").values()) == {"a dog"}


@needs_exiftool
def test_texts_as_attributes_or_plain_text_are_merged(tmp_path: Path) -> None:
    """A description as an attribute, or as plain text, as some programs write it."""
    short = f'{HEAD} d:description="mine" d:format="image/jpeg"/>{TAIL}'
    parts = "<d:description>mine</d:description><d:format>image/jpeg</d:format>"
    plain = f"{HEAD}>{parts}</r:Description>{TAIL}"
    ours = [merged(form.encode(), existing="append") for form in (short, plain)]
    for found in tags_of(tmp_path, *ours):
        assert found["Description"] == found["Description-en"] == "mine a dog"
        assert (found["AltTextAccessibility"], found["Format"]) == ("a dog", "image/jpeg")


@needs_exiftool
def test_content_of_other_programs_is_kept(tmp_path: Path) -> None:
    """With a byte order mark, other line breaks, and in UTF-16 too."""
    odd = ODD.encode()
    wide = b"\xff\xfe" + ODD.replace("UTF-8", "UTF-16").encode("utf-16-le")
    olds = (odd, b"\xef\xbb\xbf" + odd, odd.replace(b"\n", b"\r\n"), wide)
    news = [merged(old) for old in olds]
    kept = (b"<?keep this", b"<!-- kept -->", b"<![CDATA[sea & sun]]>", b"c&#10;d", b"?xpacket end")
    assert all(part in new for new in news for part in kept)
    found = tags_of(tmp_path, *olds, *news, odd=True)
    ours = {"Description-en", "AltTextAccessibility", "AltTextAccessibility-en"}
    for before, after in zip(found[:4], found[4:], strict=True):
        assert after["Description-en"] == after["AltTextAccessibility"] == "a dog"
        assert after["Description-de"] == after["Description"] == "Meer & Strand"
        assert {key: value for key, value in after.items() if key not in ours} == before


def test_control_characters_of_words_are_replaced_in_xmp() -> None:
    new = merged(LIGHTROOM.encode(), "a \x1b[2J\x9bdog\x00\ud800\ufffe")
    assert "a \ufffd[2J\ufffddog\ufffd\ufffd\ufffd".encode() in new


WORDS = st.text("aBé<&'\" ", min_size=1, max_size=6).map(lambda text: f"w{text}w")


@FEW
@given(
    there=st.dictionaries(st.sampled_from(["de", "fr-CA", "en-GB", "pt"]), WORDS, max_size=3),
    default=st.none() | WORDS,
    caption=WORDS,
    existing=st.sampled_from(["skip", "overwrite", "append"]),
)
def test_a_merge_keeps_other_languages_and_may_be_repeated(
    there, default, caption, existing
) -> None:
    """Of any texts that are there: `en-GB` is one in the caption's language, `en`.

    A default is a text of the caption's language, unless it repeats another. It is the first text.
    """
    if default is None and there:
        default = next(iter(there.values()))
    others = {tag: text for tag, text in there.items() if tag != "en-GB"}
    there = {**({} if default is None else {"x-default": default}), **there}
    items = "".join(
        f"<rdf:li xml:lang={quoteattr(tag)}>{escape(text)}</rdf:li>" for tag, text in there.items()
    )
    old = LIGHTROOM.replace(ALT, f"<rdf:Alt>{items}</rdf:Alt>").encode()
    new = merged(old, caption, existing)
    after = languages(new, "description")
    assert others.items() <= after.items() and next(iter(after)) == "x-default"
    own = after.get("en-GB", after.get("en", after["x-default"]))
    mine = there.get("en-GB", None if default in others.values() else default)
    if mine is None or existing == "overwrite":
        assert own == caption
    elif existing == "skip":
        assert own == mine
    else:
        assert caption in own and mine in own and len(own) <= len(f"{caption} {mine}")
    missing = {"x-default": caption, "en": caption}
    assert languages(new, "AltTextAccessibility") == missing


def languages(sidecar: bytes, name: str) -> dict[str, str]:
    """The texts of a property by language, as the standard library reads them."""
    (found,) = [part for part in ET.fromstring(sidecar).iter() if part.tag.endswith(f"}}{name}")]
    return {item.attrib[LANGUAGE]: item.text or "" for item in found[0]}


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ("<x:xmpmeta>", "is not XML"),
        ("<x>\udcff</x>", "is not XML"),
        ("<svg/>", "is not XMP"),
        (LIGHTROOM.replace(ALT, "<rdf:Bag/>"), "rdf:Alt"),
        (LIGHTROOM.replace(ALT, "<rdf:Alt><rdf:li><a/></rdf:li></rdf:Alt>"), "rdf:Alt"),
        ('<!DOCTYPE x [<!ENTITY mine "text">]><x/>', "DOCTYPE"),
    ],
)
def test_what_cannot_be_merged_is_refused(old: str, said: str) -> None:
    with pytest.raises(OutputError, match=said):
        merge(old.encode(errors="surrogateescape"), existing="overwrite")
