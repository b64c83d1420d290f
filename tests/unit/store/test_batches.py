from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import update

from app.domain.batch import TERMINAL, Batch, BatchProblem, BatchStatus
from app.domain.chunk import Tally
from app.domain.id import new_batch_id
from app.errors import InvalidRequest, LeaseLost, StateConflict
from app.store import batches, validations
from app.store.db import Database
from app.store.tables import batches as batch_rows
from tests.unit.store.scenes import DAY, LONG, claimed, cut, finish, look, make_batch, make_file, running, seal


async def test_create_is_validating_with_everything_else_empty(database: Database) -> None:
    async with database.write() as tx:
        made = await batches.create(
            tx,
            id=new_batch_id(),
            project_id="team",
            endpoint="/v1/embeddings",
            input_file_id="file-never-seen",
            completion_window="24h",
            window_seconds=DAY,
            metadata={"z": "1", "a": "\x00\ud800 \U0001f680"},
            output_expires_after_seconds=3600,
        )
    assert made == Batch(
        id=made.id,
        project_id="team",
        endpoint="/v1/embeddings",
        input_file_id="file-never-seen",
        completion_window="24h",
        status=BatchStatus.VALIDATING,
        created_at=made.created_at,
        expires_at=made.created_at + DAY,
        metadata={"z": "1", "a": "\x00\ud800 \U0001f680"},
        output_expires_after_seconds=3600,
    )
    assert list(made.metadata or {}) == ["z", "a"]
    assert await look(database, made.id) == made


async def test_get_hides_a_batch_of_another_project(database: Database) -> None:
    batch = await running(database, 1)
    async with database.write() as tx:
        assert await batches.get(tx, batch.id, project_id="other") is None
        assert await batches.cancel(tx, batch.id, project_id="other") is None
        assert (await batches.page(tx, project_id="other", after=None, limit=9)).items == []
    assert (await look(database, batch.id)).status is BatchStatus.IN_PROGRESS


async def test_page_is_newest_first_and_loses_nothing_when_created_at_is_equal(database: Database) -> None:
    async with database.write() as tx:
        made = [(await make_batch(tx)).id for _ in range(7)]
        await tx.conn.execute(update(batch_rows).values(created_at=1_700_000_000))
        await tx.conn.execute(update(batch_rows).where(batch_rows.c.id == made[0]).values(created_at=1_700_000_001))
    expected = [made[0], *sorted(made[1:], reverse=True)]
    seen: list[str] = []
    async with database.read() as tx:
        more = True
        while more:
            page = await batches.page(tx, project_id="team", after=seen[-1] if seen else None, limit=2)
            seen += [batch.id for batch in page.items]
            more = page.has_more
        with pytest.raises(InvalidRequest) as caught:
            await batches.page(tx, project_id="other", after=made[3], limit=2)
    assert seen == expected
    assert caught.value.param == "after"


@pytest.mark.parametrize("status", list(BatchStatus))
async def test_cancel_in_every_status(database: Database, status: BatchStatus) -> None:
    async with database.write() as tx:
        made = await make_batch(tx)
        await tx.conn.execute(update(batch_rows).values(status=status.value, cancelling_at=7))
    before = await look(database, made.id)

    async def ask() -> Batch | None:
        async with database.write() as tx:
            return await batches.cancel(tx, made.id, project_id="team")

    if status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
        cancelled = await ask()
        assert cancelled is not None
        assert cancelled.cancelling_at is not None
        assert cancelled.cancelling_at >= made.created_at
        assert cancelled == replace(before, status=BatchStatus.CANCELLING, cancelling_at=cancelled.cancelling_at)
    elif status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
        assert await ask() == before
    else:
        assert status in TERMINAL | {BatchStatus.FINALIZING}
        with pytest.raises(StateConflict, match=f"^Cannot cancel a batch with status '{status}'\\.$"):
            await ask()
        assert await look(database, made.id) == before


async def test_cancel_of_an_unknown_batch_is_none(database: Database) -> None:
    async with database.write() as tx:
        assert await batches.cancel(tx, "batch_unknown", project_id="team") is None


async def test_cancel_while_validating_takes_the_batch_from_the_validator(database: Database) -> None:
    async with database.write() as tx:
        made = await make_batch(tx)
        claim = await validations.claim(tx, lease_seconds=LONG)
    assert claim is not None
    async with database.write() as tx:
        await batches.cancel(tx, made.id, project_id="team")
    async with database.write() as tx:
        with pytest.raises(LeaseLost):
            await validations.extend(tx, claim, lease_seconds=LONG)
        with pytest.raises(LeaseLost):
            await validations.accept(tx, claim, model=None, chunks=cut(1))
        with pytest.raises(LeaseLost):
            await validations.reject(tx, claim, problems=[BatchProblem("x", "y")])
        await validations.release(tx, claim)
        assert await validations.claim(tx, lease_seconds=LONG) is None
    ended = await finish(database, made.id)
    assert ended is not None
    assert (ended.status, ended.total, ended.in_progress_at) == (BatchStatus.CANCELLED, 0, None)


async def test_cancel_and_accept_at_once_end_in_one_story(database: Database) -> None:
    for _ in range(12):
        async with database.write() as tx:
            made = await make_batch(tx)
            claim = await validations.claim(tx, lease_seconds=LONG)
        assert claim is not None

        async def accept(claim: validations.ValidationClaim = claim) -> bool:
            try:
                async with database.write() as tx:
                    await validations.accept(tx, claim, model=None, chunks=cut(2))
            except LeaseLost:
                return False
            return True

        async def cancel(batch_id: str = made.id) -> Batch | None:
            async with database.write() as tx:
                return await batches.cancel(tx, batch_id, project_id="team")

        accepted, cancelled = await asyncio.gather(accept(), cancel())
        batch = await look(database, made.id)
        assert cancelled is not None
        assert cancelled.status is BatchStatus.CANCELLING
        assert batch.status is BatchStatus.CANCELLING
        assert (batch.total, batch.in_progress_at is not None) == ((2, True) if accepted else (0, False))
        if accepted:
            await seal(database, await claimed(database), Tally(unrun=2))
        assert await finish(database, made.id) is not None


async def test_cancel_and_begin_at_once_end_in_one_story(database: Database) -> None:
    for _ in range(12):
        batch = await running(database, 1)
        await seal(database, await claimed(database), Tally(completed=1))

        async def cancel(batch_id: str = batch.id) -> bool:
            try:
                async with database.write() as tx:
                    await batches.cancel(tx, batch_id, project_id="team")
            except StateConflict:
                return False
            return True

        ended, was_cancelled = await asyncio.gather(finish(database, batch.id), cancel())
        ended = ended or await finish(database, batch.id)
        assert ended is not None
        assert ended.status is (BatchStatus.CANCELLED if was_cancelled else BatchStatus.COMPLETED)
        assert (ended.cancelling_at is not None) is was_cancelled


async def test_create_of_a_known_input_works_beside_others(database: Database) -> None:
    async with database.write() as tx:
        file = await make_file(tx)

    async def create() -> Batch:
        async with database.write() as tx:
            return await make_batch(tx, input_file_id=file.id)

    made = await asyncio.gather(*(create() for _ in range(5)))
    assert len({batch.id for batch in made}) == 5
