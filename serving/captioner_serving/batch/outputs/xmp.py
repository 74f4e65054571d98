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

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
DC = "http://purl.org/dc/elements/1.1/"
IPTC = "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/"
XML = "http://www.w3.org/XML/1998/namespace"

_PROPERTIES = ((DC, "description"), (IPTC, "AltTextAccessibility"))
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

_WIDE = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_DECLARED = re.compile(rb"""<\?xml\s[^>]*?encoding\s*=\s*["']([A-Za-z][\w.-]*)["']""")
_ATTRIBUTE = re.compile(rb"""\s+([^\s=/>]+)\s*=\s*("[^"]*"|'[^']*')""")
_TAG = re.compile(rb"""<([^\s/>]+)(?:\s+[^\s=/>]+\s*=\s*(?:"[^"]*"|'[^']*'))*\s*(/?)>""")
_ILLEGAL = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MOST = 1 << 18  # elements, of which each takes half a kilobyte; long edit histories have thousands
_SLOW = {"idna", "punycode", "unicode_escape", "raw_unicode_escape"}  # Python's, and no file's

_Name = tuple[str, str]  # a namespace and a name in it; attributes without a prefix have ''


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
    # U+FFFD for what XML cannot hold, and for control characters that it can.
    merging = _Merging(_ILLEGAL.sub("\ufffd", caption), language, existing, path)
    try:
        text, encoding = _decoded(_EMPTY.encode() if old is None else old)
        for name in _PROPERTIES:
            text = merging.into(_Document(text), name)
    except (ValueError, LookupError) as error:
        raise OutputError(
            f"{path} exists and is not XML ({error}): it was left as it is; repair or remove it"
        ) from error
    new = text.decode().encode(encoding, "xmlcharrefreplace")
    return None if new == old else new


@dataclass(frozen=True)
class _Merging:
    """A caption on its way into a file."""

    caption: str
    language: str
    existing: Existing
    path: str

    def into(self, document: _Document, name: _Name) -> bytes:
        """Bring the caption into one property, wherever and in whatever form the file has it."""
        # Descriptions stand in one another too, as values; those of the photo are children of RDF.
        roots = [each for each in document.elements if each.name == (RDF, "RDF")]
        own = [each for root in roots for each in root.named(RDF, "Description")]
        if not roots:
            raise OutputError(
                f"{self.path} exists and is not XMP: it was left as it is; move it away"
            )
        if found := [child for each in own for child in each.named(*name)]:
            self._fill(document, found[0])
            return document.result()
        short = next((each for each in own if name in each.attributes), None)
        old = short.attributes[name] if short else None
        text = combine(old, self.caption, self.existing)
        if text is None or text == old:
            return document.result()
        if short is not None:  # an attribute has no place for languages
            document.remove_attribute(short, name)
        if own:
            parent = short or own[0]
            document.add(parent, self._property(parent.scope, name, text))
            return document.result()
        tag, declared, scope = _tag(roots[0].scope, (RDF, "Description"))
        about = f'{tag.partition(":")[0]}:about=""'
        inside = self._property(scope, name, text)
        document.add(roots[0], f"<{tag}{declared} {about}>{inside}</{tag}>")
        return document.result()

    def _fill(self, document: _Document, element: _Element) -> None:
        """Bring the caption into a property, in its language and as default.

        A default that repeats the text of another language is that language's, and no reason to
        leave this one out; any other default stands for this language where that has no text.
        """
        alternatives = next(element.named(RDF, "Alt"), None)
        listed = list(alternatives.named(RDF, "li")) if alternatives else []
        if len(element.children) > bool(alternatives) or any(each.children for each in listed):
            raise OutputError(
                f"{self.path} has a {element.tag.decode()} that is not a text in some languages: "
                "it stays as it is"
            )
        items = {item.attributes.get((XML, "lang"), "").lower(): item for item in listed}
        own, default = items.get(self.language.lower()), items.get(_DEFAULT)
        others = [item.text for item in listed if item not in (own, default)]
        current = None if alternatives else element.text.strip()
        if own is not None:
            current = own.text
        elif default is not None and default.text not in others:
            current = default.text
        text = combine(current, self.caption, self.existing)
        if text is None:
            return
        if alternatives is None:  # plain text, as some programs write it
            document.fill(element, self._alternatives(element.scope, text))
            return
        if not listed:
            document.add(alternatives, self._items(alternatives.scope, text))
            return
        if own is not None:
            document.rewrite(own, text)
        else:
            document.add(alternatives, _item(alternatives.scope, self.language, text))
        if default is None:
            document.add_before(listed[0], _item(alternatives.scope, _DEFAULT, text))
        elif default.text == current or self.existing == "overwrite":
            document.rewrite(default, text)

    def _property(self, scope: dict[str, str], name: _Name, text: str) -> str:
        tag, declared, inner = _tag(scope, name)
        return f"<{tag}{declared}>{self._alternatives(inner, text)}</{tag}>"

    def _alternatives(self, scope: dict[str, str], text: str) -> str:
        tag, declared, inner = _tag(scope, (RDF, "Alt"))
        return f"<{tag}{declared}>{self._items(inner, text)}</{tag}>"

    def _items(self, scope: dict[str, str], text: str) -> str:
        return _item(scope, _DEFAULT, text) + _item(scope, self.language, text)


def _item(scope: dict[str, str], language: str, text: str) -> str:
    tag, declared, _ = _tag(scope, (RDF, "li"))
    return f'<{tag}{declared} xml:lang="{language}">{_escaped(text)}</{tag}>'


