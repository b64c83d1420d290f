"""Merging parts into segments, on the real stores."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from sqlalchemy import update

from app.blobs.base import BlobWriter
from app.domain.chunk import NO_TALLY, Part, Tally
from app.domain.part import PartDamaged, encode
from app.domain.result import Outcome
from app.errors import BlobMissing, Internal, LeaseLost, StorageFull
from app.settings import LimitSettings
from app.store import chunks, validations
from app.store.tables import chunks as chunk_rows
from app.worker import seal as sealing
from app.worker.absence import Absences
from app.worker.inspection import Inspection
from app.worker.intake import Intake
from app.worker.ledger import Backlog, Ledger
from app.worker.parts import Parts
from app.worker.seal import Sealer
from tests.unit.worker.yard import CHAT, QUICK, FaultyBlobs, Yard, jsonl, line


class Bench:
    """One leased chunk of `lines` lines, and what makes it durable."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.backlog = Backlog()
        self.parts = Parts(database=yard.database, blobs=yard.blobs, backlog=self.backlog)
        self.sealer = Sealer(database=yard.database, blobs=yard.blobs, parts=self.parts, backlog=self.backlog)

    async def claim(self, lines: int) -> Ledger:
        data = jsonl(line(str(number)) for number in range(lines))
        await self.yard.create(data)
        inspection = Inspection(
            endpoint=CHAT, limits=LimitSettings(), worker=QUICK.model_copy(update={"chunk_max_lines": 10_000})
        )
        inspection.feed(data)
        inspection.finish()
        async with self.yard.database.write() as tx:
            validation = await validations.claim(tx, lease_seconds=60)
            assert validation is not None
            await validations.accept(tx, validation, model=None, chunks=inspection.chunks)
        return await self.again(lease_seconds=60)

    async def again(self, *, lease_seconds: float = 60) -> Ledger:
        async with self.yard.database.write() as tx:
            claim = await chunks.claim(tx, lease_seconds=lease_seconds)
        assert claim is not None
        intake = Intake(
            database=self.yard.database,
            blobs=self.yard.blobs,
            parts=self.parts,
            backlog=self.backlog,
            absences=Absences(
                database=self.yard.database, blobs=self.yard.blobs, lost_after_seconds=30, gone_after_seconds=3600
            ),
            part_max_bytes=1 << 30,
            poison_lines_max=16,
        )
        return await intake.ledger(claim)

    async def again_after(self, ledger: Ledger) -> Ledger:
        """The chunk of `ledger` as the next worker finds it."""
        async with self.yard.database.write() as tx:
            await chunks.release(tx, [(ledger.chunk_id, ledger.claim.token)])
        return await self.again()

    async def segment(self, kind: str) -> list[int]:
        keys = [key for key in await self.yard.blob_keys("segments/") if key.endswith(kind)]
        assert len(keys) <= 1
        return [json.loads(text)["at"] for key in keys for text in (await self.yard.blobs.get(key)).splitlines()]


def row(number: int, *, completed: bool = True, size: int = 0) -> Outcome:
    return Outcome(b'{"at":%d,"x":"%s"}\n' % (number, b"x" * size), completed)


async def test_seal_merges_parts_and_memory_in_line_order(yard: Yard) -> None:
    bench = Bench(yard)
    ledger = await bench.claim(30)
    for step in range(3):
        for number in range(29 - step, -1, -3):
            ledger.end(number, row(number, completed=number % 5 != 0))
        if step < 2:
            await bench.parts.commit(ledger, give_up=asyncio.Event())
    assert len(ledger.parts) == 2
    await bench.sealer.seal(ledger, give_up=asyncio.Event())
    assert await bench.segment("output") == [number for number in range(30) if number % 5]
    assert await bench.segment("error") == list(range(0, 30, 5))
    assert await yard.blob_keys("parts/") == []
    assert bench.backlog.bytes == 0


async def test_taken_over_chunk_runs_only_what_is_missing(yard: Yard) -> None:
    bench = Bench(yard)
    ledger = await bench.claim(10)
    for number in (7, 1, 4):
        ledger.end(number, row(number))
    await bench.parts.commit(ledger, give_up=asyncio.Event())
    ledger.end(2, row(2))  # never committed
    async with yard.database.write() as tx:
        await chunks.release(tx, [(ledger.chunk_id, ledger.claim.token)])
    second = await bench.again()
    assert sorted(second.todo) == [0, 2, 3, 5, 6, 8, 9]
    for number in list(second.todo):
        second.end(number, row(number))
    await bench.sealer.seal(second, give_up=asyncio.Event())
    assert await bench.segment("output") == list(range(10))
    with pytest.raises(LeaseLost):
        await bench.parts.commit(ledger, give_up=asyncio.Event())
    assert await yard.blob_keys("parts/") == []


async def test_seal_of_a_lost_lease_leaves_nothing(yard: Yard) -> None:
    bench = Bench(yard)
    ledger = await bench.claim(2)
    ledger.close("cancelled")
    async with yard.database.write() as tx:
        await chunks.release(tx, [(ledger.chunk_id, ledger.claim.token)])
    with pytest.raises(LeaseLost):
        await bench.sealer.seal(ledger, give_up=asyncio.Event())
    assert await yard.blob_keys("segments/") == []


