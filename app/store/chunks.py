"""Chunks under lease: claim, extend, commit a part, seal, release.

Every write names the token of its claim. A lease that lapsed still counts until another claim replaces its token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, RowMapping, and_, case, delete, func, insert, or_, select, update

from app.domain.batch import BatchStatus
from app.domain.chunk import NO_TALLY, ChunkSpec, ChunkState, Claim, Part, SealedSegment, Tally
from app.domain.id import new_lease_token
from app.errors import Internal, LeaseLost
from app.store import tallies
from app.store.clock import moment, seconds
from app.store.db import Read, Write
from app.store.tables import batches, chunks, parts, word, words

Closing = Literal["cancelled", "expired"]

_RUNNING = (BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING)
_NO_LEASE: dict[str, Any] = {"lease_token": None, "leased_until": None}


@dataclass(frozen=True, slots=True)
class Extension:
    """What a heartbeat learned: chunks whose lease is `lost`, and why some of the others should end early."""

    lost: frozenset[str]
    closing: dict[str, Closing]


def part_from_row(row: RowMapping) -> Part:
    return Part(row["chunk_id"], row["sequence"], row["key"], row["bytes"], tallies.from_row(row))


def _spec(row: RowMapping) -> ChunkSpec:
    return ChunkSpec(row["position"], row["start"], row["end"], row["first_line"], row["lines"])


def _claimable() -> ColumnElement[bool]:
    lapsed = and_(chunks.c.state == word(ChunkState.LEASED), chunks.c.leased_until <= moment())
    return and_(
        chunks.c.state != word(ChunkState.SEALED),  # implied by the rest; spelled out for the partial index
        or_(chunks.c.state == word(ChunkState.PENDING), lapsed),
    )


def _fence(chunk_id: str, token: str) -> tuple[ColumnElement[bool], ...]:
    return chunks.c.id == chunk_id, chunks.c.lease_token == token, chunks.c.state == word(ChunkState.LEASED)


def _lost(chunk_id: str) -> LeaseLost:
    return LeaseLost(f"The lease of {chunk_id} was lost.")


async def claim(
    tx: Write, *, lease_seconds: float, exclude_batches: Collection[str] = (), closing_only: bool = False
) -> Claim | None:
    """One chunk that nobody holds, for `lease_seconds`; None when there is none outside `exclude_batches`.

    `closing_only` looks at batches that only need closing: work for a worker whose engine is away or busy.
    Order: the project with the fewest chunks under lease; then batches that only need closing (cancelled or past their
    deadline); then the earliest deadline, the older batch, the lower position.
    """
    passed = set(exclude_batches)
    while (batch := await _next_batch(tx, passed, closing_only=closing_only)) is not None:
        token = new_lease_token()
        row = await _lease(tx, batch["id"], token=token, lease_seconds=lease_seconds)
        if row is not None:
            return Claim(
                chunk_id=row["id"],
                token=token,
                batch_id=batch["id"],
                project_id=batch["project_id"],
                endpoint=batch["endpoint"],
                input_file_id=batch["input_file_id"],
                expires_at=batch["expires_at"],
                cancelling=batch["status"] == BatchStatus.CANCELLING.value,
                expired=bool(batch["expired"]),
                spec=_spec(row),
                parts=await _parts(tx, row["id"]),
                takeovers=row["takeovers"],
            )
        passed.add(batch["id"])  # its free chunks are being claimed by others at this moment
    return None


async def _next_batch(tx: Write, passed: Collection[str], *, closing_only: bool) -> RowMapping | None:
    held = select(chunks.c.project_id, func.count().label("held"))
    held = held.where(chunks.c.state == word(ChunkState.LEASED), chunks.c.leased_until > moment())
    by_project = held.group_by(chunks.c.project_id).subquery()
    expired = batches.c.expires_at <= seconds()
    closing = or_(batches.c.status == word(BatchStatus.CANCELLING), expired)
    open_work = select(1).where(chunks.c.batch_id == batches.c.id, _claimable()).exists()
    names = ("id", "project_id", "endpoint", "input_file_id", "expires_at", "status")
    waiting = (
        select(*(batches.c[name] for name in names), expired.label("expired"))
        .outerjoin(by_project, by_project.c.project_id == batches.c.project_id)
        .where(batches.c.status.in_(words(_RUNNING)), open_work)
        .order_by(
            func.coalesce(by_project.c.held, 0),
            closing.desc(),
            batches.c.expires_at,
            batches.c.id,
        )
        .limit(1)
    )
    if closing_only:
        waiting = waiting.where(closing)
    if passed:
        waiting = waiting.where(batches.c.id.not_in(sorted(passed)))
    return (await tx.conn.execute(waiting)).mappings().one_or_none()


async def _lease(tx: Write, batch_id: str, *, token: str, lease_seconds: float) -> RowMapping | None:
    first = select(chunks.c.id).where(chunks.c.batch_id == batch_id, _claimable()).order_by(chunks.c.position).limit(1)
    chosen = first.with_for_update(skip_locked=True).scalar_subquery()
    lapsed = case((chunks.c.state == word(ChunkState.LEASED), 1), else_=0)
    values = {"state": ChunkState.LEASED.value, "lease_token": token, "leased_until": moment() + lease_seconds}
    values["takeovers"] = chunks.c.takeovers + lapsed
    taken = update(chunks).where(chunks.c.id == chosen, _claimable()).values(values).returning(*chunks.c)
    return (await tx.conn.execute(taken)).mappings().one_or_none()


async def _parts(tx: Read, chunk_id: str) -> tuple[Part, ...]:
    rows = await tx.conn.execute(select(parts).where(parts.c.chunk_id == chunk_id).order_by(parts.c.sequence))
    return tuple(part_from_row(row) for row in rows.mappings())


async def extend(tx: Write, leases: Sequence[tuple[str, str]], *, lease_seconds: float) -> Extension:
    """Hold every (chunk id, token) of a worker for `lease_seconds` from now, in one go."""
    asked = {chunk_id for chunk_id, _ in leases}
    if not asked:
        return Extension(frozenset(), {})
    longer = update(chunks).where(*_held(leases)).values(leased_until=moment() + lease_seconds)
    kept = set((await tx.conn.execute(longer.returning(chunks.c.id))).scalars())
    standing = select(chunks.c.id, batches.c.status).join(batches, batches.c.id == chunks.c.batch_id)
    rows = await tx.conn.execute(standing.where(chunks.c.id.in_(sorted(kept)), _closing()))
    return Extension(frozenset(asked - kept), {chunk_id: _why(status) for chunk_id, status in rows})


async def closing(tx: Read, batch_ids: Collection[str]) -> dict[str, Closing]:
    """Which of these batches should end early, and why. A cancel outranks the deadline."""
    if not batch_ids:
        return {}
    asked = select(batches.c.id, batches.c.status).where(batches.c.id.in_(sorted(batch_ids)), _closing())
    return {batch_id: _why(status) for batch_id, status in await tx.conn.execute(asked)}


def _closing() -> ColumnElement[bool]:
    late = and_(batches.c.status == word(BatchStatus.IN_PROGRESS), batches.c.expires_at <= seconds())
    return or_(batches.c.status == word(BatchStatus.CANCELLING), late)


def _why(status: str) -> Closing:
    return "cancelled" if status == BatchStatus.CANCELLING.value else "expired"


def _held(leases: Sequence[tuple[str, str]]) -> tuple[ColumnElement[bool], ...]:
    # Two lists instead of pairs: a token names one claim of one chunk, so they cannot match crosswise.
    ids, tokens = zip(*sorted(leases), strict=True)
    return chunks.c.id.in_(ids), chunks.c.lease_token.in_(tokens), chunks.c.state == word(ChunkState.LEASED)


async def hold(tx: Write, chunk_id: str, token: str) -> str:
    """Until `tx` ends nobody else writes under this lease, or takes it. Returns the batch's id. Raises LeaseLost."""
    held = update(chunks).where(*_fence(chunk_id, token)).values(lease_token=token).returning(chunks.c.batch_id)
    batch_id: str | None = (await tx.conn.execute(held)).scalar_one_or_none()
    if batch_id is None:
        raise _lost(chunk_id)
    return batch_id


