"""Listings, polling and quotas stay on their indexes, with a hundred thousand rows in the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, text

from app.domain.file import Purpose
from app.store import batches, files, quotas
from app.store.db import Database, Read

ROWS = 100_000
_NUMBERS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows)",
    "postgresql": "WITH n(i) AS (SELECT * FROM generate_series(1, :rows))",
}
_BATCHES = """
INSERT INTO batches (id, project_id, endpoint, input_file_id, input_found, completion_window, status, created_at,
  expires_at, total, completed, failed, input_tokens, cached_tokens, output_tokens, reasoning_tokens, total_tokens)
{numbers}
SELECT 'batch_' || i, 'team', '/v1/embeddings', 'file-' || i, true, '24h', 'completed', 1000 + i / 10, 2000000000,
  1, 1, 0, 0, 0, 0, 0, 0 FROM n
"""
_FILES = """
INSERT INTO files (id, project_id, purpose, filename, bytes, created_at)
{numbers}
SELECT 'file-' || i, 'team', CASE WHEN i % 1000 = 0 THEN 'vision' ELSE 'batch_output' END, 'f', 1, 1000 + i / 10 FROM n
"""


async def fill(database: Database) -> None:
    async with database.write() as tx:
        numbers = _NUMBERS[tx.conn.dialect.name]
        for statement in (_BATCHES, _FILES):
            await tx.conn.execute(text(statement.format(numbers=numbers)), {"rows": ROWS})
        await tx.conn.execute(text("ANALYZE"))


class Plans:
    """The plans of the statements that `work` runs."""

    def __init__(self, tx: Read) -> None:
        self._tx = tx

    async def of(self, work: Callable[[Read], Any]) -> str:
        seen: list[tuple[str, Any]] = []

        def note(conn: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
            seen.append((statement, parameters))

        engine = self._tx.conn.sync_connection
        event.listen(engine, "before_cursor_execute", note)
        await work(self._tx)
        event.remove(engine, "before_cursor_execute", note)
        explain = "EXPLAIN QUERY PLAN " if self._tx.conn.dialect.name == "sqlite" else "EXPLAIN "
        plans = []
        for statement, parameters in seen:
            rows = (await self._tx.conn.exec_driver_sql(explain + statement, parameters)).all()
            plans.append("\n".join(str(row[-1]) for row in rows))
        return "\n\n".join(plans)


@pytest.mark.timeout(180)
async def test_pages_and_polls_use_their_indexes(database: Database) -> None:
    await fill(database)
    middle_batch, middle_file = f"batch_{ROWS // 2}", f"file-{ROWS // 2}"
    mine = {"project_id": "team"}
    works: dict[str, tuple[Callable[[Read], Any], str]] = {
        "first page": (lambda tx: batches.page(tx, **mine, after=None, limit=20), "ix_batches_listing"),
        "a page": (lambda tx: batches.page(tx, **mine, after=middle_batch, limit=100), "ix_batches_listing"),
        "a batch": (lambda tx: batches.get(tx, middle_batch, **mine), ""),
        "files down": (lambda tx: listing(tx, after=middle_file, descending=True), "ix_files_listing"),
        "files up": (lambda tx: listing(tx, after=middle_file, descending=False), "ix_files_listing"),
        "of a purpose": (
            lambda tx: listing(tx, after=middle_file, purpose=Purpose.VISION),
            "ix_files_listing_by_purpose",
        ),
        "of none": (lambda tx: listing(tx, purpose=Purpose.FINE_TUNE), "ix_files_listing_by_purpose"),
        "open batches": (lambda tx: quotas.use(tx, "team", stored=False), "ix_batches_open"),
    }
    async with database.read() as tx:
        for name, (work, index) in works.items():
            plan = await Plans(tx).of(work)
            assert index in plan, (name, plan)
            for slow in ("SCAN batches", "SCAN files", "Seq Scan on", "TEMP B-TREE", "Sort Key"):
                assert slow not in plan, (name, plan)


async def listing(
    tx: Read, *, after: str | None = None, purpose: Purpose | None = None, descending: bool = True
) -> Any:
    return await files.page(tx, project_id="team", purpose=purpose, after=after, limit=100, descending=descending)
