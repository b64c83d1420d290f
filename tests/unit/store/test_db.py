from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from app.errors import InvalidRequest, SettingsInvalid, StorageFull, Unavailable
from app.store import files
from app.store.clock import moment, seconds
from app.store.db import Database, Write, parse, translated
from app.store.tables import batches as batch_rows
from app.store.tables import files as file_rows
from tests.unit.store.scenes import make_batch, make_file


async def test_write_commits_on_clean_exit(database: Database) -> None:
    async with database.write() as tx:
        file = await make_file(tx)
    async with database.read() as tx:
        assert await files.get(tx, file.id, project_id="team") == file


async def test_write_rolls_back_on_any_exception(database: Database) -> None:
    async def fail() -> None:
        async with database.write() as tx:
            await make_file(tx)
            raise RuntimeError("after the insert")

    with pytest.raises(RuntimeError, match="after the insert"):
        await fail()
    async with database.read() as tx:
        assert (await tx.conn.execute(select(file_rows.c.id))).all() == []


async def test_write_rolls_back_on_cancellation_and_leaves_the_turn_free(database: Database) -> None:
    inside = asyncio.Event()

    async def stuck() -> None:
        async with database.write() as tx:
            await make_file(tx)
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(stuck())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with database.write() as tx:
        assert (await tx.conn.execute(select(file_rows.c.id))).all() == []


async def test_read_sees_one_state_while_others_write_on_sqlite(sqlite_database: Database) -> None:
    async with sqlite_database.read() as before:
        assert await files.stored_bytes(before, project_id="team") == 0
        async with sqlite_database.write() as tx:
            await make_file(tx)
        assert await files.stored_bytes(before, project_id="team") == 0
    async with sqlite_database.read() as after:
        assert await files.stored_bytes(after, project_id="team") == 100


async def test_read_refuses_to_write_on_postgres(postgres_url: str) -> None:
    database = Database(postgres_url)
    try:
        with pytest.raises(DBAPIError, match="read-only"):
            async with database.read() as tx:
                await make_file(Write(tx.conn))
        async with database.write() as tx:  # the same connection is not left read-only
            await make_file(tx)
    finally:
        await database.close()


async def test_now_is_the_databases_time_with_its_fraction(database: Database) -> None:
    before = time.time()
    async with database.read() as tx:
        first = await tx.now()
        await asyncio.sleep(0.05)
        second = await tx.now()
        whole, fine = (await tx.conn.execute(select(seconds(), moment()))).one()
    assert before - 0.01 <= first <= second <= time.time() + 0.01
    assert second - first >= 0.045
    assert isinstance(whole, int)
    assert whole == int(fine)


async def test_seconds_round_down_also_late_in_a_second(database: Database) -> None:
    pairs = []
    async with database.read() as tx:
        for _ in range(12):
            pairs.append((await tx.conn.execute(select(seconds(), moment()))).one())
            await asyncio.sleep(0.09)
    assert any(fine % 1 > 0.5 for _, fine in pairs)
    assert [whole for whole, _ in pairs] == [int(fine) for _, fine in pairs]


async def test_writers_in_parallel_all_commit(database: Database) -> None:
    async with database.write() as tx:
        batch = await make_batch(tx)

    async def add() -> None:
        async with database.write() as tx:
            more = update(batch_rows).where(batch_rows.c.id == batch.id).values(total=batch_rows.c.total + 1)
            await tx.conn.execute(more)

    await asyncio.gather(*(add() for _ in range(40)))
    async with database.read() as looker:
        assert (await looker.conn.execute(select(batch_rows.c.total))).scalar_one() == 40


async def test_write_while_another_process_holds_the_file_is_unavailable(sqlite_url: str) -> None:
    database = Database(sqlite_url, busy_timeout_seconds=0.1)
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite+aiosqlite:///"), isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable):
            async with database.write() as writer:
                await make_file(writer)
        async with database.read() as tx:
            assert await files.stored_bytes(tx, project_id="team") == 0
        other.execute("COMMIT")
        async with database.write() as writer:
            await make_file(writer)
    finally:
        other.close()
        await database.close()


async def test_lock_held_on_postgres_is_unavailable(postgres_url: str) -> None:
    holder, waiter = Database(postgres_url), Database(postgres_url, busy_timeout_seconds=0.2)
    try:
        async with holder.write() as tx:
            await tx.conn.execute(text("LOCK TABLE files IN ACCESS EXCLUSIVE MODE"))
            with pytest.raises(Unavailable):
                async with waiter.write() as other:
                    await make_file(other)
    finally:
        await holder.close()
        await waiter.close()