async def commit_part(tx: Write, chunk_id: str, token: str, *, key: str, bytes: int, tally: Tally) -> Part:
    """Record finished lines whose rows stand in blob `key`, `bytes` long. Raises LeaseLost."""
    batch_id = await _grow(tx, chunk_id, token, tally)
    last = select(func.coalesce(func.max(parts.c.sequence), 0) + 1).where(parts.c.chunk_id == chunk_id)
    values = {"chunk_id": chunk_id, "sequence": last.scalar_subquery(), "key": key, "bytes": bytes}
    row = await tx.conn.execute(insert(parts).values({**values, **tallies.columns(tally)}).returning(*parts.c))
    part = part_from_row(row.mappings().one())
    await _grow_batch(tx, batch_id, tally)
    return part


async def _grow(tx: Write, chunk_id: str, token: str, tally: Tally) -> str:
    # The token is set to itself so that there is a SET clause, and the row's lock is taken, for an empty tally too.
    values = {"lease_token": token, "takeovers": 0, **tallies.grown(chunks, tally)}
    grown = update(chunks).where(*_fence(chunk_id, token)).values(values).returning(chunks.c.batch_id)
    batch_id: str | None = (await tx.conn.execute(grown)).scalar_one_or_none()
    if batch_id is None:
        raise _lost(chunk_id)
    return batch_id


