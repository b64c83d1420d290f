"""The sweep: bytes of expired and deleted files go, and bytes that nothing names."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import structlog

from app.blobs.base import Blobs
from app.errors import Unavailable
from app.settings import RetentionSettings
from app.store import retention
from app.store.db import Database
from app.telemetry import BATCHES, SWEPT_BLOBS
from app.worker.patience import rest

log = structlog.get_logger()

_FILES_AT_ONCE = 100
_KEYS_AT_ONCE = 500


class Sweep:
    """Removes what is over. Several workers may at once: every step is idempotent."""

    def __init__(self, *, database: Database, blobs: Blobs, settings: RetentionSettings) -> None:
        self._database = database
        self._blobs = blobs
        self._settings = settings
        self._unowned: dict[str, float] = {}  # key → when it was first seen without an owner

    async def run(self, stop: asyncio.Event) -> None:
        """Every `sweep_seconds` until `stop`. Orphans take a walk over all blobs, so they are looked for less often."""
        loop = asyncio.get_running_loop()
        orphans_due = loop.time()
        while not await rest(stop, self._settings.sweep_seconds):
            try:
                await self._purge_files()
                if loop.time() >= orphans_due:
                    await self._remove_orphans()
                    orphans_due = loop.time() + self._settings.orphan_grace_seconds / 4
                await self._count_batches()
            except Unavailable as exc:
                log.warning("sweep_waits", reason=exc.message)
                # A writer that waited as long as we did may be about to name its blob.
                self._unowned.clear()

    async def _purge_files(self) -> None:
        while True:
            async with self._database.read() as tx:
                expired = await retention.expired_files(tx, limit=_FILES_AT_ONCE)
            for file_id in expired:
                async with self._database.write() as tx:
                    keys = await retention.purge_file(tx, file_id)
                # A crash here leaves blobs that nothing names, which go as orphans.
                for key in keys:
                    await self._blobs.delete(key)
                SWEPT_BLOBS.inc(len(keys))
                log.info("file_purged", file_id=file_id, blobs=len(keys))
            if len(expired) < _FILES_AT_ONCE:
                return

    async def _remove_orphans(self) -> None:
        """Remove blobs that had no owner in any pass for the grace time, by this process's own steady clock.

        A blob is written before it is named, so a fresh one without an owner is normal; and no other clock is
        trusted: not this machine's date, not the blob store's.
        """
        grace_seconds = self._settings.orphan_grace_seconds
        unfinished = await self._blobs.sweep_unfinished(older_than_seconds=grace_seconds)
        before, self._unowned = self._unowned, {}
        removed = 0
        keys: list[str] = []
        async with aclosing(self._blobs.scan()) as blobs:
            async for blob in blobs:
                keys.append(blob.key)
                if len(keys) >= _KEYS_AT_ONCE:
                    removed += await self._look_at(keys, before)
                    keys = []
        removed += await self._look_at(keys, before)
        SWEPT_BLOBS.inc(removed)
        if removed or unfinished:
            log.info("orphans_removed", blobs=removed, unfinished=unfinished)

    async def _look_at(self, keys: list[str], before: dict[str, float]) -> int:
        async with self._database.read() as tx:
            owned = await retention.owned(tx, keys)
        now = asyncio.get_running_loop().time()
        removed = 0
        for key in keys:
            if key in owned:
                continue
            since = before.get(key, now)
            if now - since >= self._settings.orphan_grace_seconds:
                await self._blobs.delete(key)
                removed += 1
            else:
                self._unowned[key] = since
        return removed

    async def _count_batches(self) -> None:
        async with self._database.read() as tx:
            counts = await retention.batches_in(tx)
        for status, count in counts.items():
            BATCHES.labels(status.value).set(count)
