"""Claims in a full database: they must reach the free chunk through the partial indexes, whatever else is stored."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, event, text

from app.domain.batch import Batch
from app.store import chunks, finals
from app.store.db import Database
from tests.unit.store.scenes import LONG, running

_FINISHED = 1_000
_CHUNKS = 1_000

# One row a batch and chunk, made from the running one in the database itself: through the API it would take minutes.
_COPY_BATCHES = """
INSERT INTO batches (id, project_id, endpoint, input_file_id, input_found, completion_window, status, created_at,
    expires_at, total, completed, failed, input_tokens, cached_tokens, output_tokens, reasoning_tokens, total_tokens)
SELECT 'batch_old_' || n, 'team', endpoint, 'file-' || n, input_found, completion_window, 'completed',
    created_at - n, expires_at - n, 1000, 1000, 0, 0, 0, 0, 0, 0
FROM batches, numbers WHERE id = :id
"""
_NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count) "


async def fill(database: Database) -> Batch:
    """A thousand finished batches, and one of a million lines of which all but the last ten chunks are sealed."""
    batch = await running(database, *[1_000] * _CHUNKS)
    async with database.write() as tx:
        values: dict[str, Any] = {"id": batch.id, "count": _FINISHED}
        insert, _, rest = _COPY_BATCHES.strip().partition("\nSELECT")
        if tx.conn.dialect.name == "postgresql":
            rest = rest.replace(":id", "CAST(:id AS text)")
        await tx.conn.execute(text(f"{insert}\n{_NUMBERS} SELECT{rest}"), values)
        await tx.conn.execute(
            text("UPDATE chunks SET state = 'sealed', completed = 1000 WHERE batch_id = :id AND position < :open"),
            {"id": batch.id, "open": _CHUNKS - 10},
        )
    return batch


async def plans(database: Database, statements: list[tuple[str, Any]]) -> str:
    """What the database says it would do for these statements."""
    lines = []
    async with database.write() as tx:
        sqlite = tx.conn.dialect.name == "sqlite"
        if not sqlite:
            await tx.conn.execute(text("SET LOCAL enable_seqscan = off"))  # a small table is read whole, and rightly so
        for statement, parameters in statements:
            prefix = "EXPLAIN QUERY PLAN" if sqlite else "EXPLAIN"
            rows = await tx.conn.exec_driver_sql(f"{prefix} {statement}", parameters)
            lines += [str(row) for row in rows]
    return "\n".join(lines)


async def test_claim_reaches_the_free_chunk_through_the_partial_indexes(database: Database) -> None:
    await fill(database)
    seen: list[tuple[str, Any]] = []

    def watch(conn: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        seen.append((statement, parameters))

    async with database.write() as tx:
        engine = tx.conn.sync_engine
        event.listen(engine, "before_cursor_execute", watch)
        claim = await chunks.claim(tx, lease_seconds=LONG)
        await finals.ready(tx)
        event.remove(engine, "before_cursor_execute", watch)
    assert claim is not None
    assert claim.spec.position == _CHUNKS - 10
    explained = await plans(database, [pair for pair in seen if pair[0].startswith(("SELECT", "UPDATE"))])
    # Either index of `batches` leaves the finished ones unread; the planner takes the smaller.
    assert "ix_batches_queue" in explained or "ix_batches_open" in explained, explained
    for index in ("ix_chunks_open", "ix_chunks_leased"):
        assert index in explained, explained
    assert "SCAN chunks\n" not in explained
    for whole in ("uq_chunks_batch_id_position", "sqlite_autoindex_chunks_2"):  # the constraint's: sealed rows too
        assert whole not in explained, explained


async def work_of_a_claim(database: Database) -> int:
    """What a claim makes the database do: instructions of SQLite's machine, or rows that Postgres reads."""
    async with database.write() as tx:
        if tx.conn.dialect.name == "sqlite":
            driver: Any = (await tx.conn.get_raw_connection()).driver_connection
            steps = 0

            def step() -> None:
                nonlocal steps
                steps += 1

            await driver.set_progress_handler(step, 1)
            claim = await chunks.claim(tx, lease_seconds=LONG)
            await driver.set_progress_handler(None, 0)
        else:
            read = text("SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables")
            await tx.conn.execute(text("SET LOCAL enable_seqscan = off"))
            before = (await tx.conn.execute(read)).scalar_one()
            claim = await chunks.claim(tx, lease_seconds=LONG)
            steps = int((await tx.conn.execute(read)).scalar_one() - before)
    assert claim is not None
    return steps


async def test_claim_is_as_little_work_as_in_a_small_database(database: Database) -> None:
    await running(database, *[1_000] * 5)
    small = [await work_of_a_claim(database) for _ in range(5)]
    await fill(database)
    full = [await work_of_a_claim(database) for _ in range(5)]
    # The leases that stand are walked over, ten at most; a walk over all chunks or batches is a hundred times that.
    assert max(full) < 3 * max(small), (small, full)
