"""Sealing: the rows of a chunk, from its committed parts and from memory, become one output and one error segment.

The parts are merged by line, so both segments stand in input order. Memory is bounded by MERGE_BYTES, or by a few KiB
for each part where a chunk has thousands of them. The segments are durable before the fenced commit names them.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import Literal

import structlog

from app.blobs.base import BLOCK_BYTES, Blobs, BlobWriter
from app.blobs.key import segment_key
from app.domain.chunk import SealedSegment, Tally
from app.domain.part import COMPLETED, PartDamaged, PartReader, Row
from app.errors import BlobMissing, Internal, Unavailable
from app.failpoint import failpoint
from app.store import chunks, retention
from app.store.db import Database
from app.telemetry import CHUNKS_SEALED
from app.worker.ledger import Backlog, Ledger
from app.worker.parts import Parts, count, tell_model
from app.worker.patience import persist

log = structlog.get_logger()

MERGE_BYTES = 32 << 20
_SLICE_MIN_BYTES = 32 << 10

_Segments = tuple[SealedSegment | None, SealedSegment | None]


class Sealer:
    """Seals chunks whose every line has ended."""

    def __init__(self, *, database: Database, blobs: Blobs, parts: Parts, backlog: Backlog) -> None:
        self._database = database
        self._blobs = blobs
        self._parts = parts
        self._backlog = backlog

    async def seal(self, ledger: Ledger, *, give_up: asyncio.Event) -> None:
        """Seal, however long storage is away.

        Raises LeaseLost (the segments are removed again), BlobMissing for a part that is not there (the rows in memory
        are one more part then), PartDamaged, and Unavailable once `give_up` is set.
        """
        rows, added = ledger.take()
        size = sum(len(row.text) for row in rows)
        rows.sort()
        try:
            try:
                segments = await persist(lambda: self._write(ledger, rows), doing="write_segments", give_up=give_up)
            except BlobMissing:
                if rows:
                    await self._parts.keep(ledger, rows, added, give_up=give_up)
                raise
            dropped = await persist(lambda: self._record(ledger, segments, added), doing="commit_seal", give_up=give_up)
        finally:
            self._backlog.settle(size)
        count(added)
        CHUNKS_SEALED.inc()
        log.info("chunk_sealed", batch_id=ledger.claim.batch_id, chunk_id=ledger.chunk_id, lines=len(ledger.texts))
        await self._parts.delete(dropped)

    async def _write(self, ledger: Ledger, rows: Sequence[Row]) -> _Segments:
        slice_bytes = min(BLOCK_BYTES, max(_SLICE_MIN_BYTES, MERGE_BYTES // (len(ledger.parts) + 1)))
        sources = [_Source(list(rows))]
        sources += [_Source([], self._parts.reader(part, block_bytes=slice_bytes)) for part in ledger.parts]
        output, error = _Segment(ledger, "output"), _Segment(ledger, "error")
        try:
            async with AsyncExitStack() as stack:
                merged = 0
                async for run in _merged(sources):
                    merged += len(run)
                    for segment, whole in ((output, True), (error, False)):
                        texts = [row.text for row in run if (row.kind == COMPLETED) is whole]
                        await segment.write(texts, self._blobs, stack)
                if merged != len(ledger.texts):
                    raise Internal(f"{ledger.chunk_id} has {len(ledger.texts)} lines and {merged} rows to seal.")
        except Unavailable:
            # One of them may stand already. On a full disk it would be in the way of the next try.
            await self._parts.delete([output.key, error.key])
            raise
        await failpoint("segments_written")
        return output.sealed(), error.sealed()

    async def _record(self, ledger: Ledger, segments: _Segments, added: Tally) -> list[str]:
        claim = ledger.claim
        output, error = segments
        keys = [segment.key for segment in segments if segment is not None]
        try:
            async with self._database.write() as tx:
                if await retention.owned(tx, keys):
                    return [part.key for part in ledger.parts]  # an earlier attempt was committed, its answer got lost
                dropped = await chunks.seal(tx, claim.chunk_id, claim.token, output=output, error=error, added=added)
                await tell_model(tx, ledger)
                await failpoint("seal_recorded")
            await failpoint("sealed")
        except Internal:  # the lease is lost, or the books of the chunk do not add up
            await self._parts.discard(keys)
            raise
        return dropped


class _Segment:
    """One segment as it is written; its blob exists only once there is a row for it."""

    def __init__(self, ledger: Ledger, kind: Literal["output", "error"]) -> None:
        self.key = segment_key(ledger.claim.batch_id, ledger.chunk_id, kind)
        self._writer: BlobWriter | None = None
        self._bytes = 0
        self._rows = 0

    async def write(self, texts: list[bytes], blobs: Blobs, stack: AsyncExitStack) -> None:
        if not texts:
            return
        if self._writer is None:
            self._writer = await stack.enter_async_context(blobs.writer(self.key))
        data = b"".join(texts)
        await self._writer.write(data)
        self._bytes += len(data)
        self._rows += len(texts)

    def sealed(self) -> SealedSegment | None:
        return SealedSegment(self.key, self._bytes, self._rows) if self._rows else None


class _Source:
    """A sorted run of rows: in memory, or behind a part's reader."""

    def __init__(self, rows: list[Row], reader: PartReader | None = None) -> None:
        self._rows = rows
        self._at = 0
        self._reader = reader

    async def head(self) -> Row | None:
        """The next row, not yet taken; None at the end."""
        if self._at == len(self._rows):
            if self._reader is None:
                return None
            self._rows, self._at = await self._reader.batch(), 0
            if not self._rows:
                return None
        return self._rows[self._at]

    def below(self, line: int | None) -> list[Row]:
        """Take the rows in memory up to `line`, None for all: a run that no other source breaks."""
        start = self._at
        if line is None:
            self._at = len(self._rows)
        else:
            while self._at < len(self._rows) and self._rows[self._at].line < line:
                self._at += 1
        return self._rows[start : self._at]


async def _merged(sources: Sequence[_Source]) -> AsyncGenerator[list[Row]]:
    """Runs of rows in line order over all sources, each run of at most a block. Raises PartDamaged for a line twice."""
    heap: list[tuple[int, int]] = []
    for number, source in enumerate(sources):
        first = await source.head()
        if first is not None:
            heap.append((first.line, number))
    heapq.heapify(heap)
    while heap:
        line, number = heapq.heappop(heap)
        bound = heap[0][0] if heap else None
        if bound == line:
            raise PartDamaged(f"Line {line} of a chunk stands in two parts.")
        source = sources[number]
        yield source.below(bound)
        following = await source.head()
        if following is not None:
            heapq.heappush(heap, (following.line, number))
