"""Who validates a batch: a lease on the batch row while it is `validating`, and the two ways out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, insert, or_, select, update

from app.domain.batch import Batch, BatchProblem, BatchStatus
from app.domain.chunk import ChunkSpec, ChunkState
from app.domain.id import new_chunk_id, new_lease_token
from app.errors import LeaseLost
from app.store.batches import advance, from_row, problems_text
from app.store.clock import moment
from app.store.db import Write
from app.store.tables import batches, chunks, word

_NO_LEASE: dict[str, Any] = {"lease_token": None, "leased_until": None}


@dataclass(frozen=True, slots=True)
class ValidationClaim:
    """The right to validate `batch`, fenced by `token`."""

    batch: Batch
    token: str


def _waiting() -> tuple[ColumnElement[bool], ...]:
    free = or_(batches.c.leased_until.is_(None), batches.c.leased_until <= moment())
    return batches.c.status == word(BatchStatus.VALIDATING), free


def _fence(claim: ValidationClaim) -> tuple[ColumnElement[bool], ...]:
    # A cancel takes the batch out of `validating`, and with it this right.
    mine = (batches.c.id == claim.batch.id, batches.c.lease_token == claim.token)
    return *mine, batches.c.status == word(BatchStatus.VALIDATING)


async def claim(tx: Write, *, lease_seconds: float) -> ValidationClaim | None:
    """The batch that waits longest for its validation, for `lease_seconds`. None when none waits."""
    oldest = select(batches.c.id).where(*_waiting()).order_by(batches.c.created_at, batches.c.id).limit(1)
    chosen = oldest.with_for_update(skip_locked=True).scalar_subquery()
    token = new_lease_token()
    taken = update(batches).where(batches.c.id == chosen, *_waiting())
    taken = taken.values(lease_token=token, leased_until=moment() + lease_seconds)
    row = (await tx.conn.execute(taken.returning(*batches.c))).mappings().one_or_none()
    return None if row is None else ValidationClaim(from_row(row), token)


async def extend(tx: Write, claim: ValidationClaim, *, lease_seconds: float) -> None:
    """Hold the lease for `lease_seconds` from now. Raises LeaseLost, also once the batch is cancelled."""
    longer = update(batches).where(*_fence(claim)).values(leased_until=moment() + lease_seconds)
    if (await tx.conn.execute(longer.returning(batches.c.id))).one_or_none() is None:
        raise _lost(claim)


async def accept(
    tx: Write, claim: ValidationClaim, *, model: str | None, chunks: Sequence[ChunkSpec], tokens: int | None = None
) -> Batch:
    """The file is good: the batch is in progress, cut into `chunks`. `tokens` are estimated. Raises LeaseLost."""
    lines = sum(chunk.lines for chunk in chunks)
    values = {"model": model, "total": lines, "enqueued_tokens": tokens, **_NO_LEASE}
    batch = await advance(tx, claim.batch.id, to=BatchStatus.IN_PROGRESS, where=_fence(claim), values=values)
    if batch is None:
        raise _lost(claim)
    await _insert_chunks(tx, batch, chunks)
    return batch


async def reject(tx: Write, claim: ValidationClaim, *, problems: Sequence[BatchProblem]) -> Batch:
    """The file is bad: the batch has failed. Raises LeaseLost."""
    values = {"errors": problems_text(problems), **_NO_LEASE}
    batch = await advance(tx, claim.batch.id, to=BatchStatus.FAILED, where=_fence(claim), values=values)
    if batch is None:
        raise _lost(claim)
    return batch


async def release(tx: Write, claim: ValidationClaim) -> None:
    """Give the lease back at once. No error when it is lost already."""
    await tx.conn.execute(update(batches).where(*_fence(claim)).values(_NO_LEASE))


def _lost(claim: ValidationClaim) -> LeaseLost:
    return LeaseLost(f"The validation of {claim.batch.id} belongs to another worker, or the batch was cancelled.")


async def _insert_chunks(tx: Write, batch: Batch, specs: Sequence[ChunkSpec]) -> None:
    rows = [
        {
            "id": new_chunk_id(),
            "batch_id": batch.id,
            "project_id": batch.project_id,
            "position": spec.position,
            "start": spec.start,
            "end": spec.end,
            "first_line": spec.first_line,
            "lines": spec.lines,
            "state": ChunkState.PENDING.value,
        }
        for spec in specs
    ]
    if rows:
        await tx.conn.execute(insert(chunks), rows)
