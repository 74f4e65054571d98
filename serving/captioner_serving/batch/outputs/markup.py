"""An XML file and the places of its elements: a part is changed, and every other byte stays.

The parser (expat) says at which byte it is; what is between those places is never written anew.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.parsers import expat

__all__ = ["Element", "Markup", "Name", "decode", "encode", "escaped", "legal"]

Name = tuple[str, str]
"""A namespace and a name in it; attributes without a prefix have the namespace ''."""

_WIDE = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_DECLARED = re.compile(rb"""<\?xml\s[^>]*?encoding\s*=\s*["']([A-Za-z][\w.-]*)["']""")
_ATTRIBUTE = re.compile(rb"""\s+([^\s=/>]+)\s*=\s*("[^"]*"|'[^']*')""")
_TAG = re.compile(rb"""<([^\s/>]+)(?:\s+[^\s=/>]+\s*=\s*(?:"[^"]*"|'[^']*'))*\s*(/?)>""")
_ILLEGAL = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SPACE = b" \t\r\n"
_MOST = 1 << 18  # elements, of which each takes half a kilobyte; long edit histories have thousands
_SLOW = {"idna", "punycode", "unicode_escape", "raw_unicode_escape"}  # Python's, and no file's


@dataclass(kw_only=True, eq=False)
class Element:
    """An element: what it says, and its bytes.

    tag is the name as it is written; attributes are as XML reads them (line breaks are spaces);
    scope has the namespaces by prefix. The content lies from `inner` to `close`, the whole from
    `start` to `end`; `<a/>` has no content, and all but `start` are its end.
    """

    name: Name
    tag: bytes
    attributes: dict[Name, str]
    scope: dict[str, str]
    parent: Element | None
    start: int
    inner: int
    close: int
    end: int
    children: list[Element] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)  # of text, in the element itself

    @property
    def text(self) -> str:
        """The text in the element, without that of its children."""
        return "".join(self.pieces)

    @property
    def empty(self) -> bool:
        """Whether it is written `<a/>`."""
        return self.inner == self.end


class Markup:
    """A file of UTF-8 XML, and changes to it that are made together.

    Attributes:
        elements: all of them, in the order in which they begin.

    Raises:
        ValueError: it is not XML, or declares entities, behind which there may be anything.

    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.elements: list[Element] = []
        self._open: list[Element] = []
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

    def fill(self, element: Element, content: bytes) -> None:
        """Put a content in the place of an element's own."""
        if element.empty:
            self._edit(element.end - 2, element.end, b">%b</%b>" % (content, element.tag))
        else:
            self._edit(element.inner, element.close, content)

    def begin(self, element: Element, content: bytes) -> None:
        """Put something in front of an element's content."""
        self._edit(element.inner, element.inner, content)

    def finish(self, element: Element, content: bytes) -> None:
        """Put something behind an element's content."""
        self._edit(element.close, element.close, content)

    def add(self, parent: Element, child: bytes) -> None:
        """Add a child behind the others, on a line of its own where those have one."""
        if parent.children:
            last = parent.children[-1]
            self._edit(last.end, last.end, self._indent(last) + child)
            return
        line = self._indent(parent)
        child = line + b" " + child if line else child
        if parent.empty:
            self.fill(parent, child + line)
        else:
            self.begin(parent, child)

    def add_before(self, sibling: Element, child: bytes) -> None:
        """Add an element in front of another."""
        self._edit(sibling.start, sibling.start, child + self._indent(sibling))

    def remove_attribute(self, element: Element, name: Name) -> None:
        """Take an attribute out of an element's tag."""
        at = element.start + 1 + len(element.tag)
        while match := _ATTRIBUTE.match(self._data, at):
            prefix, colon, local = match[1].decode().partition(":")
            if colon and (element.scope.get(prefix), local) == name:
                self._edit(match.start(), match.end(), b"")
            at = match.end()

    def result(self) -> bytes:
        """Give the file with all changes."""
        data = self._data
        for start, end, new in sorted(self._edits, key=lambda edit: edit[:2], reverse=True):
            data = data[:start] + new + data[end:]
        return data

    def _edit(self, start: int, end: int, new: bytes) -> None:
        self._edits.append((start, end, new))

    def _indent(self, element: Element) -> bytes:
        """Give the white space in front of an element, if there is a line break in it."""
        before = self._data[: element.start]
        space = before[len(before.rstrip(_SPACE)) :]
        return space if b"\n" in space or b"\r" in space else b""

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
        parent = self._open[-1] if self._open else None
        scope = parent.scope if parent else {}
        element = Element(
            name=_name(name),
            tag=tag[1],
            attributes={_name(key): value for key, value in attributes.items()},
            scope={**scope, **self._declared} if self._declared else scope,
            parent=parent,
            start=start,
            inner=tag.end(),
            close=tag.end(),
            end=tag.end() if tag[2] else -1,
        )
        self._declared = {}
        self.elements.append(element)
        self._open.append(element)
        if parent is not None:
            parent.children.append(element)

    def _on_end(self, _: str) -> None:
        element = self._open.pop()
        if not element.empty:
            element.close = self._parser.CurrentByteIndex
            element.end = self._data.index(b">", element.close) + 1

    def _on_text(self, text: str) -> None:
        self._open[-1].pieces.append(text)

    def _on_entity(self, name: str, *_: object) -> None:
        raise ValueError(f"it declares an entity, {name}")


def decode(data: bytes) -> tuple[bytes, str]:
    """Give a file as UTF-8, and the name of its own encoding.

    Raises:
        ValueError: its bytes are not of the encoding that it says.
        LookupError: that is unknown.

    """
    wide = [name for mark, name in _WIDE if data.startswith(mark)]
    declared = _DECLARED.match(data)  # a byte order mark comes before it, and is UTF-8
    encoding = wide[0] if wide else declared[1].decode() if declared else "utf-8"
    if encoding.lower().replace("-", "_") in _SLOW:
        raise LookupError(f"unknown encoding: {encoding}")
    text = data.decode(encoding)
    if text.encode(encoding) != data:
        raise ValueError(f"its bytes are not wholly {encoding}")
    return text.encode(), encoding


def encode(data: bytes, encoding: str) -> bytes:
    """Give UTF-8 in another encoding; what that has no sign for is written by its number."""
    return data.decode().encode(encoding, "xmlcharrefreplace")


def legal(text: str) -> str:
    """Put U+FFFD for what XML cannot hold, and for control characters that it can."""
    return _ILLEGAL.sub("\ufffd", text)


def escaped(text: str) -> bytes:
    """Write a legal text for the inside of an element."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\r", "&#13;").encode()


def _name(written: str) -> Name:
    namespace, _, local = written.rpartition(" ")
    return namespace, local
