"""The format of a part: one sorted run of finished rows, framed, with a checksum.

    magic 8 bytes | rows uint32 | completed uint32 | failed uint32 | unrun uint32        little-endian
    per row:  line index in the chunk uint32 | kind uint8 | length uint32 | row bytes
    CRC-32 of everything before it, uint32

Rows stand in rising index order, each index once. Kinds: 0 completed (output file), 1 failed and 2 unrun (error file).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

from app.errors import Internal

COMPLETED, FAILED, UNRUN = 0, 1, 2

_MAGIC = b"BYPART1\n"
_HEAD = struct.Struct("<8sIIII")
_FRAME = struct.Struct("<IBI")
_TAIL = struct.Struct("<I")


class PartDamaged(Internal):
    """A committed part is not what was written: cut short, altered, or of other counts than the database says."""


class Row(NamedTuple):
    """A finished line: its index in the chunk, its kind, and its result row with the `\\n`."""

    line: int
    kind: int
    text: bytes


def encode(rows: Iterable[Row]) -> bytes:
    """The part of `rows`, which come in any order."""
    counts = [0, 0, 0]
    pieces = [b""]
    for row in sorted(rows):
        counts[row.kind] += 1
        pieces.append(_FRAME.pack(row.line, row.kind, len(row.text)))
        pieces.append(row.text)
    pieces[0] = _HEAD.pack(_MAGIC, sum(counts), *counts)
    data = b"".join(pieces)
    return data + _TAIL.pack(zlib.crc32(data))


class PartReader:
    """Rows of one part, pulled block by block. Memory: one block and one row.

    `counts` is (completed, failed, unrun), known after the first row. Raises PartDamaged; the checksum is compared
    after the last row, so a caller must read to the end before it relies on anything.
    """

    def __init__(self, blocks: AsyncIterator[bytes], *, key: str) -> None:
        self._blocks = blocks
        self._key = key
        self._buffer = bytearray()
        self._crc = 0
        self._rows_left: int | None = None
        self._last_index = -1
        self.counts = (0, 0, 0)

    async def batch(self) -> list[Row]:
        """The next rows, as many as a block brings; empty at the end."""
        while True:
            rows = self._parse()
            if rows:
                return rows
            block = await anext(self._blocks, None)
            if block is None:
                self._check_end()
                return []
            self._buffer += block

    def _parse(self) -> list[Row]:
        buffer, at = self._buffer, 0
        if self._rows_left is None:
            if len(buffer) < _HEAD.size:
                return []
            magic, rows, *counts = _HEAD.unpack_from(buffer)
            if magic != _MAGIC or rows != sum(counts):
                raise self._damaged("does not begin like one")
            self.counts = (counts[0], counts[1], counts[2])
            self._rows_left, at = rows, _HEAD.size
        found: list[Row] = []
        while self._rows_left and len(buffer) - at >= _FRAME.size:
            index, kind, length = _FRAME.unpack_from(buffer, at)
            begin = at + _FRAME.size
            if index <= self._last_index or kind > UNRUN:
                raise self._damaged("has a wrong frame")
            if len(buffer) - begin < length:
                break
            found.append(Row(index, kind, bytes(buffer[begin : begin + length])))
            at = begin + length
            self._rows_left -= 1
            self._last_index = index
        if at:
            self._crc = zlib.crc32(memoryview(buffer)[:at], self._crc)
            del buffer[:at]
        return found

    def _check_end(self) -> None:
        if self._rows_left != 0 or len(self._buffer) != _TAIL.size:
            raise self._damaged("has the wrong length")
        if _TAIL.unpack(self._buffer)[0] != self._crc:
            raise self._damaged("has the wrong checksum")

    def _damaged(self, how: str) -> PartDamaged:
        return PartDamaged(f"The part {self._key} {how}.")
