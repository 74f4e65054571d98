"""XMP sidecars: description, alt text and keywords, merged into what is there.

The properties are dc:description, Iptc4xmpCore:AltTextAccessibility and dc:subject. XMP (ISO
16684-1) writes a text in several languages as an rdf:Alt, one rdf:li a language; the first is
"x-default", and repeats one of the others. Keywords are the items of an rdf:Bag. Everything else
stays, comments and other programs' settings included; white space between tags may change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lxml import etree

from captioner.errors import OutputError
from captioner_serving.batch.wording import Existing, combine

__all__ = ["legal_text", "merge_languages", "merge_xmp", "missing_keywords"]

_NAMES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
}
_PROPERTIES = ("dc:description", "Iptc4xmpCore:AltTextAccessibility")
_KEYWORDS = "dc:subject"
_LISTS = ("rdf:Bag", "rdf:Seq", "rdf:Alt")  # some programs write another than the Bag
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_DEFAULT = "x-default"
_EMPTY = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""/>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""
_ILLEGAL = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def merge_xmp(
    old: bytes | None,
    caption: str,
    *,
    keywords: Sequence[str] = (),
    language: str,
    existing: Existing,
    path: str,
) -> bytes | None:
    """Put a caption into both text properties of an XMP sidecar, and add keywords.

    Args:
        old: the sidecar as it is; None where there is none.
        caption: the text.
        keywords: those that are missing are added, whatever `existing` is.
        language: of the caption, as a tag of RFC 3066.
        existing: what becomes of a text that a property has already; skip keeps it, and fills in
            a property that is missing.
        path: what errors call the file.

    Returns:
        The sidecar as it shall be, in UTF-8, or None where all was there already.

    Raises OutputError: the sidecar is not XMP, or holds a text in a form that XMP does not have.
    """
    caption = legal_text(caption)
    # A sidecar may be a stranger's: no entity and no address in it stands for anything.
    parser = etree.XMLParser(resolve_entities=False, no_network=True, strip_cdata=False)
    try:
        root = etree.fromstring(_EMPTY.encode() if old is None else old, parser)
    except etree.XMLSyntaxError as error:
        raise OutputError(
            f"{path} exists and is not XML ({error}): it was left as it is; repair or remove it"
        ) from error
    if root.getroottree().docinfo.doctype:
        raise OutputError(f"{path} declares a document type, which XMP has not: remove that")
    rdf = next(root.iter(_tag("rdf:RDF")), None)
    if rdf is None:
        raise OutputError(f"{path} exists and is not XMP: it was left as it is; move it away")
    before = _written(root)
    # Descriptions stand in one another too, as values; those of the photo are children of RDF.
    own = rdf.findall(_tag("rdf:Description"))
    if not own:
        own = [_add(rdf, "rdf:Description")]
        own[0].set(_tag("rdf:about"), "")
    for name in map(_tag, _PROPERTIES):
        element = next((child for part in own for child in part.findall(name)), None)
        if element is None:
            # A text may be an attribute too, which has no place for languages.
            holder = next((part for part in own if name in part.attrib), own[0])
            text = combine(holder.get(name), caption, existing)
            if text is None or text == holder.get(name):
                continue
            holder.attrib.pop(name, None)
            _fill(_add(holder, name), text, language=language, existing=existing, path=path)
        else:
            _fill(element, caption, language=language, existing=existing, path=path)
    _add_keywords(own, list(map(legal_text, keywords)), path=path)
    new = _written(root)
    return None if old is not None and new == before else new


def _fill(element: Any, caption: str, *, language: str, existing: Existing, path: str) -> None:
    """Bring the caption into a property, in its language and as default."""
    alternatives = element.find(_tag("rdf:Alt"))
    items = [] if alternatives is None else alternatives.findall(_tag("rdf:li"))
    children = [*element.iterchildren(etree.Element)]
    if len(children) > (alternatives is not None) or any(len(item) for item in items):
        raise OutputError(
            f"{path} has a {element.prefix}:{etree.QName(element).localname} that is not a text in "
            "some languages: it stays as it is"
        )
    named = {item.get(_LANGUAGE, "").lower(): item for item in items}
    texts = {tag: item.text or "" for tag, item in named.items()}
    if alternatives is None and (plain := (element.text or "").strip()):
        texts = {_DEFAULT: plain}
    changes = merge_languages(texts, caption, language=language, existing=existing)
    if changes and alternatives is None:
        element.text = None
        alternatives = _add(element, "rdf:Alt")
    for tag, text in changes.items():
        if (item := named.get(tag)) is None:
            first = items[0] if items and tag == _DEFAULT else None
            item = _add(alternatives, "rdf:li", at=first)
            item.set(_LANGUAGE, tag)
        if item.text != text:
            item.text = text


def merge_languages(
    texts: Mapping[str, str], caption: str, *, language: str, existing: Existing
) -> dict[str, str]:
    """Bring a caption into a text in several languages: return the texts to set, by language.

    A text in "en-US" is one in "en", and the other way round. A default that repeats the text of
    another language belongs to that language; any other default is the text in this language if it
    has none.

    Args:
        texts: by language, in lower case; the default's is "x-default".
        caption: the new text.
        language: of the caption.
        existing: see merge_xmp.
    """
    own, default = _in_language(texts, language.lower()), texts.get(_DEFAULT)
    others = [text for tag, text in texts.items() if tag not in (own, _DEFAULT)]
    current = None
    if own is not None:
        current = texts[own]
    elif default not in others:
        current = default
    text = combine(current, caption, existing)
    if text is None:
        return {}
    changes = {own or language: text}
    if default is None or default == current or not default.strip() or existing == "overwrite":
        changes = {_DEFAULT: text, **changes}
    return changes


def missing_keywords(present: Iterable[str], keywords: Iterable[str]) -> list[str]:
    """Return the keywords that are not present in any case."""
    folded = {keyword.strip().casefold() for keyword in present}
    return [keyword for keyword in keywords if keyword.casefold() not in folded]


def legal_text(text: str) -> str:
    """Replace what XML cannot hold, and control characters that it can, by U+FFFD."""
    return _ILLEGAL.sub("\ufffd", text)


def _add_keywords(descriptions: Sequence[Any], keywords: Sequence[str], *, path: str) -> None:
    """Add keywords to the rdf:Bag of the photo's descriptions."""
    name = _tag(_KEYWORDS)
    element = next((child for part in descriptions for child in part.findall(name)), None)
    # A single keyword may be an attribute or plain text, which have no place for more.
    holder = next((part for part in descriptions if name in part.attrib), descriptions[0])
    present, bag = [holder.get(name, "")], None
    if element is not None:
        children = [*element.iterchildren(etree.Element)]
        bag = next((child for child in children if child.tag in map(_tag, _LISTS)), None)
        items = [] if bag is None else bag.findall(_tag("rdf:li"))
        if len(children) > (bag is not None) or any(len(item) for item in items):
            raise OutputError(f"{path} has a {_KEYWORDS} that is not a list: it stays as it is")
        present = [item.text or "" for item in items] or [(element.text or "").strip()]
    missing = missing_keywords(present, keywords)
    if not missing:
        return
    if bag is None:
        holder.attrib.pop(name, None)
        element = _add(holder, name) if element is None else element
        element.text = None
        bag = _add(element, "rdf:Bag")
        missing = [*filter(None, present), *missing]
    for keyword in missing:
        _add(bag, "rdf:li").text = keyword


def _in_language(tags: Iterable[str], language: str) -> str | None:
    """Return the tag of a language; "en-US" counts as "en", and the other way round."""
    if language in (tags := list(tags)):
        return language
    related = (
        tag
        for tag in tags
        if tag.startswith(f"{language}-") or (tag and language.startswith(f"{tag}-"))
    )
    return next(related, None)


def _add(parent: Any, name: str, *, at: Any = None) -> Any:
    """Add a child behind the others, or before one of them, on a line of its own where they are."""
    tag = name if name.startswith("{") else _tag(name)
    prefix, space = next(pair for pair in _NAMES.items() if pair[1] == etree.QName(tag).namespace)
    known = space in parent.nsmap.values()
    child = etree.SubElement(parent, tag, nsmap=None if known else {prefix: space})
    before = child.getprevious()
    if at is not None:
        at.addprevious(child)
        child.tail = parent.text
    elif before is not None:
        child.tail, before.tail = before.tail, parent.text
    return child


def _tag(name: str) -> str:
    prefix, _, local = name.partition(":")
    return f"{{{_NAMES[prefix]}}}{local}"


def _written(root: Any) -> bytes:
    written: bytes = etree.tostring(root.getroottree(), encoding="utf-8", xml_declaration=False)
    return written
