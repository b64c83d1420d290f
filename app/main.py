"""The composition root: what a process is made of, and in which order it starts and is undone.

database ─► blobs ─► engine (loads in the background) ─► worker task ─► HTTP (app.cli.process, or any ASGI server)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog
from fastapi import FastAPI

from app import telemetry
from app.blobs.local import LocalBlobs
from app.engine.base import Health
from app.engine.factory import engine_builder
from app.engine.supervised import SupervisedEngine
from app.errors import SettingsInvalid
from app.http.app import build_app
from app.service.batches import BatchService
from app.service.files import FileService
from app.service.health import HealthService
from app.service.services import Services
from app.settings import EngineSettings, Settings
from app.store.db import Database
from app.worker.loop import Worker

log = structlog.get_logger()

#: Shares of `server.stop_seconds`: lines in flight may go on for the first, the whole worker has the second, and the
#: rest is the engine's and the database's.
_LINES_SHARE = 0.5
_WORKER_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Parts:
    """A started process, without its HTTP side. `failed` is set when a task that must not die has died."""

    settings: Settings
    database: Database
    blobs: LocalBlobs
    engine: SupervisedEngine | None
    services: Services
    stop: asyncio.Event
    failed: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def build(
    settings: Settings, *, worker: bool | None = None, migrate: bool = True, stop: asyncio.Event | None = None
) -> AsyncGenerator[Parts]:
    """Everything started; on exit, everything undone in reverse. Returns before the engine has loaded.

    `worker` None means: as server.role says. `stop` is the event whose setting asks for the end. Raises
    SettingsInvalid, and Unavailable when the database does not answer or, with `migrate` False, is behind.
    """
    stop = stop or asyncio.Event()
    worker = settings.server.role == "all" if worker is None else worker
    async with AsyncExitStack() as stack:
        database = Database(
            settings.store_url,
            pool_size=settings.store.pool_size,
            busy_timeout_seconds=settings.store.busy_timeout_seconds,
        )
        stack.push_async_callback(database.close)
        make_folders(settings)
        await (database.migrate() if migrate else database.check())
        blobs = LocalBlobs(settings.blob_path, min_free_bytes=settings.blobs.min_free_bytes)
        engine = _engine(settings.engine) if worker else None
        services = Services(
            files=FileService(database=database, blobs=blobs, limits=settings.limits, retention=settings.retention),
            batches=BatchService(database=database),
            health=HealthService(database=database, blobs=blobs, engine=engine),
        )
        parts = Parts(settings, database, blobs, engine, services, stop)
        if engine is not None:
            stack.push_async_callback(engine.stop)
            telemetry.ENGINE_UP.set_function(lambda: float(engine.health() is Health.READY))
            await engine.start()
            _watch(engine.task, parts)
            task = asyncio.create_task(_work(parts, engine), name="worker")
            stack.push_async_callback(_end_worker, task, parts)
            _watch(task, parts)
        yield parts


def make_folders(settings: Settings) -> None:
    """The data and blob folders, writable. Raises SettingsInvalid."""
    for name, folder in {"data_dir": settings.data_dir, "blobs.path": settings.blob_path}.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise SettingsInvalid(f"{name} {folder} cannot be made: {exc.strerror}") from exc
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            raise SettingsInvalid(f"{name} {folder} is not writable")


def _engine(engine: EngineSettings) -> SupervisedEngine:
    return SupervisedEngine(
        engine_builder(
            engine.kind,
            model=engine.model,
            arguments=engine.arguments,
            echo_delay_seconds=engine.echo_delay_seconds,
            echo_concurrent=engine.echo_concurrent,
            echo_load_seconds=engine.echo_load_seconds,
        ),
        first_backoff_seconds=engine.rebuild_first_seconds,
        max_backoff_seconds=engine.rebuild_max_seconds,
        on_death=telemetry.ENGINE_DEATHS.inc,
    )


async def _work(parts: Parts, engine: SupervisedEngine) -> None:
    settings = parts.settings
    await Worker(
        database=parts.database,
        blobs=parts.blobs,
        engine=engine,
        settings=settings.worker,
        limits=settings.limits,
        retention=settings.retention,
        window=settings.engine.window,
        request_timeout_seconds=settings.engine.request_timeout_seconds,
        stop_seconds=settings.server.stop_seconds * _LINES_SHARE,
    ).run(parts.stop)


def _watch(task: asyncio.Task[None] | None, parts: Parts) -> None:
    """End the process when `task` ends before a stop was asked for."""
    assert task is not None

    def ended(task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        if failure is not None or not parts.stop.is_set():
            log.critical("task_died", task=task.get_name(), exc_info=failure)
            parts.failed.set()
            parts.stop.set()

    task.add_done_callback(ended)


async def _end_worker(task: asyncio.Task[None], parts: Parts) -> None:
    parts.stop.set()
    _, running = await asyncio.wait({task}, timeout=parts.settings.server.stop_seconds * _WORKER_SHARE)
    if running:
        log.error("worker_stop_overdue")
        task.cancel()
        await asyncio.wait({task})


def create_app(settings: Settings, *, parts: Parts | None = None) -> FastAPI:
    """The HTTP side over `parts`; without them, the app builds its own when it starts and undoes them when it stops."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[dict[str, Any]]:
        if parts is not None:
            yield {"services": parts.services}
            return
        async with build(settings) as own:
            yield {"services": own.services}

    return build_app(settings=settings, lifespan=lifespan)
