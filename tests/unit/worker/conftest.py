"""The yard, once on SQLite and once on whatever a test's database is."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from app.store.db import Database
from tests.unit.worker.yard import FaultyBlobs, Yard, new_engine


@pytest.fixture
async def yard(sqlite_database: Database, sqlite_url: str, tmp_path: Path) -> AsyncGenerator[Yard]:
    """On SQLite."""
    async for opened in _opened(sqlite_database, sqlite_url, tmp_path):
        yield opened


@pytest.fixture
async def shared_yard(database: Database, database_url: str, tmp_path: Path) -> AsyncGenerator[Yard]:
    """Once on SQLite, once on Postgres."""
    async for opened in _opened(database, database_url, tmp_path):
        yield opened


async def _opened(database: Database, url: str, tmp_path: Path) -> AsyncGenerator[Yard]:
    seen: Counter[bytes] = Counter()
    engine = new_engine(seen)
    await engine.start()
    yard = Yard(database, url, FaultyBlobs(tmp_path / "blobs"), engine, seen)
    try:
        yield yard
    finally:
        for running in yard.running:
            if not running.task.done():
                await running.kill()
            await running.database.close()
        await yard.engine.stop()
