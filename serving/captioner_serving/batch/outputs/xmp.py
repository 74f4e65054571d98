"""XMP sidecars: dc:description and Iptc4xmpCore:AltTextAccessibility, merged into what is there.

XMP (ISO 16684-1) writes a text in several languages as an rdf:Alt, one rdf:li a language; the first
is "x-default", and repeats one of the others. Every byte that is not of these two texts stays.
"""

from __future__ import annotations

from captioner.errors import OutputError
from captioner_serving.batch.config import Existing
from captioner_serving.batch.outputs.markup import (
    Element,
    Markup,
    Name,
    decode,
    encode,
    escaped,
    legal,
)
from captioner_serving.batch.outputs.merging import combine

__all__ = ["merge_xmp"]

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
DC = "http://purl.org/dc/elements/1.1/"
IPTC = "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/"
XML = "http://www.w3.org/XML/1998/namespace"

_PROPERTIES = ((DC, "description"), (IPTC, "AltTextAccessibility"))
_PREFIXES = {RDF: "rdf", DC: "dc", IPTC: "Iptc4xmpCore"}  # where a file has none of its own

_EMPTY = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""/>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""
_DEFAULT = "x-default"


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
        OutputError: the sidecar is not XMP, or holds a text in a form that XMP does not have.

    """
    caption = legal(caption)
    try:
        data, encoding = decode(_EMPTY.encode() if old is None else old)
        for name in _PROPERTIES:
            data = _merge(Markup(data), name, caption, language, existing, path)
    except (ValueError, LookupError) as error:
        raise OutputError(
            f"{path} exists and is not XML ({error}): it was left as it is; repair or remove it"
        ) from error
    new = encode(data, encoding)
    return None if new == old else new


def _merge(
    markup: Markup, name: Name, caption: str, language: str, existing: Existing, path: str
) -> bytes:
    """Bring the caption into one property, wherever and in whatever form the file has it."""
    # Descriptions stand in one another too, as values; those of the photo are children of rdf:RDF.
    roots = [element for element in markup.elements if element.name == (RDF, "RDF")]
    own = [each for root in roots for each in root.children if each.name == (RDF, "Description")]
    if not roots:
        raise OutputError(f"{path} exists and is not XMP: it was left as it is; move it away")
    found = [child for description in own for child in description.children if child.name == name]
    if found:
        _fill(markup, found[0], caption, language, existing, path)
        return markup.result()
    short = [description for description in own if name in description.attributes]
    old = short[0].attributes[name] if short else None
    text = combine(old, caption, existing)
    if text is None or text == old:
        return markup.result()
    if short:  # an attribute has no place for languages
        markup.remove_attribute(short[0], name)
    if own:
        parent = short[0] if short else own[0]
        markup.add(parent, _property(parent.scope, name, text, language))
        return markup.result()
    tag, space, scope = _tag(roots[0].scope, (RDF, "Description"))
    about = f"{tag.partition(':')[0]}:about"
    content = _property(scope, name, text, language).decode()
    markup.add(roots[0], f'<{tag}{space} {about}="">{content}</{tag}>'.encode())
    return markup.result()


def _fill(
    markup: Markup, element: Element, caption: str, language: str, existing: Existing, path: str
) -> None:
    """Bring the caption into a property, in its language and as default.

    A default that repeats the text of another language is that language's, and no reason to leave
    this one out; any other default stands for this language where that has no text of its own.
    """
    alternatives = next((child for child in element.children if child.name == (RDF, "Alt")), None)
    listed = [child for child in alternatives.children if _is_item(child)] if alternatives else []
    if len(element.children) > (alternatives is not None) or any(li.children for li in listed):
        raise OutputError(
            f"{path} has a {element.tag.decode()} that is not a text in some languages: it stays "
            "as it is"
        )
    items = {item.attributes.get((XML, "lang"), "").lower(): item for item in listed}
    tag, default = language.lower(), items.get(_DEFAULT)
    others = [item.text for key, item in items.items() if key not in (tag, _DEFAULT)]
    if tag in items:
        current: str | None = items[tag].text
    elif default and default.text not in others:
        current = default.text
    else:
        current = None if alternatives else element.text.strip()
    text = combine(current, caption, existing)
    if text is None:
        return
    if alternatives is None:  # plain text, as some programs write it
        markup.fill(element, _alternatives(element.scope, text, language))
        return
    if not listed:
        both = _item(alternatives.scope, _DEFAULT, text) + _item(alternatives.scope, language, text)
        markup.add(alternatives, both)
        return
    if tag in items:
        _say(markup, items[tag], text)
    else:
        markup.add(alternatives, _item(alternatives.scope, language, text))
    if default is None:
        markup.add_before(listed[0], _item(alternatives.scope, _DEFAULT, text))
    elif default.text == current or existing == "overwrite":
        _say(markup, default, text)


def _say(markup: Markup, item: Element, text: str) -> None:
    """Set the text of a language; what stays of the old one keeps its bytes."""
    old = item.text
    if text == old:
        return
    if old and text.startswith(old):
        markup.finish(item, escaped(text.removeprefix(old)))
    elif old and text.endswith(old):
        markup.begin(item, escaped(text.removesuffix(old)))
    else:
        markup.fill(item, escaped(text))


def _is_item(element: Element) -> bool:
    return element.name == (RDF, "li")


def _property(scope: dict[str, str], name: Name, text: str, language: str) -> bytes:
    tag, space, inner = _tag(scope, name)
    content = _alternatives(inner, text, language).decode()
    return f"<{tag}{space}>{content}</{tag}>".encode()


def _alternatives(scope: dict[str, str], text: str, language: str) -> bytes:
    tag, space, inner = _tag(scope, (RDF, "Alt"))
    items = (_item(inner, _DEFAULT, text) + _item(inner, language, text)).decode()
    return f"<{tag}{space}>{items}</{tag}>".encode()


def _item(scope: dict[str, str], language: str, text: str) -> bytes:
    tag, space, _ = _tag(scope, (RDF, "li"))
    return f'<{tag}{space} xml:lang="{language}">{escaped(text).decode()}</{tag}>'.encode()


def _tag(scope: dict[str, str], name: Name) -> tuple[str, str, dict[str, str]]:
    """Name an element by the prefix that the file uses for its namespace, or by a new one.

    Returns:
        The tag, the declaration that it needs, and the scope in it.

    """
    namespace, local = name
    known = [prefix for prefix, value in scope.items() if prefix and value == namespace]
    if known:
        return f"{known[0]}:{local}", "", scope
    prefix = _PREFIXES[namespace]
    declaration = f' xmlns:{prefix}="{namespace}"'
    return f"{prefix}:{local}", declaration, {**scope, prefix: namespace}
