"""Merge description, alt text and keywords into XMP sidecars.

The properties are dc:description, Iptc4xmpCore:AltTextAccessibility and dc:subject. In XMP (ISO
16684-1) a text in several languages is an rdf:Alt with an rdf:li per language; the first is
"x-default" and repeats another one. Keywords are the items of an rdf:Bag. Everything else is kept,
including comments and settings of other programs; white space between tags may change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lxml import etree

from captioner.errors import OutputError
from captioner_serving.batch.wording import Existing, combine

_NAMES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
}
DESCRIPTION, ALT_TEXT = "dc:description", "Iptc4xmpCore:AltTextAccessibility"
_PROPERTIES = (DESCRIPTION, ALT_TEXT)
_KEYWORDS = "dc:subject"
_LISTS = ("rdf:Bag", "rdf:Seq", "rdf:Alt")  # some programs do not use rdf:Bag
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
# Control characters, and characters that XML does not allow; replaced by U+FFFD.
_ILLEGAL = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def merge_xmp(
    old: bytes | None,
    caption: str,
    *,
    keywords: Sequence[str] = (),
    language: str,
    existing: Existing,
    path: str,
    own: Mapping[str, str] | None = None,
) -> bytes | None:
    """Merge a caption into both text properties of an XMP sidecar, and add keywords.

    Args:
        old: the present sidecar, or None.
        language: the language of the caption, an RFC 3066 tag.
        existing: "skip" keeps an existing text, but fills in missing properties.
        path: the name of the file in errors.
        own: texts in the photo itself, by property. They count as existing texts of properties
            that the sidecar lacks; with "skip" and "overwrite" it gets no such property.

    Returns the new sidecar in UTF-8; None if nothing changes. Raises OutputError: it is not XMP.
    """
    caption, *keywords = (_ILLEGAL.sub("\ufffd", text) for text in (caption, *keywords))
    try:
        root = etree.fromstring(_EMPTY.encode() if old is None else old, _parser())
    except etree.XMLSyntaxError as error:
        raise OutputError(
            f"{path} is not XML ({error}); it was not changed: repair or remove it"
        ) from error
    if root.getroottree().docinfo.doctype:
        raise OutputError(f"{path} contains a DOCTYPE, which XMP does not allow: remove it")
    rdf = next(root.iter(_tag("rdf:RDF")), None)
    if rdf is None:
        raise OutputError(f"{path} is not XMP; it was not changed: move or remove it")
    before = _serialize(root)
    # Descriptions can be nested; those that describe the photo are children of rdf:RDF.
    descriptions = rdf.findall(_tag("rdf:Description"))
    if not descriptions:
        descriptions = [_add(rdf, "rdf:Description")]
        descriptions[0].set(_tag("rdf:about"), "")
    for title in _PROPERTIES:
        name = _tag(title)
        element = next((child for part in descriptions for child in part.findall(name)), None)
        if element is None:
            # A text may also be an attribute, which cannot have languages.
            holder = next((part for part in descriptions if name in part.attrib), descriptions[0])
            present, mine = holder.get(name), (own or {}).get(title)
            keeps_own = not present and mine and existing == "overwrite"
            text = None if keeps_own else combine(present or mine, caption, existing)
            if text is None or text == holder.get(name):
                continue
            holder.attrib.pop(name, None)
            _fill(_add(holder, name), text, language=language, existing=existing, path=path)
        else:
            _fill(element, caption, language=language, existing=existing, path=path)
    _add_keywords(descriptions, keywords, path=path)
    new = _serialize(root)
    return None if new == before else new


def texts_in(packet: bytes) -> dict[str, str]:
    """Return the text properties of an XMP packet, each in its first language; none if damaged."""
    try:
        root = etree.fromstring(packet.strip(b"\0"), _parser())
    except (etree.XMLSyntaxError, ValueError):
        return {}
    texts = {}
    for title in _PROPERTIES:
        found = [part.get(_tag(title)) for part in root.iter(_tag("rdf:Description"))]
        for element in root.iter(_tag(title)):
            items = [item.text for item in element.iter(_tag("rdf:li"))]
            found += items or [element.text]
        if text := next((text.strip() for text in found if text and text.strip()), None):
            texts[title] = text
    return texts


def _fill(element: Any, caption: str, *, language: str, existing: Existing, path: str) -> None:
    """Merge the caption into the texts of a property."""
    alternatives = element.find(_tag("rdf:Alt"))
    items = [] if alternatives is None else alternatives.findall(_tag("rdf:li"))
    children = [*element.iterchildren(etree.Element)]
    if len(children) > (alternatives is not None) or any(len(item) for item in items):
        raise OutputError(
            f"{path} was not changed: its {element.prefix}:{etree.QName(element).localname} is not "
            "one rdf:Alt of texts; correct or remove this property"
        )
    by_language = {item.get(_LANGUAGE, "").lower(): item for item in items}
    texts = {tag: item.text or "" for tag, item in by_language.items()}
    if alternatives is None and (plain := (element.text or "").strip()):
        texts = {_DEFAULT: plain}
    changes = merge_languages(texts, caption, language=language, existing=existing)
    if changes and alternatives is None:
        element.text = None
        alternatives = _add(element, "rdf:Alt")
    for tag, text in changes.items():
        if (item := by_language.get(tag)) is None:
            first = items[0] if items and tag == _DEFAULT else None
            item = _add(alternatives, "rdf:li", at=first)
            item.set(_LANGUAGE, tag)
        if item.text != text:
            item.text = text


def merge_languages(
    texts: Mapping[str, str], caption: str, *, language: str, existing: Existing
) -> dict[str, str]:
    """Merge a caption into a text with several languages; return the texts to set, by language.

    "en-US" and "en" count as the same language. A default that repeats the text of another language
    belongs to that language. Any other default counts as the text of the caption's language, if
    there is no text with that tag.

    texts: the present texts by lower-case language; the default has "x-default".
    """
    tag, default = _in_language(texts, language.lower()), texts.get(_DEFAULT)
    foreign = [text for name, text in texts.items() if name not in (tag, _DEFAULT)]
    current = None
    if tag is not None:
        current = texts[tag]
    elif default not in foreign:
        current = default
    text = combine(current, caption, existing)
    if text is None:
        return {}
    changes = {tag or language: text}
    if default is None or default == current or not default.strip() or existing == "overwrite":
        changes = {_DEFAULT: text, **changes}
    return changes


def _add_keywords(descriptions: Sequence[Any], keywords: Sequence[str], *, path: str) -> None:
    """Add keywords to the rdf:Bag of the photo's descriptions."""
    name = _tag(_KEYWORDS)
    element = next((child for part in descriptions for child in part.findall(name)), None)
    # A single keyword may be an attribute or plain text; more need a list.
    holder = next((part for part in descriptions if name in part.attrib), descriptions[0])
    present, bag = [holder.get(name, "")], None
    if element is not None:
        children = [*element.iterchildren(etree.Element)]
        bag = next((child for child in children if child.tag in map(_tag, _LISTS)), None)
        items = [] if bag is None else bag.findall(_tag("rdf:li"))
        if len(children) > (bag is not None) or any(len(item) for item in items):
            raise OutputError(
                f"{path} has a {_KEYWORDS} that is not a list; it was not changed: correct or "
                "remove the property"
            )
        present = [item.text or "" for item in items] or [(element.text or "").strip()]
    folded = {keyword.strip().casefold() for keyword in present}
    missing = [keyword for keyword in keywords if keyword.casefold() not in folded]
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
    """Return the tag of a language, or a related one: "en-US" for "en", "en" for "en-US"."""
    if language in (tags := list(tags)):
        return language
    related = (
        tag
        for tag in tags
        if tag.startswith(f"{language}-") or (tag and language.startswith(f"{tag}-"))
    )
    return next(related, None)


def _add(parent: Any, name: str, *, at: Any = None) -> Any:
    """Append a child, or insert it before the child `at`, with the indentation of its siblings."""
    tag = name if name.startswith("{") else _tag(name)
    prefix, space = next(pair for pair in _NAMES.items() if pair[1] == etree.QName(tag).namespace)
    is_declared = space in parent.nsmap.values()
    child = etree.SubElement(parent, tag, nsmap=None if is_declared else {prefix: space})
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


def _parser() -> Any:
    # XMP may be untrusted: do not resolve entities or load URLs.
    return etree.XMLParser(resolve_entities=False, no_network=True, strip_cdata=False)


def _serialize(root: Any) -> bytes:
    data: bytes = etree.tostring(root.getroottree(), encoding="utf-8", xml_declaration=False)
    return data
