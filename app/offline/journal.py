"""What a run has finished, on disk beside its target, so that the next run goes on from there.

    BASE.progress   rows as they finish, one a line: for people to follow, and read again in the end
    BASE.journal    a head, then one slot a line of the input, in input order: where its row stands, and what it counts

Rows are written and synced before their slots. A slot counts only if its own checksum and its row's are right; so after
a kill or a power cut a line is either finished or runs again, and a torn tail of either file is no harm. The head names
the input and the arguments: another run's journal is never taken for ours. One process at a time holds the journal.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from app.domain.chunk import NO_TALLY, Tally
from app.domain.usage import NO_USAGE, Usage
from app.errors import Internal, SettingsInvalid, StorageFull, Unavailable

COMPLETED, FAILED, MALFORMED = 1, 2, 3

_MAGIC = b"BYRUN1\n\0"
_HEAD = struct.Struct("<8s32sQI")
_HEAD_BYTES = 64
# offset, length and checksum of the row; kind; input, cached, output and reasoning tokens; checksum of all that
_SLOT = struct.Struct("<QIIB3xIIIII")
_SLOT_DATA = _SLOT.size - 4
_SLOTS_READ = 4096
_TOKENS_MAX = (1 << 32) - 1
# Rows of so many slots that lie this close together are read in one go.
_RUN_BYTES = 8 << 20


class Finished(NamedTuple):
    """A line that has ended: its position among the input's lines, COMPLETED, FAILED or MALFORMED, and its row."""

    position: int
    kind: int
    row: bytes
    usage: Usage = NO_USAGE


class Ended(NamedTuple):
    """What a journal holds: `tally.failed` are all that did not complete, the `malformed` ones among them."""

    tally: Tally = NO_TALLY
    malformed: int = 0


class _Slot(NamedTuple):
    offset: int
    length: int
    crc: int
    kind: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int


