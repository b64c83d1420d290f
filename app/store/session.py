"""A transaction on a connection that no cancellation breaks.

A task that is cancelled inside a driver's call leaves the connection in the middle of something: SQLAlchemy then throws
it away and closes it in the background, and until that has happened SQLite's one write lock is held by nobody who
could give it back. So every call to the driver is finished first, the transaction is rolled back, the connection given
back, and only then the cancel goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

T = TypeVar("T")

# A cancelled call to a server that does not answer is broken off after this time; the server ends the transaction then.
# SQLite's calls run in a thread and cannot be broken off; they end by themselves, at the latest when its lock wait is
# over.
BREAK_OFF_SECONDS = 1.0


class SteadyConnection(AsyncConnection):
    """Every call ends before a cancel of its caller goes on."""

    async def execute(self, *args: Any, **options: Any) -> Any:
        return await self.finished(super().execute(*args, **options))

    async def scalar(self, *args: Any, **options: Any) -> Any:
        return await self.finished(super().scalar(*args, **options))

    async def scalars(self, *args: Any, **options: Any) -> Any:
        return await self.finished(super().scalars(*args, **options))

    async def exec_driver_sql(self, *args: Any, **options: Any) -> Any:
        return await self.finished(super().exec_driver_sql(*args, **options))

    async def run_sync(self, *args: Any, **options: Any) -> Any:
        return await self.finished(super().run_sync(*args, **options))

    async def finished(self, call: Coroutine[Any, Any, T]) -> T:
        """What `call` returns or raises; a cancel waits for it, and a second one no less."""
        in_thread = self.engine.dialect.name == "sqlite"
        return await _finished(call, patience_seconds=None if in_thread else BREAK_OFF_SECONDS)


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncGenerator[AsyncConnection]:
    """A transaction that commits on a clean exit and rolls back on any other; then its connection is given back.

    A cancel that comes during the commit goes on after it: the caller cannot know whether it happened.
    """
    conn = SteadyConnection(engine)
    try:
        await conn.finished(_begun(conn))
        yield conn
        await conn.finished(_ended(conn, conn.commit()))
    finally:
        if conn.sync_connection is not None and not conn.sync_connection.closed:
            with suppress(SQLAlchemyError):  # a connection that was lost; the server rolls back
                await conn.finished(_ended(conn, conn.rollback()))


async def _begun(conn: AsyncConnection) -> None:
    started = await conn.start()
    _ = await started.begin()


async def _ended(conn: AsyncConnection, last: Coroutine[Any, Any, None]) -> None:
    try:
        await last
    finally:
        await conn.close()


async def _finished(call: Coroutine[Any, Any, T], *, patience_seconds: float | None) -> T:
    running = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if running.cancelled():
            raise
        loop = asyncio.get_running_loop()
        until = None if patience_seconds is None else loop.time() + patience_seconds
        while not running.done():
            if until is not None and loop.time() >= until:
                running.cancel()
                until = None
            left = None if until is None else until - loop.time()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running], timeout=left)
        if not running.cancelled():
            running.exception()  # seen; the cancel is what the caller must know
        raise
