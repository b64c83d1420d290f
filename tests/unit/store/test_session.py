"""Cancels at any moment inside a transaction: the connection comes back whole, and no lock is left behind."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import AsyncGenerator

import pytest
from sqlalchemy import text

from app.store.db import Database
from app.store.session import BREAK_OFF_SECONDS


@pytest.fixture
async def counted(database: Database) -> AsyncGenerator[Database]:
    """A database with a table of its own, to which a transaction adds two rows or none."""
    async with database.write() as tx:
        await tx.conn.execute(text("CREATE TABLE pairs (n INTEGER)"))
    yield database
    async with database.write() as tx:
        await tx.conn.execute(text("DROP TABLE pairs"))


async def add_pair(database: Database) -> None:
    async with database.write() as tx:
        await tx.conn.execute(text("INSERT INTO pairs VALUES (1)"))
        await tx.conn.run_sync(lambda conn: conn.execute(text("INSERT INTO pairs VALUES (2)")))


async def look(database: Database) -> int:
    async with database.read() as tx:
        return int((await tx.conn.execute(text("SELECT count(*) FROM pairs"))).scalar_one())


def others() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.parametrize("again", [False, True], ids=["cancelled once", "cancelled at every turn"])
@pytest.mark.parametrize("seed", range(3))
async def test_cancels_at_random_moments_leave_nothing_behind(counted: Database, again: bool, seed: int) -> None:
    chance = random.Random(seed)
    before = others()
    done = 0
    for _ in range(60):
        many = chance.randint(1, 6)
        tasks = [asyncio.create_task(chance.choice([add_pair, add_pair, look])(counted)) for _ in range(many)]
        for task in tasks:
            await asyncio.sleep(chance.uniform(0, 0.004))
            task.cancel()
        while again and not all(task.done() for task in tasks):
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait(tasks)
        assert all(task.cancelled() or task.exception() is None for task in tasks)
        assert counted.checked_out == 0
        assert others() == before, "a connection is still being thrown away in the background"
        async with asyncio.timeout(2):
            await add_pair(counted)
        done += 1
    found = await look(counted)
    assert found % 2 == 0
    assert found >= 2 * done


async def test_cancel_while_another_process_holds_the_lock_wedges_nobody(sqlite_url: str) -> None:
    """The statement that waits for the lock would get it after its task has gone, and keep it."""
    database = Database(sqlite_url, busy_timeout_seconds=5)
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite+aiosqlite:///"), isolation_level=None)

    async def write() -> None:
        async with database.write() as tx:
            await tx.conn.execute(text("UPDATE batches SET total = total"))

    try:
        other.execute("BEGIN IMMEDIATE")
        stuck = asyncio.create_task(write())
        await asyncio.sleep(0.1)
        stuck.cancel()
        await asyncio.sleep(0.1)
        other.execute("COMMIT")
        began = time.monotonic()
        await asyncio.wait([stuck])
        assert stuck.cancelled()
        other.execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")  # at once: nobody holds it
        other.execute("COMMIT")
        await write()
        assert time.monotonic() - began < 2
        assert database.checked_out == 0
    finally:
        other.close()
        await database.close()


async def test_cancel_of_a_call_that_a_server_does_not_end_breaks_it_off(postgres_url: str) -> None:
    database = Database(postgres_url, pool_size=2)

    async def sleep() -> None:
        async with database.write() as tx:
            await tx.conn.execute(text("LOCK TABLE files IN ACCESS EXCLUSIVE MODE"))
            await tx.conn.execute(text("SELECT pg_sleep(60)"))

    try:
        task = asyncio.create_task(sleep())
        await asyncio.sleep(0.3)
        began = time.monotonic()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert time.monotonic() - began < BREAK_OFF_SECONDS + 2
        async with asyncio.timeout(5), database.write() as tx:  # the server has ended the transaction, too
            await tx.conn.execute(text("LOCK TABLE files IN ACCESS EXCLUSIVE MODE"))
        assert database.checked_out == 0
    finally:
        await database.close()


async def test_timeout_inside_a_transaction_rolls_back(counted: Database) -> None:
    async def dawdle() -> None:
        async with counted.write() as tx:
            await tx.conn.execute(text("INSERT INTO pairs VALUES (1)"))
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(dawdle(), 0.05)
    assert await look(counted) == 0


async def test_cancel_while_waiting_for_a_connection_takes_none(database_url: str) -> None:
    database = Database(database_url, pool_size=2, busy_timeout_seconds=1)
    try:
        async with database.read(), database.read():
            waiting = asyncio.create_task(database.check())
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
        assert database.checked_out == 0
        await database.check()
    finally:
        await database.close()
