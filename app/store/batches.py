"""Batches as their project sees them, and the one guarded transition that every change of status goes through."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, insert, select, update

from app.domain.batch import Batch, BatchProblem, BatchStatus, sources, timestamp_field
from app.errors import StateConflict
from app.store import tallies
from app.store.clock import seconds
from app.store.db import Read, Write
from app.store.outbox import announce
from app.store.page import Page, keyset
from app.store.tables import batches, files, words

_PLAIN = (
    "id",
    "project_id",
    "endpoint",
    "input_file_id",
    "completion_window",
    "created_at",
    "expires_at",
    "model",
    "output_file_id",
    "error_file_id",
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
    "total",
    "output_expires_after_seconds",
    "input_found",
    "enqueued_tokens",
    "enqueued_tokens_max",
    "queued_requests_max",
)


def from_row(row: RowMapping) -> Batch:
    errors, metadata = row["errors"], row["metadata"]
    return Batch(
        **{name: row[name] for name in _PLAIN},
        status=BatchStatus(row["status"]),
        errors=() if errors is None else tuple(BatchProblem(**problem) for problem in json.loads(errors)),
        metadata=None if metadata is None else json.loads(metadata),
        tally=tallies.from_row(row),
    )


def problems_text(problems: Sequence[BatchProblem]) -> str:
    """The column `errors`."""
    return json.dumps([asdict(problem) for problem in problems])


async def create(
    tx: Write,
    *,
    id: str,
    project_id: str,
    endpoint: str,
    input_file_id: str,
    completion_window: str,
    window_seconds: int,
    metadata: Mapping[str, str] | None,
    output_expires_after_seconds: int | None,
    input_found: bool = True,
    enqueued_tokens_max: int | None = None,
    queued_requests_max: int | None = None,
) -> Batch:
    """A new batch in `validating`, due `window_seconds` from now.

    `input_found` says whether the project could see the input at this moment: from here on the batch may read it, also
    when the file is deleted or expires before its validation.
    """
    # Until this commits, a purge of the input waits; from then on it finds the batch and lets the input be.
    held = select(files.c.id).where(files.c.id == input_file_id).with_for_update(read=True)
    await tx.conn.execute(held)
    now = int(await tx.now())
    values = {
        "id": id,
        "project_id": project_id,
        "endpoint": endpoint,
        "input_file_id": input_file_id,
        "input_found": input_found,
        "completion_window": completion_window,
        "status": BatchStatus.VALIDATING.value,
        "created_at": now,
        "expires_at": now + window_seconds,
        "metadata": None if metadata is None else json.dumps(dict(metadata)),
        "output_expires_after_seconds": output_expires_after_seconds,
        "enqueued_tokens_max": enqueued_tokens_max,
        "queued_requests_max": queued_requests_max,
    }
    row = await tx.conn.execute(insert(batches).values(values).returning(*batches.c))
    return from_row(row.mappings().one())


async def get(tx: Read, batch_id: str, *, project_id: str) -> Batch | None:
    """None when unknown or of another project."""
    found = select(batches).where(batches.c.id == batch_id, batches.c.project_id == project_id)
    row = (await tx.conn.execute(found)).mappings().one_or_none()
    return None if row is None else from_row(row)


async def page(tx: Read, *, project_id: str, after: str | None, limit: int) -> Page[Batch]:
    """A project's batches, newest first. Raises InvalidRequest for an unknown `after`."""
    rows = await keyset(tx.conn, batches, project_id=project_id, after=after, limit=limit, descending=True)
    found = (await tx.conn.execute(rows)).mappings().all()
    return Page([from_row(row) for row in found[:limit]], has_more=len(found) > limit)


async def advance(
    tx: Write,
    batch_id: str,
    *,
    to: BatchStatus,
    where: Sequence[ColumnElement[bool]] = (),
    values: Mapping[str, Any] | None = None,
) -> Batch | None:
    """Enter `to` from any status that the state machine allows, if `where` holds too. None when no row matched.

    An end is announced to the project's webhooks in the same transaction.
    """
    entered = {"status": to.value, timestamp_field(to): seconds(), **(values or {})}
    edge = (batches.c.id == batch_id, batches.c.status.in_(words(sources(to))), *where)
    moved = await tx.conn.execute(update(batches).where(*edge).values(entered).returning(*batches.c))
    row = moved.mappings().one_or_none()
    if row is None:
        return None
    batch = from_row(row)
    if batch.is_terminal:
        await announce(tx, batch)
    return batch


async def cancel(tx: Write, batch_id: str, *, project_id: str) -> Batch | None:
    """Ask for an early end (openai-contract 3.3, 6). A second ask changes nothing. None when unknown.

    Raises StateConflict when there is nothing left to cancel. A validation that is under way keeps its lease, and finds
    out when it next uses it.
    """
    mine = (batches.c.project_id == project_id,)
    batch = await advance(tx, batch_id, to=BatchStatus.CANCELLING, where=mine)
    if batch is None:
        batch = await get(tx, batch_id, project_id=project_id)
        if batch is not None and batch.status not in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
            raise StateConflict(f"Cannot cancel a batch with status '{batch.status}'.")
    return batch
