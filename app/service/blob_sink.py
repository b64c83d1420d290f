"""Bytes on their way into one blob: counted, hashed and stored while they arrive, in constant memory.

Two blocks are in memory at most: one that fills, and one that a thread hashes while another writes it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from app.blobs.base import Blobs, BlobWriter
from app.errors import TooLarge

_BLOCK_BYTES = 2 << 20
#: So much of the beginning is kept: enough for most first lines.
HEAD_BYTES = 1 << 20


class _Abandoned(Exception):
    """The context was left without `finish`."""


@asynccontextmanager
async def receiving(blobs: Blobs, *, key: str, max_bytes: int) -> AsyncGenerator[BlobSink]:
    """A sink for the blob `key`. Unless its `finish` returned, leaving the context leaves nothing behind."""
    with suppress(_Abandoned):
        async with AsyncExitStack() as stack:
            sink = BlobSink(blobs, key=key, max_bytes=max_bytes, stack=stack)
            try:
                yield sink
                if not sink.finished:
                    raise _Abandoned
            finally:
                await sink.abandon()


class BlobSink:
    """Takes the bytes of one blob. Made by `receiving`; not for use by several tasks at once.

    `max_bytes` may be lowered on the way; `head` is the beginning, HEAD_BYTES of it. A blob without bytes is not made.
    """

    def __init__(self, blobs: Blobs, *, key: str, max_bytes: int, stack: AsyncExitStack) -> None:
        self.key = key
        self.max_bytes = max_bytes
        self.bytes = 0
        self.head = bytearray()
        self.finished = False
        self._blobs = blobs
        self._stack = stack
        self._writer: BlobWriter | None = None
        self._waiting = bytearray()
        self._storing: asyncio.Task[None] | None = None
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Hex; of everything once `finish` returned."""
        return self._hash.hexdigest()

    def check_size(self) -> None:
        """Raises TooLarge above `max_bytes`."""
        if self.bytes > self.max_bytes:
            raise TooLarge("File is too large.")

    async def write(self, data: bytes | memoryview) -> None:
        """Append. Raises TooLarge, StorageFull, Unavailable; nothing is kept then."""
        self.bytes += len(data)
        self.check_size()
        if len(self.head) < HEAD_BYTES:
            self.head += data[: HEAD_BYTES - len(self.head)]
        self._waiting += data
        if len(self._waiting) >= _BLOCK_BYTES:
            await self._store()

    async def finish(self) -> None:
        """The blob is whole and durable on return; may be called once. Raises StorageFull, Unavailable."""
        if self._waiting:
            await self._store()
        await self._settle()
        await self._stack.aclose()
        self.finished = True

    async def _store(self) -> None:
        await self._settle()
        if self._writer is None:
            self._writer = await self._stack.enter_async_context(self._blobs.writer(self.key))
        block, self._waiting = self._waiting, bytearray()
        self._storing = asyncio.create_task(self._hash_and_write(self._writer, block), name="upload_block")

    async def _hash_and_write(self, writer: BlobWriter, block: bytearray) -> None:
        hashing = asyncio.ensure_future(asyncio.to_thread(self._hash.update, block))
        try:
            await writer.write(block)
        finally:
            await asyncio.wait([hashing])

    async def _settle(self) -> None:
        storing, self._storing = self._storing, None
        if storing is not None:
            await storing

    async def abandon(self) -> None:
        """End the write that is under way, whatever its outcome. `receiving` calls it last."""
        storing, self._storing = self._storing, None
        if storing is not None:
            storing.cancel()
            await asyncio.wait([storing])
            if not storing.cancelled():
                storing.exception()
