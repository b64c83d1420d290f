"""The input read once before anything runs: how many lines, which bytes, and (when asked) which faults.

`Input.runs` reads it again, run by run, while the lines are answered. Both in bounded memory, blocking, for a thread.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from app.domain.lines import Line, LineCutter
from app.errors import Internal
from app.offline.line import Fault

_BLOCK_BYTES = 1 << 20
_FAULTS_MAX = 20


@dataclass(frozen=True, slots=True)
class Survey:
    """`digest` (32 bytes) names the content of `bytes` bytes; `lines` are those that are not blank.

    `faulty` lines are malformed, and `faults` are the first of them; both empty when nobody asked.
    """

    digest: bytes
    bytes: int
    lines: int
    faulty: int = 0
    faults: list[Fault] = field(default_factory=list)


class Run(NamedTuple):
    """Consecutive lines; `first` is the position of the first one among the lines that are not blank."""

    first: int
    lines: list[Line]


class Input:
    """A file on a local disk, held open: what replaces it under its name while the run goes on is not read."""

    def __init__(self, file: BinaryIO, *, name: str, line_max_bytes: int) -> None:
        """`file` is this object's from now on. `name` is for messages."""
        self._file = file
        self._name = name
        self._line_max_bytes = line_max_bytes
        self._stat = os.fstat(file.fileno())

    def survey(self, find: Callable[[Line], Fault | None] | None = None) -> Survey:
        """Read it through; `find` looks at every line."""
        digest = hashlib.blake2b(digest_size=32)
        lines = faulty = 0
        faults: list[Fault] = []
        for block_lines in self._cut(digest.update):
            lines += len(block_lines)
            for fault in filter(None, map(find, block_lines) if find else ()):
                faulty += 1
                if len(faults) < _FAULTS_MAX:
                    faults.append(fault)
        return Survey(digest.digest(), self._stat.st_size, lines, faulty, faults)

    def runs(self, *, max_lines: int, max_bytes: int) -> Iterator[Run]:
        """All lines in runs up to both limits; a longer line is a run of its own."""
        first, run, size = 0, list[Line](), 0
        for block_lines in self._cut():
            for line in block_lines:
                if run and (len(run) >= max_lines or size + line.end - line.start > max_bytes):
                    yield Run(first, run)
                    first, run, size = first + len(run), [], 0
                run.append(line)
                size += line.end - line.start
        if run:
            yield Run(first, run)
        self.check()

    def check(self) -> None:
        """Raises Internal when the file was written to since it was opened: its lines may not be those surveyed."""
        now = os.fstat(self._file.fileno())
        if (now.st_size, now.st_mtime_ns) != (self._stat.st_size, self._stat.st_mtime_ns):
            raise Internal(f"the input {self._name} was changed while it was read")

    def close(self) -> None:
        self._file.close()

    def _cut(self, see: Callable[[bytes], object] = lambda block: None) -> Iterator[list[Line]]:
        cutter = LineCutter(line_max_bytes=self._line_max_bytes)
        for start in range(0, self._stat.st_size, _BLOCK_BYTES):
            block = os.pread(self._file.fileno(), min(_BLOCK_BYTES, self._stat.st_size - start), start)
            see(block)
            yield cutter.feed(block)
        yield cutter.finish()
