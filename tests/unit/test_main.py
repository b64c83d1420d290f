"""What a process is made of: built, failed half-way, undone. The engine is echo, everything else is real."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs

from app.domain.batch import BatchStatus
from app.engine.base import Health
from app.errors import SettingsInvalid, Unavailable
from app.main import build, create_app
from app.settings import Settings, load
from tests.buckets import KEYS, TestBucket


def settings_in(folder: Path, **flags: object) -> Settings:
    named = {"data_dir": folder, "engine.kind": "echo", "worker.poll_seconds": 0.02}
    return load(named | {name.replace("__", "."): value for name, value in flags.items()}, environ={}).settings


def worker_task() -> asyncio.Task[None]:
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "worker"]
    return task


def our_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def test_build_starts_everything_and_leaves_nothing_behind(tmp_path: Path) -> None:
    threads = threading.active_count()
    async with build(settings_in(tmp_path / "new" / "data")) as parts:
        assert parts.engine is not None
        assert await parts.engine.wait_ready()
        ready = await parts.services.health.ready()
        assert ready.ok
        assert ready.checks == {"engine": "ready", "database": "ok", "blobs": "ok"}
        assert (tmp_path / "new" / "data" / "batchyard.db").exists()
    assert parts.engine.health() is Health.STOPPED
    assert parts.stop.is_set()
    assert not parts.failed.is_set()
    assert our_tasks() == set()
    for _ in range(100):
        if threading.active_count() <= threads + 8:  # the default executor keeps its threads
            break
        await asyncio.sleep(0.02)
    assert not [thread for thread in threading.enumerate() if "aiosqlite" in thread.name.lower()]


async def test_build_wakes_its_worker_when_a_batch_is_created(tmp_path: Path) -> None:
    """Polls are a minute apart: without a bell nothing would happen."""
    async with build(settings_in(tmp_path, worker__poll_seconds=60)) as parts:
        assert parts.engine is not None
        await parts.engine.wait_ready()
        await asyncio.sleep(0.3)  # every loop has looked, and rests
        batches = parts.services.batches
        async with asyncio.timeout(10):
            batch = await batches.create(
                "team", endpoint="/v1/chat/completions", input_file_id="file-unknown", completion_window="24h"
            )
            while batch.status is not BatchStatus.FAILED:
                await asyncio.sleep(0.02)
                batch = await batches.get("team", batch.id)


async def test_build_arms_the_failpoints_of_its_settings(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with build(settings_in(tmp_path, debug__failpoint="create_committed=error@1")) as parts:
            batches = parts.services.batches
            asked: dict[str, Any] = {
                "endpoint": "/v1/embeddings",
                "input_file_id": "file-unknown",
                "completion_window": "24h",
            }
            with pytest.raises(Unavailable):
                await batches.create("team", **asked)
            page = await batches.page("team", after=None, limit=5)
            assert len(page.items) == 1, "it was committed before the point was reached"
            await batches.create("team", **asked)
    assert "failpoints_armed" in {entry["event"] for entry in logs}
    async with build(settings_in(tmp_path)) as parts:
        await parts.services.batches.create("team", **asked)


async def test_build_returns_while_the_engine_loads(tmp_path: Path) -> None:
    async with build(settings_in(tmp_path, engine__echo_load_seconds=600)) as parts:
        assert parts.engine is not None
        await asyncio.sleep(0.05)
        assert (await parts.services.health.ready()).checks["engine"] == "loading"
    assert our_tasks() == set()


async def test_build_for_role_api_has_neither_engine_nor_worker(tmp_path: Path) -> None:
    async with build(settings_in(tmp_path, server__role="api", engine__kind="vllm")) as parts:
        assert parts.engine is None
        assert "worker" not in our_tasks()
        assert (await parts.services.health.ready()).ok


async def test_build_sets_failed_when_the_worker_dies(tmp_path: Path) -> None:
    async with build(settings_in(tmp_path)) as parts:
        assert parts.engine is not None
        await parts.engine.wait_ready()
        worker_task().cancel()
        async with asyncio.timeout(10):
            await parts.stop.wait()
        assert parts.failed.is_set()


async def test_build_sets_failed_when_the_engine_supervisor_dies(tmp_path: Path) -> None:
    async with build(settings_in(tmp_path)) as parts:
        assert parts.engine is not None
        assert parts.engine.task is not None
        parts.engine.task.cancel()
        async with asyncio.timeout(10):
            await parts.stop.wait()
        assert parts.failed.is_set()


async def test_build_without_migrate_refuses_an_empty_database(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="batchyard migrate"):
        async with build(settings_in(tmp_path), migrate=False):
            pass
    async with build(settings_in(tmp_path)):
        pass
    async with build(settings_in(tmp_path), migrate=False) as parts:
        assert (await parts.services.health.ready()).checks["database"] == "ok"


async def test_build_twice_at_once_on_one_folder_migrates_once(tmp_path: Path) -> None:
    async def once() -> None:
        async with build(settings_in(tmp_path)) as parts:
            await parts.database.check()

    await asyncio.gather(*(once() for _ in range(4)))


async def test_build_refuses_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsInvalid, match=r"data_dir .*file/data cannot be made"):
        async with build(settings_in(tmp_path / "file" / "data")):
            pass
    assert our_tasks() == set()


async def test_create_app_builds_and_undoes_its_own_parts(tmp_path: Path) -> None:
    app = create_app(settings_in(tmp_path))
    async with app.router.lifespan_context(app) as state:
        assert state is not None
        assert (await state["services"].health.ready()).checks["database"] == "ok"
    assert our_tasks() == set()


async def test_create_app_serves_the_parts_it_is_given(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with build(settings) as parts:
        app = create_app(settings, parts=parts)
        async with app.router.lifespan_context(app) as state:
            assert state == {"services": parts.services}
            transport = httpx2.ASGITransport(app=app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
                assert (await client.get("/health")).status_code == 200
        assert not parts.stop.is_set(), "an app does not end what it was given"


async def test_build_with_the_embedded_model_not_unpacked_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHYARD_MODELS_DIR", str(tmp_path / "models"))
    with pytest.raises(SettingsInvalid, match="make model"):
        async with build(settings_in(tmp_path, engine__kind="vllm")):
            pass
    assert our_tasks() == set()


async def test_build_with_a_bucket_makes_no_blob_folder(
    tmp_path: Path, bucket: TestBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    place: dict[str, Any] = {
        "blobs__url": f"s3://{bucket.name}",
        "blobs__s3_endpoint": bucket.endpoint,
        "blobs__s3_allow_http": True,
    }
    async with build(settings_in(tmp_path / "data", **place)) as parts:
        assert parts.engine is not None
        assert await parts.engine.wait_ready()
        assert (await parts.services.health.ready()).checks["blobs"] == "ok"
    assert not (tmp_path / "data" / "blobs").exists()
    assert our_tasks() == set()
