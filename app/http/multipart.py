"""`multipart/form-data`, piece by piece and without a socket: bytes go in, events come out (openai-contract 8.4).

However the stream is cut, the events are the same, but for the size of the FileData pieces. Nothing is kept but one
field's value or one part's headers, each capped. A bad form raises InvalidRequest and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

from app.errors import InvalidRequest

FIELD_MAX_BYTES = 1024
FILENAME_MAX_CHARS = 1024
PARTS_MAX = 16
_PART_HEADERS_MAX = 8
_HEADER_MAX_BYTES = 8192
#: Everything that is not file: field values, headers, boundaries, and what follows the last boundary.
OVERHEAD_MAX_BYTES = 256 * 1024

_BOUNDARY = re.compile(r"[ -~]{1,200}")
_PARAMETER = re.compile(
    r"""[ \t]*;[ \t]*([!#-'*+.0-9A-Z^-z|~-]+)[ \t]*=[ \t]*("(?:[^"\\]|\\.)*"|[^;"\s]*)[ \t]*""", re.DOTALL
)
_ESCAPED = re.compile(r'\\(["\\])')
_PLAIN_ENCODINGS = frozenset({"", "binary", "8bit", "7bit"})


@dataclass(frozen=True, slots=True)
class Field:
    """A whole field that is not a file."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class FileBegin:
    """A file part begins. `filename` is what the client sent, and is good for display only."""

    name: str
    filename: str


@dataclass(frozen=True, slots=True)
class FileData:
    """Some bytes of the file part that began last. The view is good until the next `feed`."""

    data: memoryview


@dataclass(frozen=True, slots=True)
class FileEnd:
    """The file part is whole."""


Event = Field | FileBegin | FileData | FileEnd


class FormReader:
    """Reads one form. Raises InvalidRequest when the content type is another, or lacks a usable boundary."""

    def __init__(self, content_type: str | None) -> None:
        boundary = _boundary(content_type)
        callbacks: dict[str, Callable[..., None]] = {
            "on_part_begin": self._on_part_begin,
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_part_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }
        self._parser = MultipartParser(
            boundary,
            callbacks,  # type: ignore[arg-type]  # its TypedDict wants literal keys
            max_header_count=_PART_HEADERS_MAX,
            max_header_size=_HEADER_MAX_BYTES,
        )
        self._opening = b"--" + boundary
        # Where so many bytes at the end hold no CR, none of them belongs to a boundary or to the hyphens behind it.
        self._delimiter_bytes = len(b"\r\n--" + boundary + b"--")
        self._inside_file = False
        self._prologue: bytearray | None = bytearray()
        self._events: list[Event] = []
        self._parts = 0
        self._overhead_bytes = 0
        self._ended = False
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._in_file = False
        self._value = bytearray()

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
        if self._prologue is not None:
            self._prologue += data
            data = self._begin()
        # Nearly all of a large file. The parser would look for the whole boundary, ten times slower.
        if data and self._inside_file and b"\r" not in data:
            return [FileData(memoryview(data))]
        self._overhead_bytes += len(data)
        try:
            if not self._ended:
                self._parser.write(data)
        except FormParserError as exc:
            raise malformed("its parts cannot be told apart") from exc
        if self._overhead_bytes > OVERHEAD_MAX_BYTES:
            raise malformed("there is too much besides the file")
        whole = len(data) >= self._delimiter_bytes
        self._inside_file = self._in_file and whole and data.rfind(b"\r", -self._delimiter_bytes) < 0
        events, self._events = self._events, []
        return events

    def finish(self) -> None:
        """The stream is over. Raises InvalidRequest when the form is not."""
        if not self._ended:
            raise malformed("it ends before its last boundary")

    def _begin(self) -> bytes:
        """Hold back bytes until they show the first boundary. A preamble, which no client sends, is refused."""
        assert self._prologue is not None
        seen = bytes(self._prologue).lstrip(b"\r\n")
        if len(self._prologue) - len(seen) > 4 or not seen.startswith(self._opening[: len(seen)]):
            raise malformed("it does not begin with its boundary")
        if len(seen) < len(self._opening):
            return b""
        self._prologue = None
        return seen

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise malformed(f"it has more than {PARTS_MAX} parts")
        self._headers = {}

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        name, value = bytes(self._header_name).lower(), bytes(self._header_value)
        if name in self._headers:
            raise malformed("a part repeats a header")
        self._headers[name] = value
        self._header_name, self._header_value = bytearray(), bytearray()

    def _on_headers_finished(self) -> None:
        encoding = self._headers.get(b"content-transfer-encoding", b"").decode("latin-1").strip().lower()
        if encoding not in _PLAIN_ENCODINGS:
            raise malformed("a part has a transfer encoding")
        self._name, filename = _disposition(self._headers.get(b"content-disposition", b""))
        self._in_file = filename is not None
        if filename is not None:
            self._events.append(FileBegin(self._name, filename))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._overhead_bytes -= end - start
            self._events.append(FileData(memoryview(data)[start:end]))
            return
        self._value += data[start:end]
        if len(self._value) > FIELD_MAX_BYTES:
            raise InvalidRequest(
                f"Invalid '{self._name[:64]}': string too long. Expected at most {FIELD_MAX_BYTES} bytes.",
                code="string_above_max_length",
                param=self._name[:64],
            )

    def _on_part_end(self) -> None:
        if self._in_file:
            self._in_file = False
            self._events.append(FileEnd())
            return
        value, self._value = bytes(self._value), bytearray()
        self._events.append(Field(self._name, _text(value, f"the value of '{self._name[:64]}'")))

    def _on_end(self) -> None:
        self._ended = True


def malformed(why: str) -> InvalidRequest:
    """The refusal of a form that cannot be read."""
    return InvalidRequest(f"We could not parse the multipart body of your request: {why}.")


def _boundary(content_type: str | None) -> bytes:
    kind, _, _ = (content_type or "").partition(";")
    if kind.strip().lower() != "multipart/form-data":
        raise InvalidRequest("Invalid content type: this endpoint takes 'multipart/form-data'.")
    boundary = _parameters((content_type or "")[len(kind) :]).get("boundary", "")
    if not _BOUNDARY.fullmatch(boundary) or boundary.endswith(" "):
        raise malformed("its content type names no boundary")
    return boundary.encode()


def _disposition(header: bytes) -> tuple[str, str | None]:
    """Name and file name of a part; the latter None for a plain field."""
    kind, _, _ = header.partition(b";")
    if kind.strip().lower() != b"form-data":
        raise malformed("a part lacks its content disposition")
    parameters = _parameters(header[len(kind) :].decode("latin-1"))
    name, filename, extended = (parameters.get(key) for key in ("name", "filename", "filename*"))
    if name is None:
        raise malformed("a part has no name")
    if extended is not None:
        filename = _extended(extended)
    elif filename is not None:
        filename = _text(filename.encode("latin-1"), "a file name")
    if filename is not None and not 0 < len(filename) <= FILENAME_MAX_CHARS:
        raise malformed(f"a file name has no or more than {FILENAME_MAX_CHARS} characters")
    return _text(name.encode("latin-1"), "a part's name"), filename


def _extended(value: str) -> str:
    """RFC 2231: `UTF-8''na%C3%AFve.jsonl`. RFC 7578 forbids it in forms, and older clients send it all the same."""
    charset, quote, rest = value.partition("'")
    _, second_quote, encoded = rest.partition("'")
    if not quote or not second_quote or charset.lower() not in ("utf-8", "iso-8859-1"):
        raise malformed("a file name has an unknown encoding")
    raw = unquote_to_bytes(encoded.encode("latin-1"))
    return _text(raw if charset.lower() == "utf-8" else raw.decode("latin-1").encode(), "a file name")


def _parameters(text: str) -> dict[str, str]:
    """`; a=b; c="d"` as a dict; raises InvalidRequest for anything else, and for a repeated name."""
    found: dict[str, str] = {}
    position = 0
    text = text.rstrip("; \t")
    while position < len(text):
        match = _PARAMETER.match(text, position)
        if match is None:
            raise malformed("a header has unreadable parameters")
        name, value = match[1].lower(), match[2]
        if name in found:
            raise malformed("a header repeats a parameter")
        found[name] = _ESCAPED.sub(r"\1", value[1:-1]) if value.startswith('"') else value
        position = match.end()
    return found


def _text(raw: bytes, what: str) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as exc:
        raise malformed(f"{what} is not UTF-8") from exc
    if "\0" in text:
        raise malformed(f"{what} holds a NUL character")
    return text
