"""The composition root: what a process is made of, and in which order it starts and is undone.

database ─► blobs ─► engine (loads in the background) ─► worker task ─► HTTP (app.cli.process, or any ASGI server)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog
from fastapi import FastAPI

from app import failpoint, telemetry
from app.blobs.base import Blobs
from app.blobs.factory import open_blobs
from app.domain.quota import UNLIMITED
from app.engine.base import Health
from app.engine.factory import engine_builder
from app.engine.media import MediaRules
from app.engine.supervised import SupervisedEngine
from app.errors import BatchyardError, SettingsInvalid
from app.http.app import build_app, build_probes
from app.service.batches import BatchService
from app.service.courier import Courier
from app.service.files import FileService
from app.service.health import HealthService
from app.service.interactive import InteractiveService
from app.service.keys import KeyService
from app.service.quotas import QuotaService
from app.service.results import ResultService
from app.service.retries import RetryService
from app.service.services import Services
from app.service.uploads import UploadService
from app.service.webhooks import WebhookService
from app.settings import MediaSettings, Settings
from app.store.db import Database
from app.worker.loop import Worker
from app.worker.webhooks import WebhookDelivery

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
    blobs: Blobs
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
    _arm(settings)
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
        blobs = open_blobs(settings)
        courier = Courier(settings.webhooks)
        stack.push_async_callback(courier.close)
        engine = engine_of(settings) if worker else None
        own_worker = None if engine is None else _worker(settings, database, blobs, engine, courier)
        changed = _nothing if own_worker is None else own_worker.wake
        services = _services(settings, database, blobs, engine=engine, courier=courier, changed=changed)
        parts = Parts(settings, database, blobs, engine, services, stop)
        if engine is not None and own_worker is not None:
            stack.push_async_callback(engine.stop)
            telemetry.ENGINE_UP.set_function(lambda: float(engine.health() is Health.READY))
            await engine.start()
            _watch(engine.task, parts)
            task = asyncio.create_task(own_worker.run(stop), name="worker")
            stack.push_async_callback(_end_worker, task, parts)
            _watch(task, parts)
        yield parts


def _services(
    settings: Settings,
    database: Database,
    blobs: Blobs,
    *,
    engine: SupervisedEngine | None,
    courier: Courier,
    changed: Callable[[], None],
) -> Services:
    """One of each. `changed` is called when a batch was created or cancelled."""
    return Services(
        files=FileService(database=database, blobs=blobs, limits=settings.limits, retention=settings.retention),
        uploads=UploadService(database=database, blobs=blobs, limits=settings.limits, retention=settings.retention),
        batches=BatchService(
            database=database,
            limits=settings.limits,
            retention=settings.retention,
            changed=changed,
        ),
        results=ResultService(database=database, blobs=blobs),
        retries=RetryService(
            database=database,
            blobs=blobs,
            limits=settings.limits,
            retention=settings.retention,
            changed=changed,
        ),
        health=HealthService(database=database, blobs=blobs, engine=engine),
        keys=key_service(settings, database),
        quotas=QuotaService(database=database),
        interactive=InteractiveService(engine=engine, enabled=settings.server.interactive),
        webhooks=WebhookService(
            database=database, courier=courier, settings=settings.webhooks, retention=settings.retention
        ),
    )


def key_service(settings: Settings, database: Database) -> KeyService:
    """Keys and quotas as the settings say."""
    return KeyService(
        database=database,
        configured=[key.get_secret_value() for key in settings.server.api_keys],
        quotas=UNLIMITED.changed(settings.quotas.model_dump()),
    )


def _arm(settings: Settings) -> None:
    """Set what `debug.failpoint` asks for, loudly: nobody should serve people with it."""
    failpoint.arm(failpoint.parse(settings.debug.failpoint))
    if settings.debug.failpoint:
        log.warning("failpoints_armed", failpoint=settings.debug.failpoint)


def make_folders(settings: Settings) -> None:
    """The data folder and, where blobs are files, theirs; writable. Raises SettingsInvalid."""
    folders = {"data_dir": settings.data_dir}
    if settings.blobs.url is None:
        folders["blobs.path"] = settings.blob_path
    for name, folder in folders.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise SettingsInvalid(f"{name} {folder} cannot be made: {exc.strerror}") from exc
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            raise SettingsInvalid(f"{name} {folder} is not writable")


def engine_of(settings: Settings) -> SupervisedEngine:
    """The engine that `settings` ask for, not started."""
    engine = settings.engine
    shared = settings.server.role == "all" and settings.server.interactive
    return SupervisedEngine(
        engine_builder(
            engine.kind,
            model=engine.model,
            arguments=engine.arguments,
            prioritise=shared,
            yielding=shared and engine.yielding,
            media=_media(settings.media),
            echo_delay_seconds=engine.echo_delay_seconds,
            echo_concurrent=engine.echo_concurrent,
            echo_load_seconds=engine.echo_load_seconds,
            echo_journal=engine.echo_journal,
        ),
        first_backoff_seconds=engine.rebuild_first_seconds,
        max_backoff_seconds=engine.rebuild_max_seconds,
        rebuilds_max=engine.rebuilds_max,
        hang_seconds=engine.hang_seconds,
        on_death=telemetry.ENGINE_DEATHS.inc,
    )


def _media(media: MediaSettings) -> MediaRules:
    return MediaRules(
        allowed_domains=frozenset(domain.lower() for domain in media.allowed_domains),
        private_hosts=frozenset(host.lower() for host in media.private_hosts),
        max_bytes=media.max_bytes,
        timeout_seconds=media.timeout_seconds,
        redirects_max=media.redirects_max,
    )


def _nothing() -> None:
    """No worker in this process: the others poll."""


def _worker(settings: Settings, database: Database, blobs: Blobs, engine: SupervisedEngine, courier: Courier) -> Worker:
    return Worker(
        database=database,
        blobs=blobs,
        engine=engine,
        settings=settings.worker,
        limits=settings.limits,
        retention=settings.retention,
        window=settings.engine.window,
        request_timeout_seconds=settings.engine.request_timeout_seconds,
        stop_seconds=settings.server.stop_seconds * _LINES_SHARE,
        webhooks=WebhookDelivery(database=database, courier=courier, settings=settings.webhooks),
    )


def _watch(task: asyncio.Task[None] | None, parts: Parts) -> None:
    """End the process when `task` ends before a stop was asked for."""
    assert task is not None

    def ended(task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        if failure is not None or not parts.stop.is_set():
            expected = isinstance(failure, BatchyardError)  # the engine's end for good: told, not traced
            log.critical("task_died", task=task.get_name(), exc_info=None if expected else failure)
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


def create_probes(parts: Parts) -> FastAPI:
    """What a worker over `parts` tells those who watch it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[dict[str, Any]]:
        yield {"services": parts.services}

    return build_probes(lifespan=lifespan)
