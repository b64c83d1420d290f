from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.blobs.local import LocalBlobs
from app.engine.base import Health
from app.service import health as module
from app.service.health import HealthService
from app.store.db import Database


class Engine:
    def __init__(self, state: Health) -> None:
        self.state = state

    def health(self) -> Health:
        return self.state


async def test_ready_when_everything_answers(sqlite_database: Database, blobs: LocalBlobs) -> None:
    service = HealthService(database=sqlite_database, blobs=blobs, engine=Engine(Health.READY))
    readiness = await service.ready()
    assert readiness.ok
    assert readiness.checks == {"engine": "ready", "database": "ok", "blobs": "ok"}


async def test_ready_without_an_engine_of_its_own(sqlite_database: Database, blobs: LocalBlobs) -> None:
    readiness = await HealthService(database=sqlite_database, blobs=blobs, engine=None).ready()
    assert readiness.ok
    assert readiness.checks["engine"] == "none"


@pytest.mark.parametrize("state", [Health.LOADING, Health.DEAD, Health.STOPPED])
async def test_not_ready_while_the_engine_is_not(sqlite_database: Database, blobs: LocalBlobs, state: Health) -> None:
    engine = Engine(state)
    service = HealthService(database=sqlite_database, blobs=blobs, engine=engine)
    readiness = await service.ready()
    assert not readiness.ok
    assert readiness.checks["engine"] == state.value
    engine.state = Health.READY
    assert (await service.ready()).ok


async def test_not_ready_without_a_schema(tmp_path: Path, blobs: LocalBlobs) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/empty.db")
    readiness = await HealthService(database=database, blobs=blobs, engine=None).ready()
    await database.close()
    assert not readiness.ok
    assert "batchyard migrate" in readiness.checks["database"]
    assert readiness.checks["blobs"] == "ok"


async def test_not_ready_with_little_disk(sqlite_database: Database, root: Path) -> None:
    blobs = LocalBlobs(root, min_free_bytes=1 << 60)
    readiness = await HealthService(database=sqlite_database, blobs=blobs, engine=None).ready()
    assert not readiness.ok
    assert "MiB of disk are free" in readiness.checks["blobs"]


class SlowBlobs(LocalBlobs):
    asked = 0

    async def check(self) -> None:
        self.asked += 1
        await asyncio.sleep(10)


async def test_silent_store_does_not_hold_the_answer_up(
    sqlite_database: Database, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.05)
    blobs = SlowBlobs(root)
    service = HealthService(database=sqlite_database, blobs=blobs, engine=None)
    answers = await asyncio.gather(*(service.ready() for _ in range(10)))
    assert {answer.checks["blobs"] for answer in answers} == {"The blob store does not answer."}
    assert blobs.asked == 1
