"""The database: sessions that read, sessions that write, and the one place where a driver's error becomes ours."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import aiosqlite
from asyncpg import InterfaceError, PostgresError
from sqlalchemy import URL, Connection, NullPool, QueuePool, event, make_url, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from app.errors import BatchyardError, InvalidRequest, SettingsInvalid, StorageFull, Unavailable
from app.store import schema, sqlite_connection
from app.store.clock import moment
from app.store.session import transaction

_SILENT = "The database does not answer."
_FULL = "The database has no room left."

# SQLite's primary result codes: PERM, BUSY, LOCKED, READONLY, IOERR, CORRUPT, CANTOPEN, PROTOCOL, NOTADB; FULL.
_SQLITE_AWAY = frozenset({3, 5, 6, 8, 10, 11, 14, 15, 26})
_SQLITE_FULL = 13
# SQLSTATE classes: connection, idle in a transaction, login, no such database, rollback (serialization, deadlock),
# resources, lock, operator.
_POSTGRES_AWAY = ("08", "25P03", "28", "3D", "40", "53", "55P03", "57")
# No transaction of ours waits this long between two statements, unless its process froze.
_IDLE_SECONDS = 10.0
_POSTGRES_FULL = "53100"

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgres": "postgresql+asyncpg", "postgresql": "postgresql+asyncpg"}


@dataclass(frozen=True, slots=True)
class Read:
    """A transaction that only looks."""

    conn: AsyncConnection

    async def now(self) -> float:
        """The database's time in Unix seconds, with its fraction."""
        value: float = (await self.conn.execute(select(moment()))).scalar_one()
        return value


@dataclass(frozen=True, slots=True)
class Write(Read):
    """A transaction that may change rows."""


class Database:
    """A database by URL: `sqlite:///PATH` or `postgresql://…`. Connects on first use."""

    def __init__(self, url: str, *, pool_size: int = 8, busy_timeout_seconds: float = 15) -> None:
        """Raises SettingsInvalid for a URL that is neither."""
        self._url = parse(url)
        engine = connector(self._url, busy_timeout_seconds=busy_timeout_seconds, pool_size=pool_size)
        self._engine = engine
        # SQLite has one writer at a time. Waiting in its own busy loop polls; a queue in front of it does not.
        self._turn: AbstractAsyncContextManager[Any] | None = None
        if engine.dialect.name == "sqlite":
            self._turn = asyncio.Lock()
            self._reader = engine.execution_options(begin="BEGIN")
        else:
            self._reader = engine.execution_options(postgresql_readonly=True)

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[Read]:
        """A transaction that only looks. Raises Unavailable. Safe against cancels, like `write`."""
        async with _session(self._reader) as conn:
            yield Read(conn)

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[Write]:
        """A transaction that commits on a clean exit and rolls back on any other. Raises Unavailable, StorageFull.

        On SQLite it takes the file's lock with its first statement.
        A cancel waits until the call to the database that it met has ended and the connection is given back.
        """
        async with self._turn or nullcontext(), _session(self._engine) as conn:
            yield Write(conn)

    async def check(self) -> None:
        """Raises Unavailable unless the database answers and its schema is the one of this release."""
        revision, head = await self.revision(), self.head()
        if revision != head:
            has = "has no schema" if revision is None else f"has schema {revision}"
            raise Unavailable(f"The database {has}, this release needs {head}: run `batchyard migrate`.")

    async def revision(self) -> str | None:
        """The schema's revision, None for a database without a schema. Raises Unavailable."""
        async with self.read() as tx:
            return await tx.conn.run_sync(schema.current)

    @property
    def checked_out(self) -> int:
        """Connections in use now."""
        pool = self._engine.pool
        assert isinstance(pool, QueuePool)
        return pool.checkedout()

    @property
    def commits_late(self) -> bool:
        """A commit that failed may happen yet: a server was asked, and its answer got lost."""
        return self._turn is None

    @staticmethod
    def head() -> str:
        """The revision that this release needs."""
        return schema.head()

    async def migrate(self) -> None:
        """Bring the schema to `head`; harmless when it is there, or when several do it at once. Raises Unavailable."""
        await self.revision()  # a database that is away says so before a thread and its engine start
        with _drivers_errors_become_ours():
            await asyncio.to_thread(schema.upgrade, self._url)

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


def parse(url: str) -> URL:
    """The address of a database, with its driver. Raises SettingsInvalid unless this room speaks with it.

    The short forms that hosts of Postgres hand out are taken too: `postgres://…`, and `sslmode` among the options.
    """
    try:
        parsed = make_url(url)
    except SQLAlchemyError as exc:
        raise SettingsInvalid("The database URL cannot be read.") from exc
    parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
    if parsed.drivername not in (*_DRIVERS.values(), "postgresql+psycopg"):
        raise SettingsInvalid(
            f"The database URL names '{parsed.drivername}': use sqlite:///PATH or postgresql://USER@HOST/NAME."
        )
    if parsed.get_driver_name() == "asyncpg" and "sslmode" in parsed.query:
        mode = parsed.query["sslmode"]
        return parsed.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return parsed


