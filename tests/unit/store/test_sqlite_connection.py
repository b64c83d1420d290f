"""One trip a statement: rows, counts and errors are those of the driver."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from app.store.sqlite_connection import Connection


class Counting(Connection):
    """Counts the trips to its thread."""

    trips = 0

    async def _execute(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.trips += 1
        return await super()._execute(fn, *args, **options)  # type: ignore[no-untyped-call]


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[Counting]:
    opened = Counting(tmp_path / "a.db", isolation_level=None)
    async with opened:
        await opened.cursor().execute("CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT UNIQUE)")
        opened.trips = 0
        yield opened


async def test_rows_come_with_the_statement(connection: Counting) -> None:
    await connection.cursor().executemany("INSERT INTO t (word) VALUES (?)", [("a",), ("b",)])
    cursor = await connection.cursor().execute("SELECT id, word FROM t WHERE word > ? ORDER BY id", ("",))
    assert [column[0] for column in cursor.description] == ["id", "word"]
    assert await cursor.fetchall() == [(1, "a"), (2, "b")]
    assert await cursor.fetchall() == []
    await cursor.close()
    assert connection.trips == 2


async def test_counts_are_those_of_the_whole_statement(connection: Counting) -> None:
    cursor = connection.cursor()
    await cursor.executemany("INSERT INTO t (word) VALUES (?)", [("a",), ("b",), ("c",)])
    assert (cursor.rowcount, cursor.description) == (3, None)
    await cursor.execute("UPDATE t SET word = word || '!' WHERE id > 1 RETURNING id")
    assert (await cursor.fetchall(), cursor.rowcount) == ([(2,), (3,)], 2)
    await cursor.execute("INSERT INTO t (word) VALUES ('z')")
    assert (cursor.lastrowid, await cursor.fetchall()) == (4, [])


async def test_errors_are_the_drivers_and_the_connection_goes_on(connection: Counting) -> None:
    cursor = await connection.cursor().execute("INSERT INTO t (word) VALUES ('a')")
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        await cursor.execute("INSERT INTO t (word) VALUES ('a')")
    await cursor.execute("SELECT count(*) FROM t")
    assert await cursor.fetchall() == [(1,)]


async def test_rollback_undoes_and_costs_nothing_outside_a_transaction(connection: Counting) -> None:
    await connection.rollback()
    assert connection.trips == 0
    cursor = await connection.cursor().execute("BEGIN")
    await cursor.execute("INSERT INTO t (word) VALUES ('a')")
    await connection.rollback()
    await cursor.execute("SELECT count(*) FROM t")
    assert await cursor.fetchall() == [(0,)]


async def test_transaction_begins_in_the_trip_of_its_first_statement(connection: Counting, tmp_path: Path) -> None:
    connection.begin("BEGIN IMMEDIATE")
    assert connection.trips == 0
    await connection.cursor().execute("INSERT INTO t (word) VALUES ('a')")
    assert connection._conn.in_transaction
    other = sqlite3.connect(tmp_path / "a.db", timeout=0, isolation_level=None)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    await connection.commit()
    assert connection.trips == 2
    assert other.execute("SELECT word FROM t").fetchall() == [("a",)]
    other.close()


async def test_no_statement_runs_outside_a_transaction_that_could_not_begin(
    connection: Counting, tmp_path: Path
) -> None:
    other = sqlite3.connect(tmp_path / "a.db", timeout=0, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    cursor = await connection.cursor().execute("PRAGMA busy_timeout = 0")
    connection.begin("BEGIN IMMEDIATE")
    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await cursor.execute("SELECT 1")
    other.execute("ROLLBACK")
    other.close()
    await cursor.execute("INSERT INTO t (word) VALUES ('a')")
    assert connection._conn.in_transaction
    await connection.rollback()
    await cursor.execute("SELECT count(*) FROM t")
    assert (await cursor.fetchall(), connection._conn.in_transaction) == ([(0,)], False)


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_transaction_without_a_statement_costs_nothing(connection: Counting, end: str) -> None:
    connection.begin("BEGIN IMMEDIATE")
    await getattr(connection, end)()
    await connection.cursor().execute("INSERT INTO t (word) VALUES ('a')")
    assert (connection.trips, connection._conn.in_transaction) == (1, False)
