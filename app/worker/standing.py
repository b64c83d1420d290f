"""Whether what a batch is about to be published with is there: its sealed segments, looked at before they are files.

A segment that is lost for good (app.worker.absence) opens its chunk again, and the chunk's lines run again. Once a
batch is `finalizing` its segments are taken as they are: there is no way back from there.
"""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from app.blobs.base import Blobs
from app.errors import Unavailable
from app.store import chunks, finals
from app.store.db import Database
from app.worker.absence import Absences, last_byte, stands

log = structlog.get_logger()

_AT_ONCE = 8


class Standing:
    """See the module. Reads one byte of each segment."""

    def __init__(self, *, database: Database, blobs: Blobs, absences: Absences) -> None:
        self._database = database
        self._blobs = blobs
        self._absences = absences
        self.look_seconds = absences.look_seconds

    async def whole(self, batch_id: str) -> bool:
        """Every segment of the batch stands. Otherwise ask again later; what is lost for good is on its way again.

        Raises Unavailable.
        """
        async with self._database.read() as tx:
            named = await finals.sealed_segments(tx, batch_id)
        whole = True
        for start in range(0, len(named), _AT_ONCE):
            some = named[start : start + _AT_ONCE]
            found = await asyncio.gather(*(self._look(key, size) for _, key, size in some))
            for (chunk_id, key, size), standing in zip(some, found, strict=True):
                if isinstance(standing, Unavailable):
                    raise standing
                if not standing:
                    whole = False
                    await self._missed(batch_id, chunk_id, key, size)
        return whole

    async def _look(self, key: str, size: int) -> bool | Unavailable:
        try:
            return await stands(self._blobs, key, size=size)
        except Unavailable as exc:
            return exc  # so that none of the others is left behind

    async def _missed(self, batch_id: str, chunk_id: str, key: str, size: int) -> None:
        log.error("segment_missing", batch_id=batch_id, chunk_id=chunk_id, key=key)
        if await self._absences.lost(key, partial(last_byte, self._blobs, key, size=size)):
            async with self._database.write() as tx:
                reopened = await chunks.reopen(tx, batch_id, chunk_id, lost_key=key)
            if reopened:
                log.error("chunk_reopened", batch_id=batch_id, chunk_id=chunk_id)
