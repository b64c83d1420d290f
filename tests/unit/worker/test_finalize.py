"""Finalizing."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import update

from app.settings import RetentionSettings
from app.store.tables import chunks
from app.worker import finalize
from tests.unit.worker.yard import QUICK, Yard, jsonl, line


async def test_end_sets_files_and_times(yard: Yard) -> None:
    yard.start(retention=RetentionSettings(output_file_seconds=777))
    batch = await yard.until(await yard.create(jsonl([line("a"), line("b", echo={"status": 400})])))
    assert batch.created_at <= (batch.in_progress_at or 0) <= (batch.finalizing_at or 0) <= (batch.completed_at or 0)
    assert batch.output_file_id != batch.error_file_id
    await yard.check_ledger(batch, ["a", "b"])


async def test_ledger_that_does_not_add_up_is_not_published(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sealed chunk is made to miss a row: the batch stays, the others end."""
    monkeypatch.setattr(finalize, "SET_ASIDE_SECONDS", 0.2)
    running = yard.start(settings=QUICK.model_copy(update={"chunk_max_lines": 5}))
    lines = [line(str(number), echo={"hang": True} if number == 9 else {}) for number in range(10)]
    batch_id = await yard.create(jsonl(lines))
    await yard.until_ended(batch_id, 5)
    async with yard.database.write() as tx:
        await tx.conn.execute(update(chunks).where(chunks.c.position == 0).values(output_rows=4))
    await yard.cancel(batch_id)
    other = await yard.until(await yard.create(jsonl([line("a")])))
    assert other.status.value == "completed"
    await asyncio.sleep(0.5)
    assert (await yard.batch(batch_id)).status.value == "cancelling"
    async with yard.database.write() as tx:
        await tx.conn.execute(update(chunks).where(chunks.c.position == 0).values(output_rows=5))
    batch = await yard.until(batch_id)
    assert batch.status.value == "cancelled"
    await running.finish()
