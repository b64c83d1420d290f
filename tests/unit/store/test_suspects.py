from __future__ import annotations

import pytest

from app.domain.chunk import Tally
from app.domain.suspicion import SUSPECT, Doubt
from app.errors import LeaseLost
from app.store import chunks, suspects
from app.store.db import Database
from tests.unit.store.scenes import LAPSED, claimed, finish, running, seal


async def test_record_replaces_what_is_known(database: Database) -> None:
    await running(database, 9)
    claim = await claimed(database)
    for doubts in ({0: SUSPECT, 3: Doubt(2, 1)}, {3: Doubt(3, 2)}, {}):
        async with database.write() as tx:
            await suspects.record(tx, claim.chunk_id, claim.token, doubts)
    async with database.read() as tx:
        assert await suspects.of_chunk(tx, claim.chunk_id) == {0: SUSPECT, 3: Doubt(3, 2)}
        assert await suspects.of_chunk(tx, "chunk_other") == {}


async def test_record_of_many_lines(database: Database) -> None:
    await running(database, 3000)
    claim = await claimed(database)
    for _ in range(2):
        async with database.write() as tx:
            await suspects.record(tx, claim.chunk_id, claim.token, dict.fromkeys(range(1201), SUSPECT))
    async with database.read() as tx:
        assert len(await suspects.of_chunk(tx, claim.chunk_id)) == 1201


async def test_record_without_the_lease_is_refused(database: Database) -> None:
    await running(database, 9)
    stale = await claimed(database, lease_seconds=LAPSED)
    await claimed(database)
    with pytest.raises(LeaseLost):
        async with database.write() as tx:
            await suspects.record(tx, stale.chunk_id, stale.token, {0: SUSPECT})


async def test_doubts_stay_through_a_release_and_go_with_the_batch(database: Database) -> None:
    batch = await running(database, 2)
    claim = await claimed(database)
    async with database.write() as tx:
        await suspects.record(tx, claim.chunk_id, claim.token, {1: SUSPECT})
        await chunks.release(tx, [(claim.chunk_id, claim.token)])
    claim = await claimed(database)
    async with database.read() as tx:
        assert await suspects.of_chunk(tx, claim.chunk_id) == {1: SUSPECT}
    await seal(database, claim, Tally(completed=2))
    await finish(database, batch.id)
    async with database.read() as tx:
        assert await suspects.of_chunk(tx, claim.chunk_id) == {}