def _tag(scope: dict[str, str], name: _Name) -> tuple[str, str, dict[str, str]]:
    """Name an element by the prefix that the file uses for its namespace, or by a new one."""
    namespace, local = name
    known = [prefix for prefix, value in scope.items() if prefix and value == namespace]
    if known:
        return f"{known[0]}:{local}", "", scope
    prefix = _PREFIXES[namespace]
    return f"{prefix}:{local}", f' xmlns:{prefix}="{namespace}"', {**scope, prefix: namespace}


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
    pieces: list[str] = field(default_factory=list)  # of the text, as the parser gives them

    @property
    def text(self) -> str:
        """The text in the element itself."""
        return "".join(self.pieces)

    def named(self, namespace: str, local: str) -> Iterator[_Element]:
        """Give the children of a name."""
        return (child for child in self.children if child.name == (namespace, local))


class _Document:
    """A file of UTF-8 XML, and changes to it that are made together.

    Attributes:
        elements: all of them, in the order in which they begin.

    Raises:
        ValueError: it is not XML, or declares entities, behind which there may be anything.

    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.elements: list[_Element] = []
        self._open: list[_Element] = []
        self._declared: dict[str, str] = {}
        self._edits: list[tuple[int, int, bytes]] = []
        self._parser = parser = expat.ParserCreate("utf-8", " ")
        parser.StartNamespaceDeclHandler = self._on_namespace
        parser.StartElementHandler = self._on_start
        parser.EndElementHandler = self._on_end
        parser.CharacterDataHandler = self._on_text
        parser.EntityDeclHandler = self._on_entity
        try:
            parser.Parse(data, True)
        except expat.ExpatError as error:
            raise ValueError(str(error)) from error

    def result(self) -> bytes:
        """Give the file with all changes."""
        data = self._data
        for start, end, new in sorted(self._edits, key=lambda edit: edit[:2], reverse=True):
            data = data[:start] + new + data[end:]
        return data

    def fill(self, element: _Element, content: str) -> None:
        """Put a content in the place of an element's own."""
        if element.inner == element.end:
            content = f">{content}</{element.tag.decode()}>"
            self._edit(element.end - 2, element.end, content)
        else:
            self._edit(element.inner, element.close, content)

    def rewrite(self, element: _Element, text: str) -> None:
        """Set the text of an element; what stays of the old one keeps its bytes."""
        old = element.text
        if old and text.startswith(old):
            self._edit(element.close, element.close, _escaped(text.removeprefix(old)))
        elif old and text.endswith(old):
            self._edit(element.inner, element.inner, _escaped(text.removesuffix(old)))
        else:
            self.fill(element, _escaped(text))

    def add(self, parent: _Element, child: str) -> None:
        """Add a child behind the others, on a line of its own where those have one."""
        if parent.children:
            last = parent.children[-1]
            self._edit(last.end, last.end, self._indent(last) + child)
            return
        line = self._indent(parent)
        child = f"{line} {child}" if line else child
        if parent.inner == parent.end:
            self.fill(parent, child + line)
        else:
            self._edit(parent.inner, parent.inner, child)

    def add_before(self, sibling: _Element, child: str) -> None:
        """Add an element in front of another."""
        self._edit(sibling.start, sibling.start, child + self._indent(sibling))

    def remove_attribute(self, element: _Element, name: _Name) -> None:
        """Take an attribute out of an element's tag."""
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

    # What the parser calls

    def _on_namespace(self, prefix: str | None, namespace: str | None) -> None:
        self._declared[prefix or ""] = namespace or ""

    def _on_start(self, name: str, attributes: dict[str, str]) -> None:
        start = self._parser.CurrentByteIndex
        tag = _TAG.match(self._data, start)
        if tag is None:
            raise ValueError(f"the tag at byte {start} is not understood")
        if len(self.elements) == _MOST:
            raise ValueError(f"it has more than {_MOST:,} elements")
        scope = self._open[-1].scope if self._open else {}
        end = tag.end()
        element = _Element(
            name=_name(name),
            tag=tag[1],
            attributes={_name(key): value for key, value in attributes.items()},
            scope={**scope, **self._declared} if self._declared else scope,
            start=start,
            inner=end,
            close=end,
            end=end if tag[2] else -1,
        )
        self._declared = {}
        self.elements.append(element)
        if self._open:
            self._open[-1].children.append(element)
        self._open.append(element)

    def _on_end(self, _: str) -> None:
        element = self._open.pop()
        if element.end < 0:
            element.close = self._parser.CurrentByteIndex
            element.end = self._data.index(b">", element.close) + 1

    def _on_text(self, text: str) -> None:
        self._open[-1].pieces.append(text)

    def _on_entity(self, name: str, *_: object) -> None:
        raise ValueError(f"it declares an entity, {name}")


def _decoded(data: bytes) -> tuple[bytes, str]:
    """Give a file as UTF-8, and the name of its own encoding."""
    wide = [name for mark, name in _WIDE if data.startswith(mark)]
    declared = _DECLARED.match(data)  # a byte order mark comes before it, and is UTF-8
    encoding = wide[0] if wide else declared[1].decode() if declared else "utf-8"
    if encoding.lower().replace("-", "_") in _SLOW:
        raise LookupError(f"unknown encoding: {encoding}")
    text = data.decode(encoding)
    if text.encode(encoding) != data:
        raise ValueError(f"its bytes are not wholly {encoding}")
    return text.encode(), encoding


def _escaped(text: str) -> str:
    """Write a text for the inside of an element."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\r", "&#13;")


def _name(written: str) -> _Name:
    namespace, _, local = written.rpartition(" ")
    return namespace, local
