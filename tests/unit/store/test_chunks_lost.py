"""Taking back what was counted, when its bytes are lost."""

from __future__ import annotations

import pytest

from app.domain.batch import BatchStatus
from app.domain.chunk import NO_TALLY, Tally
from app.domain.suspicion import SUSPECT, Doubt
from app.errors import LeaseLost
from app.store import batches, chunks, finals, retention, suspects
from app.store.db import Database
from tests.unit.store.scenes import LAPSED, LONG, claimed, finish, look, make_file, running, seal, tokens


async def test_drop_parts_takes_their_lines_off_once(database: Database) -> None:
    batch = await running(database, 9)
    claim = await claimed(database)
    tallies = {"lost": Tally(2, 1, 0, tokens(3)), "kept": Tally(1, 0, 1, tokens(1))}
    async with database.write() as tx:
        for key, tally in tallies.items():
            await chunks.commit_part(tx, claim.chunk_id, claim.token, key=key, bytes=5, tally=tally)
    for _ in range(2):
        async with database.write() as tx:
            await chunks.drop_parts(tx, claim.chunk_id, claim.token, ["lost", "unknown"])
    counted = (await look(database, batch.id)).tally
    assert (counted.completed, counted.failed, counted.usage) == (1, 0, tokens(1))
    async with database.write() as tx:
        await chunks.release(tx, [(claim.chunk_id, claim.token)])
    again = await claimed(database)
    assert [part.key for part in again.parts] == ["kept"]
    assert await seal(database, again, Tally(7, 0, 0)) == ["kept"], "the books add up"


async def test_drop_parts_without_the_lease_is_refused(database: Database) -> None:
    await running(database, 9)
    stale = await claimed(database, lease_seconds=LAPSED)
    current = await claimed(database)
    async with database.write() as tx:
        await chunks.commit_part(tx, current.chunk_id, current.token, key="part", bytes=5, tally=Tally(1))
    with pytest.raises(LeaseLost):
        async with database.write() as tx:
            await chunks.drop_parts(tx, stale.chunk_id, stale.token, ["part"])


async def test_reopen_lets_a_sealed_chunk_be_claimed_again(database: Database) -> None:
    batch = await running(database, 3, 2)
    first, second = await claimed(database), await claimed(database)
    await seal(database, first, Tally(2, 1, 0, tokens(2)))
    await seal(database, second, Tally(2, 0, 0, tokens(1)))
    async with database.read() as tx:
        named = await finals.sealed_segments(tx, batch.id)
    output, error = f"{first.chunk_id}/output", f"{first.chunk_id}/error"
    assert named == [
        (first.chunk_id, output, 20),
        (first.chunk_id, error, 10),
        (second.chunk_id, f"{second.chunk_id}/output", 20),
    ]
    for key, opened in (("another", False), (error, True), (error, False), (output, False)):
        async with database.write() as tx:
            assert await chunks.reopen(tx, batch.id, first.chunk_id, lost_key=key) == opened
    assert (await look(database, batch.id)).tally == Tally(2, 0, 0, tokens(1))
    assert await finish(database, batch.id) is None
    again = await claimed(database)
    assert (again.chunk_id, again.parts) == (first.chunk_id, ())
    await seal(database, again, Tally(3, 0, 0, tokens(4)))
    ended = await finish(database, batch.id)
    assert ended is not None
    assert ended.tally.completed == 5


async def test_reopen_leaves_a_batch_that_is_ending_alone(database: Database) -> None:
    batch = await running(database, 3)
    claim = await claimed(database)
    await seal(database, claim, Tally(3, 0, 0))
    async with database.write() as tx:
        await finals.begin(tx, batch.id)
        assert await finals.sealed_segments(tx, batch.id) == []
        assert not await chunks.reopen(tx, batch.id, claim.chunk_id, lost_key=f"{claim.chunk_id}/output")
    assert (await look(database, batch.id)).status is BatchStatus.FINALIZING


async def test_reopened_chunk_of_a_cancelled_batch_is_written_off(database: Database) -> None:
    batch = await running(database, 3)
    claim = await claimed(database)
    await seal(database, claim, Tally(1, 0, 2))
    async with database.write() as tx:
        await batches.cancel(tx, batch.id, project_id="team")
    async with database.write() as tx:
        assert await chunks.reopen(tx, batch.id, claim.chunk_id, lost_key=f"{claim.chunk_id}/output")
    assert (await look(database, batch.id)).tally == NO_TALLY
    assert (await claimed(database, lease_seconds=LONG)).cancelling


async def test_guilty_lines_are_counted_by_batch(database: Database) -> None:
    first, second = await running(database, 4, 4), await running(database, 4)
    claims = [await claimed(database) for _ in range(3)]
    async with database.write() as tx:
        for claim in claims:
            await suspects.record(tx, claim.chunk_id, claim.token, {0: Doubt(3, 2), 1: SUSPECT, 2: Doubt(3, 1)})
    async with database.read() as tx:
        assert (await suspects.guilty(tx, first.id), await suspects.guilty(tx, second.id)) == (2, 1)


async def test_some_named_has_every_kind(database: Database) -> None:
    async with database.write() as tx:
        for number in range(9):
            await make_file(tx, segments=[(f"upload-{number}", 7)])
    await running(database, 3, 3)
    first, second = await claimed(database), await claimed(database)
    await seal(database, first, Tally(3, 0, 0))
    async with database.write() as tx:
        await chunks.commit_part(tx, second.chunk_id, second.token, key="part", bytes=5, tally=Tally(1))
    async with database.read() as tx:
        found = dict(await retention.some_named(tx, limit=9))
    assert found["part"] == 5
    assert found[f"{first.chunk_id}/output"] == 30
    assert len([name for name in found if name.startswith("upload-")]) == 3
