"""XMP sidecars: dc:description and Iptc4xmpCore:AltTextAccessibility, merged into what is there.

XMP (ISO 16684-1) writes a text in several languages as an rdf:Alt, one rdf:li a language; the first
is "x-default", and repeats one of the others. Every byte that is not of these two texts stays: the
parser (expat) says at which byte an element is, and what lies between is never written anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from captioner.errors import OutputError
from captioner_serving.batch.wording import Existing, combine

__all__ = ["merge_xmp"]

_Name = tuple[str, str]  # a namespace and a name in it; attributes without a prefix have ''

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
DC = "http://purl.org/dc/elements/1.1/"
IPTC = "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/"
XML = "http://www.w3.org/XML/1998/namespace"

_PROPERTIES = ((DC, "description"), (IPTC, "AltTextAccessibility"))
_DESCRIPTION, _ALT, _ITEM = (RDF, "Description"), (RDF, "Alt"), (RDF, "li")
_PREFIXES = {RDF: "rdf", DC: "dc", IPTC: "Iptc4xmpCore"}  # where a file has none of its own
_DEFAULT = "x-default"
_EMPTY = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""/>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""

_ATTRIBUTE = re.compile(rb"""\s+([^\s=/>]+)\s*=\s*("[^"]*"|'[^']*')""")
_TAG = re.compile(rb"""<([^\s/>]+)(?:\s+[^\s=/>]+\s*=\s*(?:"[^"]*"|'[^']*'))*\s*(/?)>""")
_ILLEGAL = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MOST = 1 << 18  # elements, of which each takes half a kilobyte; long edit histories have thousands


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
        The sidecar as it shall be, or None where all was there already.

    Raises:
        OutputError: the sidecar is not XMP, or holds a text in a form that XMP does not have.

    """
    # U+FFFD for what XML cannot hold, and for control characters that it can.
    caption = _ILLEGAL.sub("\ufffd", caption)
    try:
        before = _EMPTY.encode() if old is None else old
        # XMP is Unicode. Marks stay where they are.
        wide = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
        encoding = wide.get(before[:2], "utf-8")
        data = before.decode(encoding).encode()
        for name in _PROPERTIES:
            data = _Sidecar(data, caption, language, existing, path).with_caption(name)
    except ValueError as error:
        raise OutputError(
            f"{path} exists and is not XML ({error}): it was left as it is; repair or remove it"
        ) from error
    new = data.decode().encode(encoding)
    return None if new == old else new


class _Sidecar:
    """A file of UTF-8 XML, a caption on its way into it, and the changes that this makes."""

    def __init__(
        self, data: bytes, caption: str, language: str, existing: Existing, path: str
    ) -> None:
        self._data, self._path = data, path
        self._caption, self._language, self._existing = caption, language, existing
        self._elements = _elements(data)
        self._edits: list[tuple[int, int, bytes]] = []

    def with_caption(self, name: _Name) -> bytes:
        """Bring the caption into one property, wherever and in whatever form the file has it."""
        self._merge(name)
        data = self._data
        for start, end, new in sorted(self._edits, key=lambda edit: edit[:2], reverse=True):
            data = data[:start] + new + data[end:]
        return data

    def _merge(self, name: _Name) -> None:
        # Descriptions stand in one another too, as values; those of the photo are children of RDF.
        roots = [each for each in self._elements if each.name == (RDF, "RDF")]
        own = [each for root in roots for each in root.named(_DESCRIPTION)]
        if not roots:
            raise OutputError(
                f"{self._path} exists and is not XMP: it was left as it is; move it away"
            )
        if found := [child for each in own for child in each.named(name)]:
            self._fill_property(found[0])
            return
        short = next((each for each in own if name in each.attributes), None)
        old = short.attributes[name] if short else None
        text = combine(old, self._caption, self._existing)
        if text is None or text == old:
            return
        if short is not None:  # an attribute has no place for languages
            self._remove_attribute(short, name)
        if own:
            parent = short or own[0]
            self._add(parent, self._written(parent.scope, name, _ALT, text=text))
        else:
            self._add(roots[0], self._written(roots[0].scope, _DESCRIPTION, name, _ALT, text=text))

    def _fill_property(self, element: _Element) -> None:
        """Bring the caption into a property, in its language and as default.

        A default that repeats the text of another language is that language's, and no reason to
        leave this one out; any other default stands for this language where that has no text.
        """
        alternatives = next(element.named(_ALT), None)
        listed = list(alternatives.named(_ITEM)) if alternatives else []
        if len(element.children) > bool(alternatives) or any(each.children for each in listed):
            raise OutputError(
                f"{self._path} has a {element.tag.decode()} that is not a text in some languages: "
                "it stays as it is"
            )
        items = {item.attributes.get((XML, "lang"), "").lower(): item for item in listed}
        own, default = items.get(self._language.lower()), items.get(_DEFAULT)
        others = [item.text for item in listed if item not in (own, default)]
        current = None if alternatives else element.text.strip()
        if own is not None:
            current = own.text
        elif default is not None and default.text not in others:
            current = default.text
        text = combine(current, self._caption, self._existing)
        if text is None:
            return
        if alternatives is None:  # plain text, as some programs write it
            self._fill(element, self._written(element.scope, _ALT, text=text))
            return
        if not listed:
            self._add(alternatives, self._written(alternatives.scope, text=text))
            return
        if own is not None:
            self._rewrite(own, text)
        else:
            self._add(alternatives, _item(alternatives.scope, self._language, text))
        if default is None:
            first = _item(alternatives.scope, _DEFAULT, text) + self._indent(listed[0])
            self._edit(listed[0].start, listed[0].start, first)
        elif default.text == current or self._existing == "overwrite":
            self._rewrite(default, text)

    def _written(self, scope: dict[str, str], *names: _Name, text: str) -> str:
        """Write elements in one another, and in the last a text as default and in its language."""
        if not names:
            return _item(scope, _DEFAULT, text) + _item(scope, self._language, text)
        tag, declared, scope = _tag(scope, names[0])
        about = f' {tag.partition(":")[0]}:about=""' if names[0] == _DESCRIPTION else ""
        return f"<{tag}{declared}{about}>{self._written(scope, *names[1:], text=text)}</{tag}>"

    def _fill(self, element: _Element, content: str) -> None:
        """Put a content in the place of an element's own."""
        if element.inner == element.end:
            content = f">{content}</{element.tag.decode()}>"
            self._edit(element.end - 2, element.end, content)
        else:
            self._edit(element.inner, element.close, content)

    def _rewrite(self, element: _Element, text: str) -> None:
        """Set the text of an element; what stays of the old one keeps its bytes."""
        old = element.text
        if old and text.startswith(old):
            self._edit(element.close, element.close, _escaped(text.removeprefix(old)))
        elif old and text.endswith(old):
            self._edit(element.inner, element.inner, _escaped(text.removesuffix(old)))
        else:
            self._fill(element, _escaped(text))

    def _add(self, parent: _Element, child: str) -> None:
        """Add a child behind the others, on a line of its own where those have one."""
        if parent.children:
            last = parent.children[-1]
            self._edit(last.end, last.end, self._indent(last) + child)
            return
        line = self._indent(parent)
        child = f"{line} {child}" if line else child
        if parent.inner == parent.end:
            self._fill(parent, child + line)
        else:
            self._edit(parent.inner, parent.inner, child)

    def _remove_attribute(self, element: _Element, name: _Name) -> None:
        at = element.start + 1 + len(element.tag)
        while match := _ATTRIBUTE.match(self._data, at):
            prefix, colon, local = match[1].decode().partition(":")
            if colon and (element.scope.get(prefix), local) == name:
                self._edit(match.start(), match.end(), "")
            at = match.end()

    def _edit(self, start: int, end: int, new: str) -> None:
        self._edits.append((start, end, new.encode()))

    def _indent(self, element: _Element) -> str:
        """Give the white space in front of an element, if there is a line break in it."""
        before = self._data[: element.start]
        space = before[len(before.rstrip(b" \t\r\n")) :].decode()
        return space if "\n" in space or "\r" in space else ""


