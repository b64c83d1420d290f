"""Parts: results made durable while their chunk still runs, and read back by whoever takes the chunk over.

The blob is written first, then its key is committed with its counts, fenced by the lease. So a part either counts
whole or not at all, and a blob without a row is litter that the sweep removes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection

import structlog

from app.blobs.base import Blobs
from app.blobs.key import part_key
from app.domain.chunk import Part, Tally
from app.domain.part import PartDamaged, PartReader, Row, encode
from app.errors import LeaseLost, Unavailable
from app.failpoint import failpoint
from app.store import chunks, retention
from app.store.db import Database, Write
from app.telemetry import LINES, PART_BYTES, PART_COMMIT_SECONDS, PARTS, TOKENS
from app.worker.ledger import Backlog, Ledger
from app.worker.patience import persist

log = structlog.get_logger()

MODEL_MAX_CHARS = 512


class Parts:
    """Writes, reads and drops parts."""

    def __init__(self, *, database: Database, blobs: Blobs, backlog: Backlog) -> None:
        self._database = database
        self._blobs = blobs
        self._backlog = backlog

    async def commit(self, ledger: Ledger, *, give_up: asyncio.Event) -> None:
        """Make the pending rows of `ledger` one committed part, however long storage is away.

        Raises LeaseLost (the blob is removed again), and Unavailable once `give_up` is set: then the rows are lost,
        and their lines run again under the next lease.
        """
        rows, tally = ledger.take()
        size = sum(len(row.text) for row in rows)
        try:
            await self.keep(ledger, rows, tally, give_up=give_up)
        finally:
            self._backlog.settle(size)

    async def keep(self, ledger: Ledger, rows: list[Row], tally: Tally, *, give_up: asyncio.Event) -> None:
        """As `commit`, for rows that were taken from `ledger` already."""
        began = asyncio.get_running_loop().time()
        data = await asyncio.to_thread(encode, rows)
        key = await persist(lambda: self._write(ledger, data), doing="write_part", give_up=give_up)
        part = Part(ledger.chunk_id, len(ledger.parts) + 1, key, len(data), tally)
        await persist(lambda: self._record(ledger, part), doing="commit_part", give_up=give_up)
        ledger.parts.append(part)
        PARTS.inc()
        PART_BYTES.inc(len(data))
        PART_COMMIT_SECONDS.observe(asyncio.get_running_loop().time() - began)
        count(tally)

    async def ended(self, part: Part) -> list[int]:
        """The lines whose rows stand in `part`. Raises BlobMissing, PartDamaged, Unavailable."""
        reader = PartReader(self.blocks(part), key=part.key)
        found: list[int] = []
        while rows := await reader.batch():
            found.extend(row.line for row in rows)
        if reader.counts != (part.tally.completed, part.tally.failed, part.tally.unrun):
            raise PartDamaged(f"The part {part.key} holds {reader.counts} rows, its counts say {part.tally}.")
        return found

    def reader(self, part: Part, *, block_bytes: int) -> PartReader:
        """The rows of `part`, at most `block_bytes` of them in memory."""
        return PartReader(self.blocks(part, block_bytes=block_bytes), key=part.key)

    async def blocks(self, part: Part, *, block_bytes: int = 1 << 20) -> AsyncGenerator[bytes]:
        """The blob of `part` by ranges: nothing stays open between two of them."""
        for start in range(0, part.bytes, block_bytes):
            yield await self._blobs.get(part.key, start=start, end=min(part.bytes, start + block_bytes))

    async def discard(self, keys: Collection[str]) -> None:
        """Delete those of these blobs that the database does not name.

        What cannot be deleted now is left to the sweep.
        """
        try:
            async with self._database.read() as tx:
                owned = await retention.owned(tx, keys)
        except Unavailable as exc:
            log.info("blobs_left_to_sweep", count=len(keys), reason=exc.message)
        else:
            await self.delete([key for key in keys if key not in owned])

    async def delete(self, keys: Collection[str]) -> None:
        """Delete blobs that the database names no more; what cannot be deleted now is left to the sweep."""
        try:
            for key in keys:
                await self._blobs.delete(key)
        except Unavailable as exc:
            log.info("blobs_left_to_sweep", count=len(keys), reason=exc.message)

    async def _write(self, ledger: Ledger, data: bytes) -> str:
        key = part_key(ledger.claim.batch_id, ledger.chunk_id, ledger.claim.token)
        await self._blobs.put(key, data)
        await failpoint("part_written")
        return key

    async def _record(self, ledger: Ledger, part: Part) -> None:
        claim = ledger.claim
        try:
            async with self._database.write() as tx:
                # First, for an earlier attempt whose answer got lost may be in its commit still: this waits for it.
                await chunks.hold(tx, claim.chunk_id, claim.token)
                if await retention.owned(tx, [part.key]):
                    return  # an earlier attempt was committed, its answer got lost
                await chunks.commit_part(
                    tx, claim.chunk_id, claim.token, key=part.key, bytes=part.bytes, tally=part.tally
                )
                await tell_model(tx, ledger)
                await failpoint("part_recorded")
            await failpoint("part_committed")
        except LeaseLost:
            await self.discard([part.key])
            raise
        ledger.model_told = ledger.model is not None


async def tell_model(tx: Write, ledger: Ledger) -> None:
    """Note which model answered, once a chunk. Comes after a fenced write of `tx`, and so is fenced by it."""
    model = ledger.model
    # An engine's words, not ours: a database refuses some of what JSON can say.
    if model is not None and not ledger.model_told and model.isprintable() and len(model) <= MODEL_MAX_CHARS:
        await chunks.set_model(tx, ledger.claim.batch_id, model)


def count(tally: Tally) -> None:
    """Lines that became durable, for the metrics."""
    LINES.labels("completed").inc(tally.completed)
    LINES.labels("failed").inc(tally.failed)
    LINES.labels("unrun").inc(tally.unrun)
    TOKENS.labels("input").inc(tally.usage.input_tokens)
    TOKENS.labels("cached").inc(tally.usage.cached_tokens)
    TOKENS.labels("output").inc(tally.usage.output_tokens)