async def _grow_batch(tx: Write, batch_id: str, tally: Tally) -> None:
    more = tallies.grown(batches, tally)
    if more:
        await tx.conn.execute(update(batches).where(batches.c.id == batch_id).values(more))


async def seal(
    tx: Write,
    chunk_id: str,
    token: str,
    *,
    output: SealedSegment | None,
    error: SealedSegment | None,
    added: Tally = NO_TALLY,
) -> list[str]:
    """All lines have ended and stand in `output` and `error`; `added` counts those that no part counted.

    Returns the keys of the parts' blobs, to be deleted once this is committed. Raises LeaseLost; raises Internal when
    the lines counted, or the rows in the segments, are not the chunk's lines.
    """
    values = {"state": ChunkState.SEALED.value, **_NO_LEASE, **_segment("output", output), **_segment("error", error)}
    values.update(tallies.grown(chunks, added))
    sealed = update(chunks).where(*_fence(chunk_id, token)).values(values).returning(*chunks.c)
    row = (await tx.conn.execute(sealed)).mappings().one_or_none()
    if row is None:
        raise _lost(chunk_id)
    ended = tallies.from_row(row)
    rows = (output.rows if output else 0, error.rows if error else 0)
    if ended.lines != row["lines"] or rows != (ended.completed, ended.failed + ended.unrun):
        raise Internal(f"{chunk_id} has {row['lines']} lines, {ended} ended, and {rows} rows to seal.")
    await _grow_batch(tx, row["batch_id"], added)
    dropped = await tx.conn.execute(delete(parts).where(parts.c.chunk_id == chunk_id).returning(parts.c.key))
    return list(dropped.scalars())


async def drop_parts(tx: Write, chunk_id: str, token: str, keys: Collection[str]) -> None:
    """Forget parts whose bytes are lost: their lines have not ended, and are not counted. Raises LeaseLost.

    Those that are forgotten already change nothing.
    """
    batch_id = await hold(tx, chunk_id, token)
    mine = (parts.c.chunk_id == chunk_id, parts.c.key.in_(sorted(keys)))
    dropped = await tx.conn.execute(delete(parts).where(*mine).returning(*parts.c))
    tally = sum((tallies.from_row(row) for row in dropped.mappings()), NO_TALLY)
    for table, row in ((chunks, chunk_id), (batches, batch_id)):
        if less := tallies.shrunk(table, tally):
            await tx.conn.execute(update(table).where(table.c.id == row).values(less))


async def reopen(tx: Write, batch_id: str, chunk_id: str, *, lost_key: str) -> bool:
    """A segment of this sealed chunk is lost: all its lines run again, and are not counted before they have.

    False when the chunk does not name `lost_key` any more, or its batch runs no more.
    """
    # The batch first, as whoever ends it does: so it cannot end meanwhile.
    running = (batches.c.id == batch_id, batches.c.status.in_(words(_RUNNING)))
    if (await tx.conn.execute(select(batches.c.id).where(*running).with_for_update())).one_or_none() is None:
        return False
    named = or_(chunks.c.output_key == lost_key, chunks.c.error_key == lost_key)
    sealed = select(chunks).where(chunks.c.id == chunk_id, chunks.c.state == word(ChunkState.SEALED), named)
    row = (await tx.conn.execute(sealed.with_for_update())).mappings().one_or_none()
    if row is None:
        return False
    tally = tallies.from_row(row)
    empty = {f"{kind}_{field}": None for kind in ("output", "error") for field in ("key", "bytes", "rows")}
    values = {"state": ChunkState.PENDING.value, **empty, **tallies.shrunk(chunks, tally)}
    await tx.conn.execute(update(chunks).where(chunks.c.id == chunk_id).values(values))
    if less := tallies.shrunk(batches, tally):
        await tx.conn.execute(update(batches).where(batches.c.id == batch_id).values(less))
    return True


def _segment(name: str, segment: SealedSegment | None) -> dict[str, Any]:
    if segment is None:
        return {}
    return {f"{name}_key": segment.key, f"{name}_bytes": segment.bytes, f"{name}_rows": segment.rows}


async def release(tx: Write, leases: Sequence[tuple[str, str]]) -> frozenset[str]:
    """Give chunks back at once; their committed parts stay. Returns those whose lease still counted."""
    if not leases:
        return frozenset()
    free = {"state": ChunkState.PENDING.value, **_NO_LEASE}
    freed = update(chunks).where(*_held(leases)).values(free).returning(chunks.c.id)
    return frozenset((await tx.conn.execute(freed)).scalars())


async def set_model(tx: Write, batch_id: str, model: str) -> None:
    """Name the model that answered; the first word counts."""
    unnamed = update(batches).where(batches.c.id == batch_id, batches.c.model.is_(None))
    await tx.conn.execute(unnamed.values(model=model))
