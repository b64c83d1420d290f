from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select

from app.domain.batch import BatchStatus
from app.domain.chunk import SealedSegment, Tally
from app.errors import InvalidRequest, LeaseLost
from app.store import batches, chunks, files, retention
from app.store.db import Database
from app.store.retention import Depth
from app.store.tables import chunks as chunk_rows
from app.store.tables import files as file_rows
from tests.unit.store.scenes import DAY, LAPSED, LONG, claimed, finish, make_batch, make_file, running, seal


async def due(database: Database) -> list[str]:
    async with database.read() as tx:
        return sorted(await retention.expired_files(tx, limit=100))


async def purge(database: Database, file_id: str) -> list[str]:
    async with database.write() as tx:
        return await retention.purge_file(tx, file_id)


async def rows(database: Database) -> set[str]:
    async with database.read() as tx:
        return set((await tx.conn.execute(select(file_rows.c.id))).scalars())


async def test_purge_takes_deleted_and_expired_files_and_no_others(database: Database) -> None:
    async with database.write() as tx:
        kept = await make_file(tx)
        forever = await make_file(tx, expires_after_seconds=None)
        expired = await make_file(tx, expires_after_seconds=0, segments=[("a", 1), ("b", 2)])
        deleted = await make_file(tx, segments=[("c", 3)])
        await files.delete(tx, deleted.id, project_id="team")
    assert await due(database) == sorted([expired.id, deleted.id])
    async with database.read() as tx:
        assert len(await retention.expired_files(tx, limit=1)) == 1
    assert await purge(database, kept.id) == []
    assert await purge(database, forever.id) == []
    assert await purge(database, "file-unknown") == []
    assert sorted(await purge(database, expired.id)) == ["a", "b"]
    assert await purge(database, expired.id) == []
    assert await purge(database, deleted.id) == ["c"]
    assert await due(database) == []
    assert await rows(database) == {kept.id, forever.id}
    async with database.read() as tx:
        assert len(await files.segments(tx, kept.id)) == 1


async def test_purge_spares_the_input_of_a_running_batch_until_it_ends(database: Database) -> None:
    async with database.write() as tx:
        file = await make_file(tx, expires_after_seconds=0)
    batch = await running(database, 1, input_file_id=file.id)
    await seal(database, await claimed(database), Tally(1))
    assert await due(database) == []
    assert await purge(database, file.id) == []
    async with database.read() as tx:
        assert len(await files.segments(tx, file.id)) == 1
    assert await finish(database, batch.id) is not None
    assert await due(database) == [file.id]
    assert await purge(database, file.id) == ["blob"]
    assert await due(database) == []
    assert file.id in await rows(database)  # a tombstone, as long as a batch names it
    async with database.read() as tx:
        assert await files.get(tx, file.id, project_id="team") is None
        assert await files.segments(tx, file.id) == []


@pytest.mark.parametrize("status", ["validating", "cancelling"])
async def test_purge_spares_the_input_of_a_batch_that_waits(database: Database, status: str) -> None:
    async with database.write() as tx:
        file = await make_file(tx, expires_after_seconds=0)
        made = await make_batch(tx, input_file_id=file.id)
        if status == "cancelling":
            await batches.cancel(tx, made.id, project_id="team")
    assert await purge(database, file.id) == []


async def test_purge_and_create_of_a_batch_at_once_leave_the_input_or_no_trace(database: Database) -> None:
    for _ in range(10):
        async with database.write() as tx:
            file = await make_file(tx, expires_after_seconds=0)

        async def create(file_id: str = file.id) -> bool:
            async with database.write() as tx:
                known = bool(await files.segments(tx, file_id))
                await make_batch(tx, input_file_id=file_id)
                return known and bool(await files.segments(tx, file_id))

        readable, keys = await asyncio.gather(create(), purge(database, file.id))
        async with database.read() as looker:
            left = await files.segments(looker, file.id)
        assert bool(left) is not bool(keys)
        if readable:
            assert left