def connector(
    url: URL, *, busy_timeout_seconds: float = 15, pool_size: int = 0, foreign_keys: bool = True
) -> AsyncEngine:
    """An engine for `url` that waits at most `busy_timeout_seconds` for a lock. `pool_size` 0 keeps no connection."""
    # An error's text must not carry names and metadata of users into a log.
    options: dict[str, Any] = {"hide_parameters": True, "poolclass": NullPool}
    if pool_size:
        options |= {"poolclass": None, "pool_size": pool_size, "max_overflow": 0, "pool_timeout": busy_timeout_seconds}
    if url.get_backend_name() == "sqlite":
        engine = create_async_engine(url, connect_args={"async_creator_fn": _open_sqlite}, **options)
        _prepare_sqlite(engine, busy_timeout_seconds=busy_timeout_seconds, foreign_keys=foreign_keys)
        return engine
    if url.get_driver_name() == "asyncpg":
        patience = f"{round(busy_timeout_seconds * 1000)}ms"
        options["connect_args"] = {
            "timeout": busy_timeout_seconds,
            "server_settings": {
                "application_name": "batchyard",
                "lock_timeout": patience,
                # A process that froze, or a machine that vanished, must not keep its locks.
                "idle_in_transaction_session_timeout": f"{round(max(_IDLE_SECONDS, busy_timeout_seconds) * 1000)}ms",
            },
        }
    if pool_size:
        options["pool_pre_ping"] = True
    # A guarded UPDATE that waited for a row looks at the row as it is then; above READ COMMITTED it would fail instead.
    return create_async_engine(url, isolation_level="READ COMMITTED", **options)


async def _open_sqlite(*place: Any, **options: Any) -> aiosqlite.Connection:
    connection = sqlite_connection.Connection(*place, **options)
    thread = connection._thread
    thread.daemon = True  # a connection that is not closed must not keep the process alive
    try:
        return await connection
    except sqlite3.Error:
        # The driver stops its thread without waiting; it would report to a loop that may be closed by then.
        await asyncio.to_thread(thread.join)
        raise


def _prepare_sqlite(engine: AsyncEngine, *, busy_timeout_seconds: float, foreign_keys: bool) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def settle(connection: Any, record: object) -> None:
        connection.isolation_level = None  # else the driver sends a BEGIN of its own, and late
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {round(busy_timeout_seconds * 1000)}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        # A deferred transaction that turns to writing fails at once if another wrote meanwhile, whatever busy_timeout.
        driver: Any = connection.connection.driver_connection
        driver.begin(connection.get_execution_options().get("begin", "BEGIN IMMEDIATE"))


@contextmanager
def _drivers_errors_become_ours() -> Generator[None]:
    try:
        yield
    except (SQLAlchemyError, PostgresError, InterfaceError) as exc:
        ours = translated(exc)
        if ours is None:
            raise
        raise ours from exc


@asynccontextmanager
async def _session(engine: AsyncEngine) -> AsyncGenerator[AsyncConnection]:
    connected = False
    with _drivers_errors_become_ours():
        try:
            async with transaction(engine) as conn:
                connected = True
                yield conn
        except OSError as exc:
            # asyncpg lets these through; past the connect, others than ConnectionError are the caller's own.
            if connected and not isinstance(exc, ConnectionError):
                raise
            raise Unavailable(_SILENT) from exc


def translated(exc: Exception) -> BatchyardError | None:
    """What a driver's error means to the caller; None for a fault of our own statement."""
    if isinstance(exc, PoolTimeout):
        return Unavailable("The database has no free connection.")
    cause: BaseException | None = exc
    if isinstance(exc, DBAPIError):
        if exc.connection_invalidated:
            return Unavailable(_SILENT)
        cause = exc.orig
    sqlite = getattr(cause, "sqlite_errorcode", None)
    if sqlite is not None:
        code = sqlite & 0xFF
        return StorageFull(_FULL) if code == _SQLITE_FULL else Unavailable(_SILENT) if code in _SQLITE_AWAY else None
    state = getattr(cause, "sqlstate", None)
    if state is not None and state.startswith(_POSTGRES_AWAY):
        return StorageFull(_FULL) if state == _POSTGRES_FULL else Unavailable(_SILENT)
    if state is not None and state.startswith("22"):  # a value out of range, or a text with a NUL
        return InvalidRequest("A value cannot be stored.")
    return Unavailable(_SILENT) if isinstance(exc, InterfaceError) else None
