"""Leases: zombies, and a database that is away for longer than a lease."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from app.errors import BlobMissing, Unavailable
from tests.unit.worker.yard import QUICK, Yard, jsonl, line

SHORT = QUICK.model_copy(update={"lease_seconds": 0.4, "heartbeat_seconds": 0.1})


def ids(count: int) -> list[str]:
    return [f"line-{number}" for number in range(count)]


async def test_zombie_changes_nothing(shared_yard: Yard) -> None:
    """A worker is paused past its lease, another takes over and finishes; then the first one wakes up."""
    yard = shared_yard
    zombie = yard.start(settings=SHORT, window=16)
    lines = [line(name, text=name, echo={"delay_ms": 15}) for name in ids(300)]
    batch_id = await yard.create(jsonl(lines))
    await yard.until_ended(batch_id, 20)
    zombie.database.hold()
    held = zombie.worker._drain.leases()
    assert held
    await asyncio.sleep(0.1)  # lines go on ending in its memory
    second = yard.start(settings=SHORT, window=32)
    batch = await yard.until(batch_id)
    before = await yard.content(batch.output_file_id)
    zombie.database.let_go()
    async with asyncio.timeout(5):
        while zombie.worker._drain.leases():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    await zombie.finish()
    await second.finish()
    assert await yard.batch(batch_id) == batch
    assert await yard.content(batch.output_file_id) == before
    await yard.check_ledger(batch, ids(300))
    assert await yard.blob_keys("parts/") == [], "what the zombie wrote is gone again"
    assert len(await yard.blob_keys("segments/")) == 6


async def test_zombie_wakes_up_while_the_other_still_works(yard: Yard) -> None:
    zombie = yard.start(settings=SHORT, window=16)
    lines = [line(name, text=name, echo={"delay_ms": 15}) for name in ids(400)]
    batch_id = await yard.create(jsonl(lines))
    await yard.until_ended(batch_id, 20)
    zombie.database.hold()
    second = yard.start(settings=SHORT, window=8)
    await asyncio.sleep(0.9)
    zombie.database.let_go()
    batch = await yard.until(batch_id)
    await yard.check_ledger(batch, ids(400))
    await zombie.finish()
    await second.finish()


async def test_database_away_past_the_lease_loses_nothing(yard: Yard) -> None:
    """Results are kept in memory, nothing more is dealt, and the lease that nobody took goes on."""
    running = yard.start(settings=SHORT.model_copy(update={"chunk_max_lines": 1000}), window=4)
    lines = [line(name, text=name, echo={"delay_ms": 100}) for name in ids(90)]
    batch_id = await yard.create(jsonl(lines))
    await yard.until_ended(batch_id, 4)
    tokens = dict(running.worker._drain.leases())
    running.database.fail(Unavailable("away"))
    await asyncio.sleep(1.0)
    dealt = running.worker._drain._feed.dealt
    await asyncio.sleep(0.3)
    assert dealt < 90
    assert running.worker._drain._feed.dealt == dealt, "leases are in doubt: nothing is dealt"
    assert dict(running.worker._drain.leases()) == tokens
    running.database.fail(None)
    batch = await yard.until(batch_id)
    output, _ = await yard.check_ledger(batch, ids(90))
    assert len(output) == 90
    assert all(count == 0 for count in yard.seen.values())


async def test_frozen_past_the_lease_deals_nothing_before_the_heartbeat_answers(yard: Yard) -> None:
    """SIGSTOP ends unseen: the clock has jumped, and others may be running the same lines."""
    running = yard.start(settings=SHORT, window=4)
    lines = [line(name, text=name, echo={"delay_ms": 30}) for name in ids(60)]
    batch_id = await yard.create(jsonl(lines))
    await yard.until_ended(batch_id, 4)
    feed = running.worker._drain._feed
    dealt = feed.dealt
    feed.hold_until(asyncio.get_running_loop().time() - 1)
    assert feed.in_doubt
    assert feed.take() is None
    assert feed.dealt == dealt
    batch = await yard.until(batch_id)
    output, _ = await yard.check_ledger(batch, ids(60))
    assert len(output) == 60


async def test_bytes_that_the_new_owner_has_done_with_are_no_alarm(yard: Yard) -> None:
    """A zombie that reads a chunk which another has sealed meanwhile finds its parts gone."""
    running = yard.start(settings=SHORT, window=16)
    batch_id = await yard.create(jsonl([line(name, echo={"delay_ms": 200}) for name in ids(5)]))
    async with asyncio.timeout(5):
        while not running.worker._drain._ledgers:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    [ledger] = running.worker._drain._ledgers.values()
    await yard.until(batch_id)
    zombie = yard.start(settings=SHORT)
    with capture_logs() as logs:
        await zombie.worker._drain._put_aside(ledger.claim, BlobMissing("gone"))
    assert [entry["event"] for entry in logs if entry["log_level"] in ("warning", "error")] == ["lease_lost"]
    assert zombie.worker._drain._set_aside == {}
    await zombie.finish()