async def test_purge_takes_result_files_without_a_tombstone(database: Database) -> None:
    batch = await running(database, 1)
    await seal(database, await claimed(database), Tally(1))
    ended = await finish(database, batch.id)
    assert ended is not None
    assert ended.output_file_id is not None
    async with database.write() as tx:
        await files.delete(tx, ended.output_file_id, project_id="team")
    assert len(await purge(database, ended.output_file_id)) == 1
    assert await rows(database) == set()
    async with database.read() as tx:
        with pytest.raises(InvalidRequest):
            await files.page(tx, project_id="team", purpose=None, after=ended.output_file_id, limit=1, descending=True)


async def test_owned_finds_segments_parts_and_sealed_chunks(database: Database) -> None:
    async with database.write() as tx:
        file = await make_file(tx, segments=[("segment", 1)])
        await files.delete(tx, file.id, project_id="team")
    await running(database, 2, 2)
    sealed, open_ = await claimed(database), await claimed(database)
    async with database.write() as tx:
        output, error = SealedSegment("output", 1, 1), SealedSegment("error", 1, 1)
        await chunks.seal(tx, sealed.chunk_id, sealed.token, output=output, error=error, added=Tally(1, 1))
        await chunks.commit_part(tx, open_.chunk_id, open_.token, key="part", bytes=1, tally=Tally(1))
    named = {"segment", "part", "output", "error"}
    strangers = {f"stranger/{number}" for number in range(2_500)}
    async with database.read() as tx:
        assert await retention.owned(tx, named | strangers) == named
        assert await retention.owned(tx, []) == set()
    assert await purge(database, file.id) == ["segment"]
    async with database.read() as tx:
        assert await retention.owned(tx, named) == named - {"segment"}


async def test_unheld_spares_live_leases_and_ends_lapsed_ones(database: Database) -> None:
    await running(database, 1, 1, 1, 1)
    sealed, live = await claimed(database), await claimed(database)
    lapsed = await claimed(database, lease_seconds=LAPSED)
    await seal(database, sealed, Tally(1))
    async with database.read() as tx:
        pending = (await tx.conn.execute(select(chunk_rows.c.id).where(chunk_rows.c.position == 3))).scalar_one()
    asked = {sealed.chunk_id, live.chunk_id, lapsed.chunk_id, pending, "chunk_unknown"}
    async with database.write() as tx:
        assert await retention.unheld(tx, asked) == asked - {live.chunk_id}
        assert await retention.unheld(tx, []) == set()
    with pytest.raises(LeaseLost):
        async with database.write() as tx:
            await chunks.commit_part(tx, lapsed.chunk_id, lapsed.token, key="late", bytes=1, tally=Tally(1))
    async with database.write() as tx:
        await chunks.commit_part(tx, live.chunk_id, live.token, key="in time", bytes=1, tally=Tally(1))
    again = {(await claimed(database)).chunk_id for _ in range(2)}
    assert again == {lapsed.chunk_id, pending}


async def test_batches_in_and_depth_count_the_queue(database: Database) -> None:
    async with database.read() as tx:
        assert await retention.batches_in(tx) == dict.fromkeys(BatchStatus, 0)
        assert await retention.depth(tx) == Depth(0, 0, 0)
    batch = await running(database, 5, 5, 5)
    sealed, leased = await claimed(database), await claimed(database)
    await seal(database, sealed, Tally(5))
    async with database.write() as tx:
        await chunks.commit_part(tx, leased.chunk_id, leased.token, key="k", bytes=1, tally=Tally(1, 1))
        await make_batch(tx)
        await make_batch(tx, window_seconds=DAY)
    async with database.write() as tx:
        counts = await retention.batches_in(tx)
        assert await retention.depth(tx) == Depth(pending_chunks=1, leased_chunks=1, open_lines=8)
        assert await batches.cancel(tx, batch.id, project_id="team") is not None
        assert await chunks.claim(tx, lease_seconds=LONG) is not None
    assert counts == dict.fromkeys(BatchStatus, 0) | {BatchStatus.IN_PROGRESS: 1, BatchStatus.VALIDATING: 2}
