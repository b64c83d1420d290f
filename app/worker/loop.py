"""The worker: its side tasks, named and watched. The death of one ends the worker loudly.

validate    claims batches that wait for validation
drain       claims chunks, runs their lines, makes the results durable
finalize    ends batches whose every line has ended
sweep       retention
webhooks    delivers what waits in the outbox
heartbeat   holds all leases, until the last of the others has returned
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from app.blobs.base import Blobs
from app.settings import LimitSettings, RetentionSettings, WorkerSettings
from app.store.db import Database
from app.worker.absence import Absences
from app.worker.drain import Drain
from app.worker.finalize import Finalizer
from app.worker.heartbeat import Heartbeat
from app.worker.retention import Sweep
from app.worker.standing import Standing
from app.worker.validate import Validator
from app.worker.webhooks import WebhookDelivery
from app.worker.window import RebuiltEngine

log = structlog.get_logger()


class Worker:
    """Everything that turns created batches into finished ones. `run` once.

    `window` is the number of requests in flight, 0 for what the engine asks for; `stop_seconds` is how long lines in
    flight may go on after a stop. The engine need not be ready: what can be done without it is done. Without `webhooks`
    messages wait in the outbox for another worker.
    """

    def __init__(
        self,
        *,
        database: Database,
        blobs: Blobs,
        engine: RebuiltEngine,
        settings: WorkerSettings,
        limits: LimitSettings,
        retention: RetentionSettings,
        window: int,
        request_timeout_seconds: float,
        stop_seconds: float = 20.0,
        webhooks: WebhookDelivery | None = None,
    ) -> None:
        absences = Absences(
            database=database,
            blobs=blobs,
            lost_after_seconds=settings.lost_after_seconds,
            gone_after_seconds=settings.gone_after_seconds,
        )
        standing = Standing(database=database, blobs=blobs, absences=absences)
        tell = None if webhooks is None else webhooks.bell.ring
        self._finalizer = Finalizer(
            database=database, settings=settings, retention=retention, standing=standing, ended=tell
        )
        self._drain = Drain(
            database=database,
            blobs=blobs,
            engine=engine,
            settings=settings,
            absences=absences,
            window=window,
            request_timeout_seconds=request_timeout_seconds,
            stop_seconds=stop_seconds,
            sealed=self._finalizer.bell.ring,
        )
        self._validator = Validator(
            database=database,
            blobs=blobs,
            engine=engine,
            settings=settings,
            limits=limits,
            absences=absences,
            accepted=self._drain.bell.ring,
            rejected=tell,
        )
        self._heartbeat = Heartbeat(database=database, settings=settings, drain=self._drain, validator=self._validator)
        self._webhooks = webhooks
        self._sweep = Sweep(database=database, blobs=blobs, settings=retention)

    def wake(self) -> None:
        """A batch was created or cancelled in this process: look now. Without it, within `poll_seconds`."""
        for bell in (self._validator.bell, self._drain.bell, self._finalizer.bell):
            bell.ring()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`: then nothing more is claimed, lines in flight may end, results are flushed, leases released.

        Raises what ended a side task; the others are cancelled then, and leases lapse.
        """
        work = {
            _task(self._validator.run(stop), "validate"),
            _task(self._drain.run(stop), "drain"),
            _task(self._finalizer.run(stop), "finalize"),
            _task(self._sweep.run(stop), "sweep"),
        }
        if self._webhooks is not None:
            work.add(_task(self._webhooks.run(stop), "webhooks"))
        # These two go on until all work has ended.
        tasks = {*work, _task(self._heartbeat.run(), "heartbeat"), _task(self._wake_on(stop), "wake-on-stop")}
        log.info("worker_started")
        try:
            while not all(task.done() for task in work):
                done, _ = await asyncio.wait(
                    [task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    _check(task, stop)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        log.info("worker_stopped")

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.wake()
        if self._webhooks is not None:
            self._webhooks.bell.ring()


def _task(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    return asyncio.create_task(work, name=f"worker-{name}")


def _check(task: asyncio.Task[None], stop: asyncio.Event) -> None:
    """Raise why a side task ended before its time."""
    try:
        task.result()
    except Exception:  # whatever it was: say which task, then let the process end
        log.critical("worker_task_died", task=task.get_name(), exc_info=True)
        raise
    if not stop.is_set():
        raise RuntimeError(f"{task.get_name()} returned although nobody stopped it")
