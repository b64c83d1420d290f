"""aiosqlite with one trip to its thread for a statement, instead of four, and none for a BEGIN.

The driver goes there to make a cursor, to execute, to fetch and to close, and each trip waits for the interpreter's
lock twice. Here a statement is executed and its rows are fetched in one go; SQLAlchemy would fetch all of them anyway.
A transaction begins in the trip of its first statement, which also raises what the BEGIN would have raised.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import aiosqlite


class Connection(aiosqlite.Connection):
    """As aiosqlite's, for SQLAlchemy's adapter alone: a cursor holds all its rows."""

    def __init__(self, *place: Any, **options: Any) -> None:
        super().__init__(partial(sqlite3.connect, *place, **options), iter_chunk_size=64)
        self._begin: str | None = None

    def cursor(self) -> Cursor:  # type: ignore[override]
        """A cursor that is in its thread only while it executes."""
        return Cursor(self)

    def begin(self, sql: str) -> None:
        """Begin a transaction, by `sql`, in the trip of the next statement; while that fails, of the one after it."""
        self._begin = sql

    async def commit(self) -> None:
        """Without a trip when there is nothing to commit."""
        self._begin = None
        if self._conn.in_transaction:
            await super().commit()

    async def rollback(self) -> None:
        """Without a trip when there is nothing to roll back, as when the pool takes a connection back."""
        self._begin = None
        if self._conn.in_transaction:
            await super().rollback()

    async def run(self, work: Callable[[sqlite3.Cursor], None]) -> None:
        """`work` in the connection's thread, with a cursor of its own."""

        def trip() -> None:
            cursor = self._conn.cursor()
            try:
                if self._begin is not None:
                    cursor.execute(self._begin)
                    self._begin = None
                work(cursor)
            finally:
                cursor.close()

        await self._execute(trip)  # type: ignore[no-untyped-call]


class Cursor:
    """What SQLAlchemy asks of an asynchronous cursor."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: list[Any] = []
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    async def __aenter__(self) -> Cursor:
        return self

    async def execute(self, sql: str, parameters: Any = ()) -> Cursor:
        """Raises what the driver raises; the rows are at hand on return."""
        await self._connection.run(lambda cursor: self._take(cursor.execute(sql, parameters)))
        return self

    async def executemany(self, sql: str, parameters: Iterable[Any]) -> Cursor:
        """As `execute`, once for each set of parameters; without rows."""
        await self._connection.run(lambda cursor: self._take(cursor.executemany(sql, parameters)))
        return self

    async def fetchall(self) -> list[Any]:
        """The rows that are left."""
        rows, self._rows = self._rows, []
        return rows

    async def close(self) -> None:
        """Nothing is open."""

    def _take(self, cursor: sqlite3.Cursor) -> None:
        self.description = cursor.description
        self._rows = cursor.fetchall() if cursor.description else []
        self.rowcount, self.lastrowid = cursor.rowcount, cursor.lastrowid