async def test_seal_refuses_a_line_in_two_parts(yard: Yard) -> None:
    bench = Bench(yard)
    ledger = await bench.claim(3)
    for number in range(3):
        ledger.end(number, row(number))
    rows, _ = ledger.take()
    ledger.pending = [rows[0], rows[1]]
    await bench.parts.commit(ledger, give_up=asyncio.Event())
    ledger.pending = [rows[1], rows[2]]
    with pytest.raises(PartDamaged):
        await bench.sealer.seal(ledger, give_up=asyncio.Event())
    assert await yard.blob_keys("segments/") == []


async def test_seal_refuses_a_missing_line(yard: Yard) -> None:
    bench = Bench(yard)
    ledger = await bench.claim(3)
    ledger.end(0, row(0))
    ledger.left = 0
    with pytest.raises(Internal, match="3 lines and 1 rows"):
        await bench.sealer.seal(ledger, give_up=asyncio.Event())


async def test_take_in_refuses_a_part_of_other_counts(yard: Yard) -> None:
    bench = Bench(yard)
    ledger = await bench.claim(3)
    ledger.end(0, row(0))
    await bench.parts.commit(ledger, give_up=asyncio.Event())
    part: Part = ledger.parts[0]
    assert await bench.parts.ended(part) == [0]
    with pytest.raises(PartDamaged):
        await bench.parts.ended(replace(part, tally=NO_TALLY + Tally(failed=1)))


async def test_seal_in_bounded_memory(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """48 MB of rows in 16 parts, merged line by line with 4 MiB."""
    monkeypatch.setattr(sealing, "MERGE_BYTES", 4 << 20)
    bench = Bench(yard)
    ledger = await bench.claim(480)
    for first in range(16):
        for number in range(first, 480, 16):
            ledger.end(number, row(number, size=100_000))
        if first < 15:
            await bench.parts.commit(ledger, give_up=asyncio.Event())
    tracemalloc.start()
    try:
        await bench.sealer.seal(ledger, give_up=asyncio.Event())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
    assert await bench.segment("output") == list(range(480))


async def test_part_whose_commit_is_still_under_way_is_not_committed_twice(shared_yard: Yard) -> None:
    """Its writer heard nothing and tries again while the first attempt is in its commit."""
    bench = Bench(shared_yard)
    ledger = await bench.claim(3)
    ledger.end(0, row(0))
    rows, tally = ledger.take()
    data = encode(rows)
    key = await bench.parts._write(ledger, data)
    part = Part(ledger.chunk_id, 1, key, len(data), tally)
    async with shared_yard.database.write() as tx:
        await chunks.commit_part(tx, ledger.chunk_id, ledger.claim.token, key=key, bytes=part.bytes, tally=tally)
        again = asyncio.create_task(bench.parts._record(ledger, part))
        await asyncio.sleep(0.3)
    await again
    second = await bench.again_after(ledger)
    assert second.claim.parts == (part,)
    assert (await shared_yard.batch(ledger.claim.batch_id)).tally.completed == 1


async def test_seal_that_meets_a_lost_part_keeps_what_is_in_memory(yard: Yard) -> None:
    bench = Bench(yard)
    ledger = await bench.claim(3)
    ledger.end(0, row(0))
    await bench.parts.commit(ledger, give_up=asyncio.Event())
    [lost] = await yard.blob_keys("parts/")
    whole = await yard.blobs.get(lost)
    await yard.blobs.delete(lost)
    ledger.end(1, row(1))
    ledger.end(2, row(2))
    with pytest.raises(BlobMissing):
        await bench.sealer.seal(ledger, give_up=asyncio.Event())
    assert bench.backlog.bytes == 0
    await yard.blobs.put(lost, whole)
    second = await bench.again_after(ledger)
    assert second.done, "all three lines are durable"


class HalfFull(FaultyBlobs):
    """No room for the rows that were answered; there is for the others."""

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[BlobWriter]:
        async with super().writer(key) as writer:
            yield writer
            if key.endswith(".output"):
                raise StorageFull("no room")


async def test_seal_on_a_full_disk_leaves_no_half_behind(yard: Yard) -> None:
    """Each try would otherwise take room from the next."""
    bench = Bench(yard)
    ledger = await bench.claim(2)
    ledger.end(0, row(0))
    ledger.end(1, row(1, completed=False))
    bench.sealer._blobs = HalfFull(yard.blobs._root)
    given_up = asyncio.Event()
    given_up.set()
    with pytest.raises(StorageFull):
        await bench.sealer.seal(ledger, give_up=given_up)
    assert await yard.blob_keys("segments/") == []


async def test_seal_whose_books_do_not_add_up_leaves_nothing(yard: Yard) -> None:
    bench = Bench(yard)
    ledger = await bench.claim(2)
    ledger.end(0, row(0))
    ledger.end(1, row(1))
    async with yard.database.write() as tx:
        await tx.conn.execute(update(chunk_rows).values(failed=1))
    with pytest.raises(Internal):
        await bench.sealer.seal(ledger, give_up=asyncio.Event())
    assert await yard.blob_keys("segments/") == []
