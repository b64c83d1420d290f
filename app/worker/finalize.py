"""Finalizing: a batch whose every line has ended gets its result files and its terminal status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from app.domain.id import new_file_id
from app.errors import Internal, Unavailable
from app.failpoint import failpoint
from app.settings import RetentionSettings, WorkerSettings
from app.store import finals
from app.store.db import Database
from app.worker.patience import Bell
from app.worker.standing import Standing

log = structlog.get_logger()

# A batch whose ledger does not add up is looked at again after this time: loud, and never published.
SET_ASIDE_SECONDS = 30.0
_AT_ONCE = 64


class Finalizer:
    """Ends batches. Several workers may: the database lets one of them. `ended` is called when one has ended."""

    def __init__(
        self,
        *,
        database: Database,
        settings: WorkerSettings,
        retention: RetentionSettings,
        standing: Standing,
        ended: Callable[[], None] | None = None,
    ) -> None:
        self._database = database
        self._standing = standing
        self._settings = settings
        self._retention = retention
        self._ended = ended
        self._set_aside: dict[str, float] = {}
        self.bell = Bell()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            try:
                await self._pass()
            except Unavailable as exc:
                log.warning("finalize_waits", reason=exc.message)
            await self.bell.wait(self._settings.poll_seconds)

    async def _pass(self) -> None:
        now = asyncio.get_running_loop().time()
        self._set_aside = {batch_id: until for batch_id, until in self._set_aside.items() if until > now}
        async with self._database.read() as tx:
            ready = await finals.ready(tx, limit=_AT_ONCE + len(self._set_aside))
        for batch_id in ready:
            if batch_id in self._set_aside:
                continue
            try:
                if await self._standing.whole(batch_id):
                    await self._finish(batch_id)
                else:
                    self._set_aside[batch_id] = now + min(SET_ASIDE_SECONDS, self._standing.look_seconds)
            except Internal as exc:
                log.error("finalize_failed", batch_id=batch_id, reason=exc.message)  # noqa: TRY400 - told, not traced
                self._set_aside[batch_id] = now + SET_ASIDE_SECONDS

    async def _finish(self, batch_id: str) -> None:
        async with self._database.write() as tx:
            await finals.begin(tx, batch_id)
        await failpoint("finalizing_begun")
        # A transaction of its own: `finalizing` is seen by clients, and from there a cancel is refused.
        async with self._database.write() as tx:
            batch = await finals.finish(
                tx,
                batch_id,
                output_file_id=new_file_id(),
                error_file_id=new_file_id(),
                expires_after_seconds=self._retention.output_file_seconds,
            )
            await failpoint("finish_recorded")
        await failpoint("finished")
        if batch is not None:
            tally = batch.tally
            log.info(
                "batch_ended",
                batch_id=batch_id,
                status=batch.status.value,
                total=batch.total,
                completed=tally.completed,
                failed=tally.failed,
            )
            if self._ended is not None:
                self._ended()
