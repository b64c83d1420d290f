"""The heartbeat: holds every lease of this worker, and learns which are lost."""

from __future__ import annotations

import asyncio

import structlog

from app.errors import Unavailable
from app.settings import WorkerSettings
from app.store import chunks
from app.store.db import Database
from app.worker.drain import Drain
from app.worker.validate import Validator

log = structlog.get_logger()

RETRY_SECONDS = 1.0


class Heartbeat:
    """Extends the leases of `drain` and `validator` by the database's time.

    A lease that the database has given away is dropped. When none was extended for longer than a lease, because the
    database was away or this process was frozen, no line is dealt until it answers: somebody else may have the
    chunks. Results are kept, for the token decides, not the time: a lease that lapsed and that nobody took is
    extended like any other.
    """

    def __init__(self, *, database: Database, settings: WorkerSettings, drain: Drain, validator: Validator) -> None:
        self._database = database
        self._settings = settings
        self._drain = drain
        self._validator = validator

    async def run(self) -> None:
        """Until cancelled: leases are held until the last write of a worker that stops."""
        loop = asyncio.get_running_loop()
        held_at = loop.time()
        while True:
            asked_at = loop.time()
            try:
                await self._beat()
            except Unavailable as exc:
                in_doubt = loop.time() - held_at > self._settings.lease_seconds
                log.warning("heartbeat_failed", reason=exc.message, in_doubt=in_doubt)
                await asyncio.sleep(min(RETRY_SECONDS, self._settings.heartbeat_seconds))
                continue
            held_at = asked_at
            self._drain.hold_until(held_at + self._settings.lease_seconds)
            await asyncio.sleep(self._settings.heartbeat_seconds)

    async def _beat(self) -> None:
        leases = self._drain.leases()
        if leases:
            async with self._database.write() as tx:
                extension = await chunks.extend(tx, leases, lease_seconds=self._settings.lease_seconds)
            tokens = dict(leases)
            for chunk_id in extension.lost:
                self._drain.lost(chunk_id, tokens[chunk_id])
        await self._validator.extend()
