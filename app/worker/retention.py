"""The sweep: bytes of expired and deleted files go, and bytes that nothing names."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import structlog

from app.blobs.base import Blobs
from app.blobs.key import chunk_of
from app.errors import Unavailable
from app.failpoint import failpoint
from app.settings import RetentionSettings
from app.store import idempotency, retention, uploads
from app.store.db import Database
from app.telemetry import BATCHES, SWEPT_BLOBS
from app.worker.patience import rest

log = structlog.get_logger()

_FILES_AT_ONCE = 100
_KEYS_AT_ONCE = 500
# A client may still complete an Upload whose hour passed while its bytes were checked.
_LAPSE_GRACE_SECONDS = 600


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
                await self._expire_uploads()
                await self._purge_files()
                await self._forget_keys()
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
                await failpoint("purge_committed")
                for key in keys:
                    await self._blobs.delete(key)
                SWEPT_BLOBS.inc(len(keys))
                log.info("file_purged", file_id=file_id, blobs=len(keys))
            if len(expired) < _FILES_AT_ONCE:
                return

    async def _expire_uploads(self) -> None:
        async with self._database.read() as tx:
            over = await uploads.lapsed(tx, grace_seconds=_LAPSE_GRACE_SECONDS, limit=_FILES_AT_ONCE)
        for upload_id in over:
            async with self._database.write() as tx:
                keys = await uploads.expire(tx, upload_id)
            for key in keys:
                await self._blobs.delete(key)
            SWEPT_BLOBS.inc(len(keys))
            log.info("upload_expired", upload_id=upload_id, blobs=len(keys))

    async def _forget_keys(self) -> None:
        async with self._database.write() as tx:
            await idempotency.forget(tx, limit=_KEYS_AT_ONCE)

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
        ripe: list[str] = []
        for key in keys:
            if key in owned:
                continue
            since = self._unowned[key] = before.get(key, now)
            if now - since >= self._settings.orphan_grace_seconds:
                ripe.append(key)
        if not ripe:
            return 0
        litter = await self._given_up(ripe)
        for key in litter:
            await self._blobs.delete(key)
            del self._unowned[key]
        return len(litter)

    async def _given_up(self, keys: list[str]) -> list[str]:
        """Those of these blobs that nobody can name any more.

        However long the database was away for a worker: while its lease of the chunk stands, what it wrote may wait to
        be named. That lease is gone first, and then the blob.
        """
        chunk_ids = {key: chunk_of(key) for key in keys}
        async with self._database.write() as tx:
            unheld = await retention.unheld(tx, {chunk_id for chunk_id in chunk_ids.values() if chunk_id})
            owned = await retention.owned(tx, keys)
        return [key for key in keys if key not in owned and (chunk_ids[key] is None or chunk_ids[key] in unheld)]

    async def _count_batches(self) -> None:
        async with self._database.read() as tx:
            counts = await retention.batches_in(tx)
        for status, count in counts.items():
            BATCHES.labels(status.value).set(count)
