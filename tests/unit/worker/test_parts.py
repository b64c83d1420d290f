"""Parts and seals when storage is away, full, or loses an answer."""

from __future__ import annotations

import asyncio

import pytest

from app.errors import StorageFull
from app.telemetry import PARTS
from app.worker import drain, patience
from tests.unit.worker.yard import QUICK, Yard, jsonl, line


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "MAX_SECONDS", 0.2)


def ids(count: int) -> list[str]:
    return [f"line-{number}" for number in range(count)]


@pytest.mark.parametrize("every", [2, 3, 5, 7])
async def test_commit_whose_answer_is_lost_counts_once(yard: Yard, every: int) -> None:
    """Validation, claims, parts, seals and the end: each write may be committed and reported as failed."""
    lines = [line(name, text=name, echo={"delay_ms": 25}) for name in ids(200)]
    # A claim whose answer is lost is nobody's until it lapses.
    settings = QUICK.model_copy(update={"lease_seconds": 0.2, "heartbeat_seconds": 0.1, "part_seconds": 0.05})
    running = yard.start(settings=settings, window=8)
    parts_before = PARTS._value.get()
    running.database.lose_answers(every)
    batch = await yard.until(await yard.create(jsonl(lines)))
    assert batch.status.value == "completed"
    output, _ = await yard.check_ledger(batch, ids(200))
    assert len(output) == 200
    assert running.database.answers_lost > 0
    assert PARTS._value.get() > parts_before


async def test_full_disk_waits_and_goes_on(yard: Yard) -> None:
    lines = [line(name, text=name, echo={"delay_ms": 40}) for name in ids(120)]
    batch_id = await yard.create(jsonl(lines))
    yard.start(window=8)
    await yard.until_ended(batch_id, 10)
    yard.blobs.fault = StorageFull("no room")
    await asyncio.sleep(0.8)
    stuck = await yard.batch(batch_id)
    await asyncio.sleep(0.3)
    assert (await yard.batch(batch_id)).tally == stuck.tally
    assert stuck.status.value == "in_progress"
    yard.blobs.fault = None
    batch = await yard.until(batch_id)
    await yard.check_ledger(batch, ids(120))


async def test_full_disk_stops_dealing(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results wait in memory, but not without bound."""
    monkeypatch.setattr(drain, "BACKLOG_PARTS", 2)
    batch_id = await yard.create(jsonl(line(name, text="word " * 200) for name in ids(400)))
    yard.blobs.fault = StorageFull("no room")
    running = yard.start(settings=QUICK.model_copy(update={"part_max_bytes": 4096}), window=4)
    await asyncio.sleep(0.8)
    waiting = running.worker._drain._feed._backlog.bytes
    assert 0 < waiting < 100_000
    yard.blobs.fault = None
    batch = await yard.until(batch_id)
    await yard.check_ledger(batch, ids(400))
    assert running.worker._drain._feed._backlog.bytes == 0


async def test_stop_while_storage_is_away_ends(yard: Yard) -> None:
    lines = [line(name, text=name, echo={"delay_ms": 5}) for name in ids(120)]
    batch_id = await yard.create(jsonl(lines))
    running = yard.start(window=8)
    await yard.until_ended(batch_id, 10)
    yard.blobs.fault = StorageFull("no room")
    await asyncio.sleep(0.2)
    async with asyncio.timeout(3):
        await running.finish()
    yard.blobs.fault = None
    yard.start(window=64)
    batch = await yard.until(batch_id)
    await yard.check_ledger(batch, ids(120))


async def test_many_parts_are_merged_in_order(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many as the size of a part asks for: no line is dealt while one part's worth of results waits."""
    monkeypatch.setattr(drain, "BACKLOG_PARTS", 1)
    parts_before = PARTS._value.get()
    settings = QUICK.model_copy(update={"part_max_bytes": 4096, "chunk_max_lines": 1000})
    lines = [
        line(name, text=name, echo={"status": 500})
        if number % 7 == 0
        else line(name, text=name, echo={"delay_ms": number % 9})
        for number, name in enumerate(ids(400))
    ]
    yard.start(settings=settings, window=4)
    batch = await yard.until(await yard.create(jsonl(lines)))
    output, error = await yard.check_ledger(batch, ids(400))
    rows = len(await yard.content(batch.output_file_id)) + len(await yard.content(batch.error_file_id))
    assert PARTS._value.get() - parts_before >= rows // 8192 > 3
    assert len(error) == 58
    assert len(await yard.blob_keys("segments/")) == 2
    assert batch.tally.usage.output_tokens == len(output)
