"""XMP sidecars: dc:description and Iptc4xmpCore:AltTextAccessibility, merged into what is there.

XMP (ISO 16684-1) writes a text in several languages as an rdf:Alt, one rdf:li a language; the first
is "x-default", and repeats one of the others. Everything that is not of these two texts stays,
comments and other programs' settings included; what lies between the tags may be written anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lxml import etree

from captioner.errors import OutputError
from captioner_serving.batch.wording import Existing, combine

__all__ = ["merge_xmp"]

_NAMES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
}
_PROPERTIES = ("dc:description", "Iptc4xmpCore:AltTextAccessibility")
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
    old: bytes | None, caption: str, *, language: str, existing: Existing, path: str
) -> bytes | None:
    """Put a caption into both properties of an XMP sidecar.

    Args:
        old: the sidecar as it is; None where there is none.
        caption: the text.
        language: of the caption, as a tag of RFC 3066.
        existing: what becomes of a text that a property has already; skip keeps it, and fills in
            a property that is missing.
        path: what errors call the file.

    Returns:
        The sidecar as it shall be, in UTF-8, or None where all was there already.

    Raises OutputError: the sidecar is not XMP, or holds a text in a form that XMP does not have.
    """
    # U+FFFD for what XML cannot hold, and for control characters that it can.
    caption = _ILLEGAL.sub("\ufffd", caption)
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
    new = _written(root)
    return None if old is not None and new == before else new


def _fill(element: Any, caption: str, *, language: str, existing: Existing, path: str) -> None:
    """Bring the caption into a property, in its language and as default.

    A text in "en-US" is one in "en", and the other way round. A default that repeats the text of
    another language belongs to that language; any other default is the text in this language if it
    has none.
    """
    alternatives = element.find(_tag("rdf:Alt"))
    items = [] if alternatives is None else alternatives.findall(_tag("rdf:li"))
    children = [*element.iterchildren(etree.Element)]
    if len(children) > (alternatives is not None) or any(len(item) for item in items):
        raise OutputError(
            f"{path} has a {element.prefix}:{etree.QName(element).localname} that is not a text in "
            "some languages: it stays as it is"
        )
    named = {item.get(_LANGUAGE, "").lower(): item for item in items}
    own, default = _in_language(named, language.lower()), named.get(_DEFAULT)
    others = [item.text for item in items if item not in (own, default)]
    current = (element.text or "").strip() if alternatives is None else None
    if own is not None:
        current = own.text
    elif default is not None and default.text not in others:
        current = default.text
    text = combine(current, caption, existing)
    if text is None:
        return
    if alternatives is None:
        element.text = None
        alternatives = _add(element, "rdf:Alt")
    if default is None:
        default = _add(alternatives, "rdf:li", at=items[0] if items else None)
        default.set(_LANGUAGE, _DEFAULT)
        default.text = text
    elif default.text == current or not (default.text or "").strip() or existing == "overwrite":
        default.text = text
    if own is None:
        own = _add(alternatives, "rdf:li")
        own.set(_LANGUAGE, language)
    if own.text != text:
        own.text = text


def _in_language(named: Mapping[str, Any], language: str) -> Any:
    """Return the item in a language; "en-US" counts as "en", and the other way round."""
    if language in named:
        return named[language]
    for tag, item in named.items():
        if tag.startswith(f"{language}-") or (tag and language.startswith(f"{tag}-")):
            return item
    return None


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