@dataclass(kw_only=True, eq=False)
class _Element:
    """An element: what it says, and its bytes.

    tag is the name as it is written; attributes are as XML reads them (line breaks are spaces);
    scope has the namespaces by prefix. The content lies from `inner` to `close`, the whole from
    `start` to `end`; of `<a/>` all but `start` are its end.
    """

    name: _Name
    tag: bytes
    attributes: dict[_Name, str]
    scope: dict[str, str]
    start: int
    inner: int
    close: int
    end: int
    children: list[_Element] = field(default_factory=list)
    text: str = ""

    def named(self, name: _Name) -> Iterator[_Element]:
        """Give the children of a name."""
        return (child for child in self.children if child.name == name)


def _elements(data: bytes) -> list[_Element]:
    """Read a file: its elements in the order in which they begin.

    Raises:
        ValueError: it is not XML, or declares entities, behind which there may be anything.

    """
    elements: list[_Element] = []
    inside: list[_Element] = []  # those that have not ended
    declared: dict[str, str] = {}  # namespaces, by the element that begins next
    parser = expat.ParserCreate("utf-8", " ")
    parser.buffer_text, parser.buffer_size = True, 1 << 20

    def on_declaration(_: str, encoding: str | None, *__: object) -> None:
        if encoding is not None and not encoding.lower().startswith("utf-"):
            raise ValueError(f"its encoding is {encoding}, not UTF-8")

    def on_namespace(prefix: str | None, namespace: str | None) -> None:
        declared[prefix or ""] = namespace or ""

    def on_start(name: str, attributes: dict[str, str]) -> None:
        start = parser.CurrentByteIndex
        tag = _TAG.match(data, start)
        if tag is None:
            raise ValueError(f"the tag at byte {start} is not understood")
        if len(elements) == _MOST:
            raise ValueError(f"it has more than {_MOST:,} elements")
        scope = inside[-1].scope if inside else {}
        end = tag.end()
        element = _Element(
            name=_name(name),
            tag=tag[1],
            attributes={_name(key): value for key, value in attributes.items()},
            scope={**scope, **declared} if declared else scope,
            start=start,
            inner=end,
            close=end,
            end=end if tag[2] else -1,
        )
        declared.clear()
        elements.append(element)
        if inside:
            inside[-1].children.append(element)
        inside.append(element)

    def on_end(_: str) -> None:
        element = inside.pop()
        if element.end < 0:
            element.close = parser.CurrentByteIndex
            element.end = data.index(b">", element.close) + 1

    def on_text(text: str) -> None:
        inside[-1].text += text

    def on_entity(name: str, *_: object) -> None:
        raise ValueError(f"it declares an entity, {name}")

    parser.XmlDeclHandler = on_declaration
    parser.StartNamespaceDeclHandler = on_namespace
    parser.StartElementHandler = on_start
    parser.EndElementHandler = on_end
    parser.CharacterDataHandler = on_text
    parser.EntityDeclHandler = on_entity
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ValueError(str(error)) from error
    return elements


def _item(scope: dict[str, str], language: str, text: str) -> str:
    tag, declared, _ = _tag(scope, _ITEM)
    return f'<{tag}{declared} xml:lang="{language}">{_escaped(text)}</{tag}>'


def _tag(scope: dict[str, str], name: _Name) -> tuple[str, str, dict[str, str]]:
    """Name an element by the prefix that the file uses for its namespace, or by a new one."""
    namespace, local = name
    known = [prefix for prefix, value in scope.items() if prefix and value == namespace]
    if known:
        return f"{known[0]}:{local}", "", scope
    prefix = _PREFIXES[namespace]
    return f"{prefix}:{local}", f' xmlns:{prefix}="{namespace}"', {**scope, prefix: namespace}


def _escaped(text: str) -> str:
    """Write a text for the inside of an element."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\r", "&#13;")


def _name(written: str) -> _Name:
    namespace, _, local = written.rpartition(" ")
    return namespace, local
