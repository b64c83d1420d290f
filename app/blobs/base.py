"""The blob contract: immutable byte strings under keys of our own making.

Who: service writes uploads, the worker writes parts and segments; both read. A key is written once, by one writer,
and never changed; so a reader needs no lock. Keys come from `app.blobs.key` only: an id or name from outside never
becomes one.
Until when: a blob lives until `delete`. It is visible to others only after its writer committed, and then survives a
crash of the process and of the machine (local: file and folder are fsynced).
In which order: write, commit, then name the key in the database; drop the name from the database, then delete. A
crash between the two leaves a blob without an owner, never an owner without a blob; the retention sweep removes such
blobs after a grace time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

BLOCK_BYTES = 1 << 20  # reads come in blocks of at most this size


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """One stored blob, as `scan` yields it. `modified_at` is Unix seconds by the store's clock."""

    key: str
    bytes: int
    modified_at: float


class BlobWriter(Protocol):
    """Collects one blob. Nothing is visible before the surrounding context ends without an exception."""

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append. Raises StorageFull when there is no room, Unavailable when the store does not answer."""


class Blobs(Protocol):
    """A blob store."""

    def writer(self, key: str) -> AbstractAsyncContextManager[BlobWriter]:
        """A writer whose clean exit makes the blob durable;

        an exception (also cancellation) leaves nothing behind.
        """

    async def put(self, key: str, data: bytes) -> None:
        """Store `data` whole; durable on return. Raises like BlobWriter.write."""

    def read(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes]:
        """Bytes [start, end) in blocks of at most BLOCK_BYTES. Raises BlobMissing, Unavailable."""

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end) as one string. Raises BlobMissing, Unavailable."""

    async def delete(self, key: str) -> None:
        """Remove; a missing key is no error."""

    def scan(self, prefix: str = "") -> AsyncGenerator[BlobInfo]:
        """Every blob whose key starts with `prefix`, in no order.

        Unfinished writes are not blobs; see `sweep_unfinished`.
        """

    async def sweep_unfinished(self, *, older_than_seconds: float) -> int:
        """Remove what crashed writers left behind before they committed; returns how many."""

    async def check(self) -> None:
        """Write, read back and delete a few bytes.

        Raises Unavailable or StorageFull; `/ready` and `doctor` call it.
        """

    async def free_bytes(self) -> int | None:
        """Room left, where the store can tell."""