class Journal:
    """Opened by `open`; blocking, for a thread. One caller at a time."""

    def __init__(self, base: Path, *, slots: int, rows: int, lines: int) -> None:
        self._base = base
        self._slots = slots
        self._rows = rows
        self._lines = lines
        self._end = 0
        self.ended = Ended()

    @classmethod
    def open(cls, base: Path, *, key: bytes, lines: int, restart: bool = False) -> Journal:
        """The journal at `base` of the run named by `key` (32 bytes) over `lines` lines: its own, or a new one.

        `restart` drops whatever lies there. Raises SettingsInvalid when another process holds it, or when it belongs
        to another run; Unavailable when it cannot be written.
        """
        path = _beside(base, "journal")
        try:
            slots = _locked(path)
            try:
                rows = os.open(_beside(base, "progress"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError:
                os.close(slots)
                raise
            journal = cls(base, slots=slots, rows=rows, lines=lines)
            try:
                journal._begin(key, path, restart=restart)
            except BaseException:
                journal.close()
                raise
        except OSError as exc:
            raise _told(exc, path) from exc
        return journal

    def finished(self, first: int, count: int) -> set[int]:
        """Those of `count` positions from `first` on whose lines have ended."""
        return {first + at for at, slot in enumerate(self._read_slots(first, count)) if slot is not None}

    def append(self, batch: Sequence[Finished]) -> None:
        """Make these durable. Raises StorageFull or Unavailable: then they may or may not be."""
        slots, offset = [], self._end
        for line in batch:
            slots.append((line.position, _packed(line, offset)))
            offset += len(line.row)
        try:
            _write(self._rows, b"".join([line.row for line in batch]), self._end)
            os.fdatasync(self._rows)
            for position, packed in slots:
                os.pwrite(self._slots, packed, _HEAD_BYTES + position * _SLOT.size)
        except OSError as exc:
            raise _told(exc, _beside(self._base, "progress")) from exc
        self._end = offset

    def merged(self) -> Iterator[tuple[int, bytes]]:
        """(kind, row) of every line, in input order. Raises Internal for a line without a sound row."""
        for first in range(0, self._lines, _SLOTS_READ):
            slots = self._read_slots(first, min(_SLOTS_READ, self._lines - first))
            sound = [slot for slot in slots if slot is not None]
            if len(sound) != len(slots):
                raise Internal(f"{self._base}.journal lacks lines that have ended; run the command again.")
            for slot, row in zip(sound, self._read_rows(sound), strict=True):
                if zlib.crc32(row) != slot.crc:
                    raise Internal(f"{self._base}.progress was changed while the run went on; run the command again.")
                yield slot.kind, row

    def remove(self) -> None:
        """The run is over: nothing of it is needed any more."""
        for kind in ("progress", "journal"):
            _beside(self._base, kind).unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._rows)
        os.close(self._slots)

    def _begin(self, key: bytes, path: Path, *, restart: bool) -> None:
        head = _HEAD.pack(_MAGIC, key, self._lines, 0)
        head = (head[:-4] + struct.pack("<I", zlib.crc32(head[:-4]))).ljust(_HEAD_BYTES, b"\0")
        found = os.pread(self._slots, _HEAD_BYTES, 0)
        if len(found) < _HEAD_BYTES or restart:  # new, or its maker was killed before it had any use
            os.ftruncate(self._slots, 0)
            os.ftruncate(self._rows, 0)
            os.ftruncate(self._slots, _HEAD_BYTES + self._lines * _SLOT.size)
            os.pwrite(self._slots, head, 0)
        elif found != head:
            message = "belongs to a run with another input or other arguments; give it its own, or --restart drops it"
            raise SettingsInvalid(f"{path} {message}")
        else:
            self._recover()

    def _recover(self) -> None:
        """Count what has ended, and forget slots without a sound row, and rows without a slot."""
        completed = failed = malformed = end = 0
        usage = [0, 0, 0, 0]
        for first in range(0, self._lines, _SLOTS_READ):
            slots = self._read_slots(first, min(_SLOTS_READ, self._lines - first))
            places = [at for at, slot in enumerate(slots) if slot is not None]
            sound = [slot for slot in slots if slot is not None]
            for at, slot, row in zip(places, sound, self._read_rows(sound), strict=True):
                if len(row) != slot.length or zlib.crc32(row) != slot.crc:
                    os.pwrite(self._slots, bytes(_SLOT.size), _HEAD_BYTES + (first + at) * _SLOT.size)
                    continue
                end = max(end, slot.offset + slot.length)
                completed += slot.kind == COMPLETED
                failed += slot.kind != COMPLETED
                malformed += slot.kind == MALFORMED
                usage = [sum(pair) for pair in zip(usage, slot[4:], strict=True)]
        os.ftruncate(self._rows, end)
        self._end = end
        total = Usage(usage[0], usage[1], usage[2], usage[3], total_tokens=usage[0] + usage[2])
        self.ended = Ended(Tally(completed, failed, 0, total), malformed)

    def _read_slots(self, first: int, count: int) -> list[_Slot | None]:
        data = os.pread(self._slots, count * _SLOT.size, _HEAD_BYTES + first * _SLOT.size)
        data = data.ljust(count * _SLOT.size, b"\0")  # a torn file ends early
        slots: list[_Slot | None] = []
        for at, (*fields, crc) in enumerate(_SLOT.iter_unpack(data)):
            start = at * _SLOT.size
            intact = fields[3] and zlib.crc32(data[start : start + _SLOT_DATA]) == crc
            slots.append(_Slot(*fields) if intact else None)
        return slots

    def _read_rows(self, slots: Sequence[_Slot]) -> Iterator[bytes]:
        at, most = 0, len(slots)
        while at < most:
            # Rows finish nearly in input order, so those of neighbours lie together.
            low, high, until = slots[at].offset, slots[at].offset, at
            while until < most:
                slot = slots[until]
                new_low, new_high = min(low, slot.offset), max(high, slot.offset + slot.length)
                if new_high - new_low > _RUN_BYTES and until > at:
                    break
                low, high, until = new_low, new_high, until + 1
            data = os.pread(self._rows, high - low, low)
            for slot in slots[at:until]:
                yield data[slot.offset - low : slot.offset - low + slot.length]
            at = until


def _packed(line: Finished, offset: int) -> bytes:
    usage = line.usage
    tokens = (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens)
    counted = [min(max(count, 0), _TOKENS_MAX) for count in tokens]
    data = _SLOT.pack(offset, len(line.row), zlib.crc32(line.row), line.kind, *counted, 0)[:_SLOT_DATA]
    return data + struct.pack("<I", zlib.crc32(data))


def _beside(base: Path, kind: str) -> Path:
    return base.with_name(f"{base.name}.{kind}")


def _locked(path: Path) -> int:
    """A descriptor of `path` that holds its lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise SettingsInvalid(f"{path} is in use: the same run is under way in another process") from None
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # the run that held it has just ended, and removed it


def _write(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _told(exc: OSError, path: Path) -> Unavailable:
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"{path} cannot grow: there is no room left on its disk")
    return Unavailable(f"{path} cannot be written: {exc.strerror}")
