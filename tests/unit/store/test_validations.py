from __future__ import annotations

import asyncio

import pytest

from app.domain.batch import Batch, BatchProblem, BatchStatus
from app.errors import LeaseLost
from app.store import batches, chunks, validations
from app.store.db import Database
from app.store.validations import ValidationClaim
from tests.unit.store.scenes import LAPSED, LONG, cut, look, make_batch


async def waiting(database: Database, count: int = 1) -> list[Batch]:
    async with database.write() as tx:
        return [await make_batch(tx) for _ in range(count)]


async def take(database: Database, *, lease_seconds: float = LONG) -> ValidationClaim | None:
    async with database.write() as tx:
        return await validations.claim(tx, lease_seconds=lease_seconds)


async def test_claim_takes_the_oldest_first_and_each_once(database: Database) -> None:
    made = await waiting(database, 3)
    taken = [await take(database) for _ in range(4)]
    assert [claim.batch.id if claim else None for claim in taken] == [*(batch.id for batch in made), None]
    assert len({claim.token for claim in taken if claim}) == 3


async def test_claim_in_parallel_gives_each_batch_to_one(database: Database) -> None:
    made = await waiting(database, 6)
    taken = await asyncio.gather(*(take(database) for _ in range(10)))
    claims = [claim.batch.id for claim in taken if claim is not None]
    assert len(claims) == len(set(claims))
    assert set(claims) <= {batch.id for batch in made}
    while (rest := await take(database)) is not None:  # on Postgres a claimer passes over what another is just taking
        claims.append(rest.batch.id)
    assert sorted(claims) == sorted(batch.id for batch in made)


async def test_claim_does_not_wait_for_another_that_is_under_way_on_postgres(postgres_url: str) -> None:
    database = Database(postgres_url)
    try:
        busy, free = await waiting(database, 2)
        async with database.write() as tx:
            first = await validations.claim(tx, lease_seconds=LONG)
            async with asyncio.timeout(5):
                second = await take(database)
                assert await take(database) is None
        assert first is not None
        assert second is not None
        assert (first.batch.id, second.batch.id) == (busy.id, free.id)
    finally:
        await database.close()


async def test_claim_that_lapsed_is_taken_over_and_fences_the_first(database: Database) -> None:
    (made,) = await waiting(database)
    first = await take(database, lease_seconds=LAPSED)
    second = await take(database)
    assert first is not None
    assert second is not None
    assert second.batch == made
    assert await take(database) is None
    async with database.write() as tx:
        with pytest.raises(LeaseLost):
            await validations.extend(tx, first, lease_seconds=LONG)
        with pytest.raises(LeaseLost):
            await validations.accept(tx, first, model=None, chunks=cut(1))
        with pytest.raises(LeaseLost):
            await validations.reject(tx, first, problems=[])
        await validations.release(tx, first)
        assert await validations.claim(tx, lease_seconds=LONG) is None  # the release of the first freed nothing
        await validations.extend(tx, second, lease_seconds=LONG)
        assert (await validations.accept(tx, second, model=None, chunks=cut(1))).status is BatchStatus.IN_PROGRESS


async def test_extend_revives_a_lease_that_nobody_took(database: Database) -> None:
    await waiting(database)
    claim = await take(database, lease_seconds=LAPSED)
    assert claim is not None
    async with database.write() as tx:
        await validations.extend(tx, claim, lease_seconds=LONG)
    assert await take(database) is None


async def test_release_frees_the_batch_at_once(database: Database) -> None:
    await waiting(database)
    first = await take(database)
    assert first is not None
    async with database.write() as tx:
        await validations.release(tx, first)
    second = await take(database)
    assert second is not None
    assert second.token != first.token


async def test_accept_starts_the_batch_and_lays_out_its_chunks(database: Database) -> None:
    (made,) = await waiting(database)
    claim = await take(database)
    assert claim is not None
    async with database.write() as tx:
        batch = await validations.accept(tx, claim, model="echo", chunks=cut(3, 2))
        with pytest.raises(LeaseLost):
            await validations.accept(tx, claim, model="echo", chunks=cut(3, 2))
        specs = [await chunks.claim(tx, lease_seconds=LONG) for _ in range(3)]
    assert await look(database, made.id) == batch
    assert (batch.status, batch.model, batch.total) == (BatchStatus.IN_PROGRESS, "echo", 5)
    assert batch.in_progress_at is not None
    assert batch.in_progress_at >= batch.created_at
    assert [chunk.spec if chunk else None for chunk in specs] == [*cut(3, 2), None]


async def test_accept_of_a_thousand_chunks(database: Database) -> None:
    await waiting(database)
    claim = await take(database)
    assert claim is not None
    async with database.write() as tx:
        batch = await validations.accept(tx, claim, model=None, chunks=cut(*[1_000] * 1_000))
    assert batch.total == 1_000_000


async def test_reject_fails_the_batch_with_its_problems(database: Database) -> None:
    (made,) = await waiting(database)
    claim = await take(database)
    assert claim is not None
    problems = (
        BatchProblem("invalid_json_line", "This line is not parseable as valid JSON.", line=3),
        BatchProblem("duplicate_custom_id", "The custom_id '\x00\ud800' is a duplicate.", param="custom_id", line=9),
    )
    async with database.write() as tx:
        batch = await validations.reject(tx, claim, problems=problems)
    assert await look(database, made.id) == batch
    assert (batch.status, batch.errors, batch.total) == (BatchStatus.FAILED, problems, 0)
    assert batch.failed_at is not None
    assert await take(database) is None
    async with database.write() as tx:
        assert await chunks.claim(tx, lease_seconds=LONG) is None
        assert (await batches.page(tx, project_id="team", after=None, limit=1)).items == [batch]
