"""Lines of a JSONL file, cut from blocks of bytes in bounded memory (design decision 2, openai-contract 4.1).

A line ends at `\\n` and nowhere else, or at the end of the file. One `\\r` before it is not part of its text; a byte
order mark at the very start of the file is skipped; whitespace-only lines are numbered and not yielded. Numbers are
physical, from 1.
"""

from __future__ import annotations

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """A line that is not blank: file bytes [start, end), line end included. `text` is None above the length limit."""

    number: int
    start: int
    end: int
    text: bytes | None


class LineCutter:
    """Feed blocks in order, then `finish` once. Holds at most `line_max_bytes` and one block.

    `number` and `offset` say where in the file the first block begins; only at offset 0 is a byte order mark looked
    for. A line above `line_max_bytes` is yielded without its text, and the next one is whole again.
    """

    def __init__(self, *, line_max_bytes: int, number: int = 1, offset: int = 0) -> None:
        self._max_bytes = line_max_bytes
        self._number = number
        self._start = offset
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._overlong = False
        self._mark_ahead = offset == 0

    def feed(self, block: bytes) -> list[Line]:
        """The lines that end in `block`."""
        if self._mark_ahead:
            block = self._skip_mark(block)
        pieces = block.split(b"\n")
        last = pieces.pop()
        lines: list[Line] = []
        for piece in pieces:
            text, length = (piece, len(piece)) if not self._rest_bytes else self._joined(piece)
            self._emit(lines, text, length, 1)
        self._keep(last)
        return lines

    def finish(self) -> list[Line]:
        """The last line, where the file does not end with `\\n`."""
        self._mark_ahead = False
        lines: list[Line] = []
        if self._rest_bytes:
            text, length = self._joined(b"")
            self._emit(lines, text, length, 0)
        return lines

    def _skip_mark(self, block: bytes) -> bytes:
        head = b"".join(self._rest) + block
        self._rest, self._rest_bytes = [], 0
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._keep(head)
            return b""
        self._mark_ahead = False
        if head.startswith(_BOM):
            self._start += len(_BOM)
            return head[len(_BOM) :]
        return head

    def _emit(self, lines: list[Line], text: bytes | None, length: int, ending: int) -> None:
        end = self._start + length + ending
        if text is not None and len(text) <= self._max_bytes + 1:
            if text.endswith(b"\r"):
                text = text[:-1]
            if len(text) > self._max_bytes:
                text = None
        else:
            text = None
        if text is None or (text and not text.isspace()):
            lines.append(Line(self._number, self._start, end, text))
        self._number += 1
        self._start = end

    def _joined(self, piece: bytes) -> tuple[bytes | None, int]:
        length = self._rest_bytes + len(piece)
        text = None if self._overlong else b"".join([*self._rest, piece])
        self._rest, self._rest_bytes, self._overlong = [], 0, False
        return text, length

    def _keep(self, piece: bytes) -> None:
        if not piece:
            return
        self._rest_bytes += len(piece)
        if self._rest_bytes > self._max_bytes + 1:  # + 1: a `\r` may still belong to the line end
            self._overlong = True
            self._rest = []
        else:
            self._rest.append(piece)
