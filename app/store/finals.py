"""The end of a batch: its sealed segments become its result files, in one transaction and without a copy."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import BigInteger, ColumnElement, cast, delete, func, insert, select

from app.domain.batch import Batch, BatchStatus
from app.domain.chunk import ChunkState
from app.domain.file import File, Purpose
from app.errors import Internal
from app.store.batches import advance, from_row
from app.store.db import Read, Write
from app.store.files import insert_file
from app.store.tables import batches, chunks, segments, word, words

_RUNNING = (BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING)
_OPEN = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


@dataclass(frozen=True, slots=True)
class _Ledger:
    """Sums over a batch's chunks."""

    unsealed: int
    lines: int
    completed: int
    failed: int
    unrun: int
    output_rows: int
    output_bytes: int
    error_rows: int
    error_bytes: int


def _all_sealed() -> ColumnElement[bool]:
    return ~select(1).where(chunks.c.batch_id == batches.c.id, chunks.c.state != word(ChunkState.SEALED)).exists()


async def ready(tx: Read, *, limit: int = 16) -> list[str]:
    """Ids of batches with nothing left to run; one that was cancelled before its validation has no chunk at all."""
    done = select(batches.c.id).where(batches.c.status.in_(words(_OPEN)), _all_sealed())
    return list((await tx.conn.execute(done.order_by(batches.c.id).limit(limit))).scalars())


async def sealed_segments(tx: Read, batch_id: str) -> list[tuple[str, str, int]]:
    """(chunk id, key, bytes) of every sealed segment of a batch that can still run lines again."""
    running = (batches.c.id == batch_id, batches.c.status.in_(words(_RUNNING)))
    if (await tx.conn.execute(select(batches.c.id).where(*running))).one_or_none() is None:
        return []
    columns = (chunks.c.id, chunks.c.output_key, chunks.c.output_bytes, chunks.c.error_key, chunks.c.error_bytes)
    rows = await tx.conn.execute(select(*columns).where(chunks.c.batch_id == batch_id).order_by(chunks.c.position))
    return [
        (chunk_id, key, size)
        for chunk_id, output, output_bytes, error, error_bytes in rows
        for key, size in ((output, output_bytes), (error, error_bytes))
        if key is not None
    ]


async def begin(tx: Write, batch_id: str) -> Batch | None:
    """Enter `finalizing`: from here a cancel is refused. None unless every line of a batch in progress has run."""
    cut_off = select(1).where(chunks.c.batch_id == batches.c.id, chunks.c.unrun > 0).exists()
    return await advance(tx, batch_id, to=BatchStatus.FINALIZING, where=(_all_sealed(), ~cut_off))


async def finish(
    tx: Write, batch_id: str, *, output_file_id: str, error_file_id: str, expires_after_seconds: int
) -> Batch | None:
    """Publish the result files and end the batch; None when it is not ready to end, or another worker was first.

    A file without rows is not made, its id stays null. Files expire `expires_after_seconds` from now unless the batch
    says otherwise. The chunks are gone afterwards. Raises Internal when the ledger does not add up.
    """
    locked = select(batches).where(batches.c.id == batch_id, batches.c.status.in_(words(_OPEN))).with_for_update()
    row = (await tx.conn.execute(locked)).mappings().one_or_none()
    if row is None:
        return None
    batch = from_row(row)
    ledger = await _ledger(tx, batch_id)
    to = _end_of(batch, ledger)
    if to is None:
        return None
    _check(batch, ledger)
    lifetime = batch.output_expires_after_seconds or expires_after_seconds
    now = int(await tx.now())
    ids: dict[str, str | None] = {"output": None, "error": None}
    for kind, file_id, rows, size in (
        ("output", output_file_id, ledger.output_rows, ledger.output_bytes),
        ("error", error_file_id, ledger.error_rows, ledger.error_bytes),
    ):
        if rows:
            name = f"{batch_id}_{kind}.jsonl"
            purpose = Purpose.BATCH_OUTPUT
            await insert_file(tx, File(file_id, batch.project_id, purpose, name, size, None, now, now + lifetime))
            await _link(tx, batch_id, kind=kind, file_id=file_id)
            ids[kind] = file_id
    values = {"output_file_id": ids["output"], "error_file_id": ids["error"], "lease_token": None, "leased_until": None}
    ended = await advance(tx, batch_id, to=to, values=values)
    assert ended is not None, "the row is locked in a status that leads here"
    await tx.conn.execute(delete(chunks).where(chunks.c.batch_id == batch_id))
    return ended


def _end_of(batch: Batch, ledger: _Ledger) -> BatchStatus | None:
    if ledger.unsealed:
        return None
    if batch.status is BatchStatus.IN_PROGRESS:
        return BatchStatus.EXPIRED if ledger.unrun else None  # all lines ran: `begin` comes first
    return BatchStatus.CANCELLED if batch.status is BatchStatus.CANCELLING else BatchStatus.COMPLETED


def _check(batch: Batch, ledger: _Ledger) -> None:
    rows = ledger.output_rows + ledger.error_rows
    ended = ledger.completed + ledger.failed + ledger.unrun
    whole = batch.total == ledger.lines == rows == ended
    sides = ledger.output_rows == ledger.completed
    if not (whole and sides and batch.tally.completed == ledger.completed and batch.tally.failed == ledger.failed):
        raise Internal(f"The ledger of {batch.id} does not add up: {batch.total} lines, {batch.tally}, {ledger}.")


async def _ledger(tx: Read, batch_id: str) -> _Ledger:
    unsealed = func.count().filter(chunks.c.state != word(ChunkState.SEALED))
    names = ("lines", "completed", "failed", "unrun", "output_rows", "output_bytes", "error_rows", "error_bytes")
    sums = [cast(func.coalesce(func.sum(chunks.c[name]), 0), BigInteger).label(name) for name in names]
    row = (await tx.conn.execute(select(unsealed.label("unsealed"), *sums).where(chunks.c.batch_id == batch_id))).one()
    return _Ledger(**row._mapping)


async def _link(tx: Write, batch_id: str, *, kind: str, file_id: str) -> None:
    """Manifest rows from the sealed segments, in input order."""
    key, size = chunks.c[f"{kind}_key"], chunks.c[f"{kind}_bytes"]
    order = chunks.c.position
    place = func.row_number().over(order_by=order) - 1
    start = cast(func.sum(size).over(order_by=order), BigInteger) - size
    source = select(_literal(file_id), place, key, start, size).where(chunks.c.batch_id == batch_id, key.is_not(None))
    target = insert(segments).from_select(["file_id", "position", "key", "start", "bytes"], source)
    await tx.conn.execute(target)


def _literal(value: str) -> ColumnElement[str]:
    return cast(value, segments.c.file_id.type)
