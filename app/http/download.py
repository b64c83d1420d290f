"""Bytes on their way out of the blob store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class Download(StreamingResponse):
    """Streams blobs, and closes them also when the client leaves half-way."""

    def __init__(self, first: bytes, blocks: AsyncGenerator[bytes], **options: Any) -> None:
        self._blocks = blocks
        self._resumed = _resumed(first, blocks)
        super().__init__(self._resumed, **options)

    @classmethod
    async def begin(cls, blocks: AsyncGenerator[bytes], *, status: int, headers: dict[str, str]) -> Download:
        """Reads the first block before the status line is sent: what is wrong with the blob store is a 5xx then."""
        first = await anext(blocks, b"")
        return cls(first, blocks, status_code=status, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Both: a generator that was never started does not close what it was to read from.
        async with aclosing(self._blocks), aclosing(self._resumed):
            await super().__call__(scope, receive, send)


async def _resumed(first: bytes, blocks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    yield first
    async for block in blocks:
        yield block