async def test_connection_lost_in_a_transaction_is_unavailable_and_heals(postgres_url: str) -> None:
    database = Database(postgres_url)
    killer = Database(postgres_url)

    async def lose() -> None:
        async with database.write() as tx:
            pid = (await tx.conn.execute(text("SELECT pg_backend_pid()"))).scalar_one()
            async with killer.write() as other:
                await other.conn.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            await asyncio.sleep(0.1)
            await make_file(tx)

    try:
        with pytest.raises(Unavailable):
            await lose()
        async with database.write() as tx:
            await make_file(tx)
    finally:
        await database.close()
        await killer.close()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("postgres://u@db.lan/yard", "postgresql+asyncpg://u@db.lan/yard"),
        ("postgresql://u@db.lan:5433/yard", "postgresql+asyncpg://u@db.lan:5433/yard"),
        ("postgresql://u@db/yard?sslmode=require", "postgresql+asyncpg://u@db/yard?ssl=require"),
        ("postgresql+psycopg://u@db/yard?sslmode=require", "postgresql+psycopg://u@db/yard?sslmode=require"),
        ("sqlite:////srv/yard.db", "sqlite+aiosqlite:////srv/yard.db"),
    ],
)
def test_parse_the_forms_that_people_have(given: str, meant: str) -> None:
    assert str(parse(given)) == meant


async def test_database_by_its_short_form(postgres_url: str) -> None:
    database = Database(postgres_url.replace("postgresql+asyncpg", "postgres"))
    try:
        await database.check()
    finally:
        await database.close()


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("sqlite+aiosqlite:////nowhere/at/all/batchyard.db", id="no folder"),
        pytest.param("postgresql+asyncpg://u:p@127.0.0.1:1/none", id="nobody listens"),
        pytest.param("postgresql+asyncpg://postgres@/none?host=/nowhere", id="no socket"),
    ],
)
async def test_database_that_is_away_is_unavailable(url: str) -> None:
    database = Database(url)
    try:
        with pytest.raises(Unavailable):
            await database.check()
        with pytest.raises(Unavailable):
            await database.migrate()
    finally:
        await database.close()


async def test_database_that_does_not_exist_is_unavailable(postgres_url: str) -> None:
    database = Database(postgres_url.replace("@/", "@/gone_"))
    try:
        with pytest.raises(Unavailable):
            await database.check()
    finally:
        await database.close()


async def test_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("just some text, longer than the header of a database file " * 4)
    database = Database(f"sqlite+aiosqlite:///{path}")
    try:
        with pytest.raises(Unavailable):
            await database.check()
    finally:
        await database.close()


async def test_disk_full_is_storage_full(sqlite_url: str) -> None:
    database = Database(sqlite_url, pool_size=1)

    async def fill() -> None:
        async with database.write() as tx:
            for _ in range(200):
                await make_file(tx, segments=[(f"key/{number}", 1) for number in range(50)])

    try:
        async with database.read() as tx:
            pages = (await tx.conn.execute(text("PRAGMA page_count"))).scalar_one()
            await tx.conn.execute(text(f"PRAGMA max_page_count = {pages}"))
        with pytest.raises(StorageFull):
            await fill()
    finally:
        await database.close()


async def test_no_free_connection_is_unavailable(sqlite_url: str) -> None:
    database = Database(sqlite_url, pool_size=1, busy_timeout_seconds=0.1)
    try:
        async with database.read():
            with pytest.raises(Unavailable, match="no free connection"):
                async with database.read():
                    pass
    finally:
        await database.close()


async def test_text_that_postgres_cannot_hold_is_an_invalid_request(postgres_url: str) -> None:
    database = Database(postgres_url)
    try:
        with pytest.raises(InvalidRequest):
            async with database.write() as tx:
                await make_file(tx, project_id="a\x00b")
    finally:
        await database.close()


async def test_fault_of_our_own_statement_stays_what_it_is(database: Database) -> None:
    with pytest.raises(DBAPIError, match="nowhere"):
        async with database.read() as tx:
            await tx.conn.execute(text("SELECT * FROM nowhere"))
    async with database.write() as tx:
        file = await make_file(tx)
    with pytest.raises(IntegrityError):
        async with database.write() as tx:
            await files.insert_file(tx, file)


@pytest.mark.parametrize("kind", [OSError, TimeoutError, FileNotFoundError])
async def test_error_of_the_callers_own_work_passes_untouched(sqlite_database: Database, kind: type[OSError]) -> None:
    with pytest.raises(kind):
        async with sqlite_database.write():
            raise kind("about something else")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("08006", Unavailable),
        ("28P01", Unavailable),
        ("25P03", Unavailable),
        ("3D000", Unavailable),
        ("40001", Unavailable),
        ("40P01", Unavailable),
        ("53100", StorageFull),
        ("53300", Unavailable),
        ("55P03", Unavailable),
        ("57P01", Unavailable),
        ("23505", None),
        ("42P01", None),
    ],
)
def test_translated_sorts_sqlstates(state: str, expected: type[Unavailable] | None) -> None:
    class Failure(Exception):
        sqlstate = state

    ours = translated(OperationalError("SELECT 1", None, Failure()))
    assert type(ours) is (expected or type(None))


@pytest.mark.parametrize(
    "url", ["mysql://h/d", "postgresql+psycopg2://h/d", "sqlite+pysqlite:///x.db", "no url at all", ""]
)
def test_database_refuses_a_url_it_does_not_speak(url: str) -> None:
    with pytest.raises(SettingsInvalid):
        Database(url)


async def test_file_survives_in_wal_with_full_sync_and_foreign_keys(sqlite_database: Database) -> None:
    async with sqlite_database.write() as tx:
        answers = [
            (await tx.conn.execute(text(f"PRAGMA {name}"))).scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        ]
    assert answers == ["wal", 2, 1, 15_000]
