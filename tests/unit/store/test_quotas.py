from __future__ import annotations

import asyncio

import pytest

from app.domain.quota import Quotas, Use
from app.errors import QuotaExceeded, RateLimited
from app.service import quotas as service
from app.store import batches, quotas
from app.store.db import Database
from tests.unit.store.scenes import make_batch, make_file, running


async def test_use_counts_what_is_open_and_what_is_stored(database: Database) -> None:
    batch = await running(database, 3, 2)
    async with database.write() as tx:
        await make_batch(tx)
        await make_batch(tx, project_id="other")
        await make_file(tx, segments=[("a", 100)])
        await make_file(tx, segments=[("b", 30)], expires_after_seconds=0)
        await make_file(tx, project_id="other")
    async with database.read() as tx:
        assert await quotas.use(tx, "team") == Use(2, 5, 0, 100)
        assert await quotas.use(tx, "team", stored=False) == Use(2, 5, 0, 0)
        assert await quotas.use(tx, "nobody") == Use(0, 0, 0, 0)
    async with database.write() as tx:
        await batches.cancel(tx, batch.id, project_id="team")
    async with database.read() as tx:
        assert (await quotas.use(tx, "team")).open_batches == 2, "cancelling is not over"


async def test_admit_batch_lets_as_many_in_as_there_is_room_for_when_all_come_at_once(database: Database) -> None:
    async def attempt() -> bool:
        try:
            async with database.write() as tx:
                await service.admit_batch(tx, "team")
                await asyncio.sleep(0.01)  # between count and insert
                await make_batch(tx)
        except RateLimited:
            return False
        return True

    with service.enforced(Quotas(open_batches=3)):
        outcomes = await asyncio.gather(*(attempt() for _ in range(8)))
    assert sum(outcomes) == 3


async def test_admit_bytes_lets_as_many_in_as_there_is_room_for_when_all_come_at_once(database: Database) -> None:
    async def attempt() -> bool:
        try:
            async with database.write() as tx:
                await service.admit_bytes(tx, "team", 40)
                await asyncio.sleep(0.01)
                await make_file(tx, segments=[("k", 40)])
        except QuotaExceeded:
            return False
        return True

    with service.enforced(Quotas(stored_bytes=100)):
        outcomes = await asyncio.gather(*(attempt() for _ in range(8)))
    assert sum(outcomes) == 2


async def test_admit_asks_nobody_without_limits(database: Database) -> None:
    async with database.write() as tx:
        for _ in range(3):
            await service.admit_batch(tx, "team")
            await service.admit_bytes(tx, "team", 1 << 60)


async def test_enforced_ends_with_its_block() -> None:
    with service.enforced(Quotas(open_batches=1)):
        assert service.in_force().open_batches == 1
        with pytest.raises(ZeroDivisionError), service.enforced(Quotas()):
            raise ZeroDivisionError
        assert service.in_force().open_batches == 1
    assert service.in_force() == Quotas()
