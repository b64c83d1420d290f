"""Claims in a full database: they must reach the free chunk through the partial indexes, whatever else is stored."""

from __future__ import annotations

from typing import Any

import pytest
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


@pytest.fixture
async def full(database: Database) -> tuple[Database, Batch]:
    """A thousand finished batches, and one of a million lines of which all but the last ten chunks are sealed."""
    batch = await running(database, *[1_000] * _CHUNKS)
    async with database.write() as tx:
        values: dict[str, Any] = {"id": batch.id, "count": _FINISHED}
        insert, _, rest = _COPY_BATCHES.strip().partition("\nSELECT")
        if tx.conn.dialect.name == "postgresql":
            rest = rest.replace(":id", "CAST(:id AS text)")
        await tx.conn.execute(text(f"{insert}\n{_NUMBERS} SELECT{rest}"), values)
        await tx.conn.execute(
            text("UPDATE chunks SET state = 'sealed', completed = 1000 WHERE position < :open"), {"open": _CHUNKS - 10}
        )
    return database, batch


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


async def test_claim_reaches_the_free_chunk_through_the_partial_indexes(full: tuple[Database, Batch]) -> None:
    database, _ = full
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
