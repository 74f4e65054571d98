"""XMP sidecars: dc:description and Iptc4xmpCore:AltTextAccessibility, merged into what is there.

XMP (ISO 16684-1) writes a text in several languages as an rdf:Alt, one rdf:li a language; the first
is "x-default", and repeats one of the others. Everything else in the file stays: other languages,
other properties, comments, the packet's wrapping.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.dom import Node, minidom
from xml.parsers.expat import ExpatError

from captioner.errors import OutputError
from captioner_serving.batch.config import Existing
from captioner_serving.batch.outputs.merging import combine

__all__ = ["merge_xmp"]

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
DC = "http://purl.org/dc/elements/1.1/"
IPTC = "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/"
XML = "http://www.w3.org/XML/1998/namespace"
XMLNS = "http://www.w3.org/2000/xmlns/"

_PROPERTIES = ((DC, "dc", "description"), (IPTC, "Iptc4xmpCore", "AltTextAccessibility"))

_EMPTY = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""/>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""
_DEFAULT = "x-default"
_DECLARATION = '<?xml version="1.0" ?>'


def merge_xmp(
    old: bytes | None, caption: str, *, language: str, existing: Existing, path: str
) -> bytes | None:
    """Put a caption into an XMP sidecar.

    Args:
        old: the sidecar as it is; None where there is none.
        caption: the text, for both properties.
        language: of the caption, as a tag of RFC 3066.
        existing: what becomes of a text that a property has already; skip keeps it, and fills in
            a property that is missing.
        path: what errors call the file.

    Returns:
        The sidecar as it shall be, or None where all was there already.

    Raises:
        OutputError: the sidecar is no XMP.

    """
    document = _parse(old, path)
    changed = False
    for namespace, prefix, name in _PROPERTIES:
        element = _property(document, namespace, prefix, name, path)
        changed |= _fill(element, caption, language, existing)
    if not changed and old is not None:
        return None
    text = "".join(node.toxml() + "\n" for node in document.childNodes)
    declared = old is not None and old.lstrip(b"\xef\xbb\xbf").startswith(b"<?xml ")
    return ((_DECLARATION + "\n" if declared else "") + text).encode()


def _parse(old: bytes | None, path: str) -> minidom.Document:
    try:
        return minidom.parseString(_EMPTY.encode() if old is None else old)
    except (ExpatError, ValueError, LookupError) as error:
        raise OutputError(
            f"{path} is there and is no XML ({error}): it stays as it is; repair or remove it"
        ) from error


def _property(
    document: minidom.Document, namespace: str, prefix: str, name: str, path: str
) -> minidom.Element:
    """Find a property, or add it to the first description; a short form is written out."""
    descriptions = document.getElementsByTagNameNS(RDF, "Description")
    # Descriptions stand in one another too, as values; those of the photo are children of rdf:RDF.
    own = [d for d in descriptions if _is(d.parentNode, RDF, "RDF")]
    for description in own:
        for child in _children(description, namespace, name):
            return child
    for description in own:
        if description.hasAttributeNS(namespace, name):
            value = description.getAttributeNS(namespace, name)
            description.removeAttributeNS(namespace, name)
            element = _add(description, namespace, prefix, name)
            element.appendChild(document.createTextNode(value))
            return element
    if not own:
        roots = document.getElementsByTagNameNS(RDF, "RDF")
        if not roots:
            raise OutputError(f"{path} is there and is no XMP: it stays as it is; move it away")
        description = _add(roots[0], RDF, "rdf", "Description")
        description.setAttributeNS(RDF, f"{description.prefix}:about", "")
        own = [description]
    return _add(own[0], namespace, prefix, name)


def _fill(element: minidom.Element, caption: str, language: str, existing: Existing) -> bool:
    """Bring the caption into a property, in its language and as default; True if that changed it.

    A default that repeats the text of another language is that language's, and no reason to leave
    this one out; any other default stands for this language where that has no text of its own.
    """
    alternatives = next(_children(element, RDF, "Alt"), None)
    found = _children(alternatives, RDF, "li") if alternatives else ()
    items = {item.getAttributeNS(XML, "lang").lower(): item for item in found}
    tag, default = language.lower(), items.get(_DEFAULT)
    others = [_text(item) for key, item in items.items() if key not in (tag, _DEFAULT)]
    if tag in items:
        current: str | None = _text(items[tag])
    elif default and _text(default) not in others:
        current = _text(default)
    else:
        current = None if alternatives else _text(element).strip()
    text = combine(current, caption, existing)
    if text is None:
        return False
    if alternatives is None:
        _clear(element)  # plain text, as some programs write it
        alternatives = _add(element, RDF, "rdf", "Alt")
    changed = _say(alternatives, items.get(tag), language, text)
    if default is None or _text(default) == current or existing == "overwrite":
        changed |= _say(alternatives, default, _DEFAULT, text)
    return changed


def _say(
    alternatives: minidom.Element, item: minidom.Element | None, language: str, text: str
) -> bool:
    """Set the text of a language; True if it was another."""
    if item is not None and _text(item) == text:
        return False
    if item is None:
        item = _add(alternatives, RDF, "rdf", "li", first=language == _DEFAULT)
        item.setAttributeNS(XML, "xml:lang", language)
    _clear(item)
    item.appendChild(minidom.Document().createTextNode(text))
    return True


def _add(
    parent: minidom.Element, namespace: str, prefix: str, name: str, *, first: bool = False
) -> minidom.Element:
    """Add an element, by the prefix that the file uses for its namespace, or a new one."""
    node: minidom.Node | None = parent
    used: dict[str, str] = {}
    while isinstance(node, minidom.Element):
        for key, value in node.attributes.items():
            if key.startswith("xmlns:"):
                used.setdefault(key.removeprefix("xmlns:"), value)
        node = node.parentNode
    prefixes = [key for key, value in used.items() if value == namespace]
    chosen = prefixes[0] if prefixes else prefix
    element = minidom.Document().createElementNS(namespace, f"{chosen}:{name}")
    if not prefixes:
        element.setAttributeNS(XMLNS, f"xmlns:{chosen}", namespace)
    parent.insertBefore(element, parent.firstChild if first else None)
    return element


def _children(parent: minidom.Element, namespace: str, name: str) -> Iterator[minidom.Element]:
    for child in parent.childNodes:
        if isinstance(child, minidom.Element) and _is(child, namespace, name):
            yield child


def _is(node: minidom.Node | None, namespace: str, name: str) -> bool:
    return getattr(node, "namespaceURI", None) == namespace and (
        getattr(node, "localName", None) == name
    )


def _text(element: minidom.Element) -> str:
    return "".join(
        child.data
        for child in element.childNodes
        if child.nodeType in (Node.TEXT_NODE, Node.CDATA_SECTION_NODE)
    )


def _clear(element: minidom.Element) -> None:
    while element.firstChild:
        element.removeChild(element.firstChild)
