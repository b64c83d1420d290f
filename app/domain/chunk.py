"""Chunks, leases and parts: the units of work of the drain.

    pending ──claim──► leased ──seal──► sealed
       ▲                 │
       └─lapse, release──┘      a lapsed lease is claimable as if pending

A chunk is a run of whole lines of the input file. A lease is the right to work on it, named by a fresh token. A part
is a durable, committed set of finished lines of a chunk. Sealing merges a chunk's parts, in input order, into one
output and one error segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.domain.usage import NO_USAGE, Usage


class ChunkState(StrEnum):
    """States of a chunk; the same words stand in the SQL CHECK."""

    PENDING = "pending"
    LEASED = "leased"
    SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class ChunkSpec:
    """A chunk as validation cuts it: bytes [start, end) of the input file, holding `lines` requests.

    `first_line` is the physical, 1-based number of the line that begins at `start`; blank lines inside are numbered,
    not counted.
    """

    position: int
    start: int
    end: int
    first_line: int
    lines: int


@dataclass(frozen=True, slots=True)
class Tally:
    """What ended: `completed` and `failed` lines ran, `unrun` lines were cut off by cancel or expiry."""

    completed: int = 0
    failed: int = 0
    unrun: int = 0
    usage: Usage = NO_USAGE

    @property
    def lines(self) -> int:
        return self.completed + self.failed + self.unrun

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.completed + other.completed,
            self.failed + other.failed,
            self.unrun + other.unrun,
            self.usage + other.usage,
        )


NO_TALLY = Tally()


@dataclass(frozen=True, slots=True)
class Part:
    """A committed part: `key` names its blob, `sequence` orders the parts of one chunk by commit."""

    chunk_id: str
    sequence: int
    key: str
    bytes: int
    tally: Tally


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """One sealed blob of a chunk: its key, size and number of rows. None stands where a chunk has no such rows."""

    key: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed chunk: everything the worker needs to run it, and the token that fences its writes.

    `takeovers` counts the claims, this one included, that took it from a worker that had vanished, since anything of it
    became durable.
    """

    chunk_id: str
    token: str
    batch_id: str
    project_id: str
    endpoint: str
    input_file_id: str
    expires_at: int
    cancelling: bool
    expired: bool
    spec: ChunkSpec
    parts: tuple[Part, ...]
    takeovers: int = 0
