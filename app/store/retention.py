"""The sweep's questions: which files may go, which blobs have an owner; and how deep the queue is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, cast, delete, func, or_, select, union_all, update

from app.domain.batch import TERMINAL, BatchStatus
from app.domain.chunk import ChunkState
from app.store.clock import moment, seconds
from app.store.contract_tables import upload_parts
from app.store.db import Read, Write
from app.store.tables import batches, chunks, files, parts, segments, word, words

_KEYS_PER_QUERY = 1_000  # each key is a parameter five times over; both databases end near 32,000


@dataclass(frozen=True, slots=True)
class Depth:
    """Work not yet sealed. `open_lines` have not ended in any committed part."""

    pending_chunks: int
    leased_chunks: int
    open_lines: int


def _purgeable() -> ColumnElement[bool]:
    running = batches.c.status.in_(words(set(BatchStatus) - TERMINAL))
    needed = select(1).where(batches.c.input_file_id == files.c.id, running).exists()
    gone = or_(files.c.deleted_at.is_not(None), files.c.expires_at <= seconds())
    return and_(files.c.purged_at.is_(None), gone, ~needed)


async def expired_files(tx: Read, *, limit: int) -> list[str]:
    """Files whose bytes may go: deleted or expired, and not the input of a batch that still runs."""
    return list((await tx.conn.execute(select(files.c.id).where(_purgeable()).limit(limit))).scalars())


async def purge_file(tx: Write, file_id: str) -> list[str]:
    """Forget the manifest; returns its blob keys, to be deleted once this is committed. Empty when the file must stay.

    The row of a batch's input remains as a tombstone, so that the batch still names a file that was; other rows go.
    """
    # The lock comes first and alone: when the conditions are asked, no batch is just being made of this file.
    await tx.conn.execute(select(files.c.id).where(files.c.id == file_id).with_for_update())
    marked = update(files).where(files.c.id == file_id, _purgeable()).values(purged_at=seconds()).returning(files.c.id)
    if (await tx.conn.execute(marked)).one_or_none() is None:
        return []
    dropped = await tx.conn.execute(delete(segments).where(segments.c.file_id == file_id).returning(segments.c.key))
    keys = list(dropped.scalars())
    named = select(1).where(batches.c.input_file_id == files.c.id).exists()
    await tx.conn.execute(delete(files).where(files.c.id == file_id, ~named))
    return keys


async def owned(tx: Read, keys: Collection[str]) -> set[str]:
    """Which of these blob keys a manifest, a part, a sealed chunk or an Upload names."""
    found: set[str] = set()
    asked = sorted(keys)
    columns = (segments.c.key, parts.c.key, chunks.c.output_key, chunks.c.error_key, upload_parts.c.key)
    for start in range(0, len(asked), _KEYS_PER_QUERY):
        some = asked[start : start + _KEYS_PER_QUERY]
        named = union_all(*(select(column).where(column.in_(some)) for column in columns))
        found.update((await tx.conn.execute(named)).scalars())
    return found


async def some_named(tx: Read, *, limit: int) -> list[tuple[str, int]]:
    """(key, bytes) of a few blobs that the database names, of every kind; at most `limit`."""
    found: list[tuple[str, int]] = []
    for key, size in (
        (parts.c.key, parts.c.bytes),
        (chunks.c.output_key, chunks.c.output_bytes),
        (segments.c.key, segments.c.bytes),
    ):
        some = select(key, size).where(key.is_not(None)).limit(limit // 3)
        found.extend((name, int(length)) for name, length in await tx.conn.execute(some))
    return found


async def unheld(tx: Write, chunk_ids: Collection[str]) -> set[str]:
    """Those of these chunks for which nobody can name a blob that is not named yet: sealed, free, or gone.

    A lapsed lease among them is ended. Its holder, who may only be slow, would otherwise still be free to name what it
    wrote. Ask `owned` after this, in the same transaction: what was named before is seen then.
    """
    asked = sorted(chunk_ids)
    held: set[str] = set()
    for start in range(0, len(asked), _KEYS_PER_QUERY):
        some = asked[start : start + _KEYS_PER_QUERY]
        leased = and_(chunks.c.id.in_(some), chunks.c.state == word(ChunkState.LEASED))
        free: dict[str, Any] = {"state": ChunkState.PENDING.value, "lease_token": None, "leased_until": None}
        free["takeovers"] = chunks.c.takeovers + 1  # as whoever claims a lapsed lease counts it
        await tx.conn.execute(update(chunks).where(leased, chunks.c.leased_until <= moment()).values(free))
        held.update((await tx.conn.execute(select(chunks.c.id).where(leased))).scalars())
    return set(asked) - held


async def batches_in(tx: Read) -> dict[BatchStatus, int]:
    """The number of batches in each status, zero included."""
    counted = await tx.conn.execute(select(batches.c.status, func.count()).group_by(batches.c.status))
    return dict.fromkeys(BatchStatus, 0) | {BatchStatus(status): count for status, count in counted}


async def depth(tx: Read) -> Depth:
    """The queue, over all projects."""
    ended = chunks.c.completed + chunks.c.failed + chunks.c.unrun
    pending, leased = (
        func.count().filter(chunks.c.state == word(state)) for state in (ChunkState.PENDING, ChunkState.LEASED)
    )
    lines = cast(func.coalesce(func.sum(chunks.c.lines - ended), 0), BigInteger)
    row = await tx.conn.execute(select(pending, leased, lines).where(chunks.c.state != word(ChunkState.SEALED)))
    return Depth(*row.one())
