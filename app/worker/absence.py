"""Bytes that are not where the database says they are: away for a while, or lost for good.

A disk that is not mounted, another machine's folder, or a confused gateway hides bytes that come back, and nothing is
given up for them. So a blob is lost only when it was missing at every look for `lost_after_seconds`, and then, at one
and the same moment, the store takes, gives back and removes bytes, most of a sample of other blobs that the database
names stand, and this one does not. Where the sample does not stand either, the store as a whole may be the wrong one,
or was emptied: that takes `gone_after_seconds`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from app.blobs.base import Blobs
from app.domain.part import PartDamaged
from app.errors import BlobMissing
from app.store import retention
from app.store.db import Database

log = structlog.get_logger()

LOOK_SECONDS = 5.0
LOOKS_MIN = 3
# So long a proof stands: an input is missed anew for each of its chunks.
PROVEN_SECONDS = 60.0
_SAMPLE = 24
# Looks further apart than this are no observation of what was between them.
_STALE_LOOKS = 10
_STALE_SECONDS = 60.0


@dataclass(slots=True)
class _Missing:
    since: float
    last: float
    looks: int = 1
    told: bool = False
    proven_until: float = 0.0


class Absences:
    """What this process has missed, and since when, by its steady clock."""

    def __init__(
        self, *, database: Database, blobs: Blobs, lost_after_seconds: float, gone_after_seconds: float
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._lost_after_seconds = lost_after_seconds
        self._gone_after_seconds = gone_after_seconds
        self._missing: dict[str, _Missing] = {}
        #: Look again after this time.
        self.look_seconds = min(LOOK_SECONDS, lost_after_seconds / LOOKS_MIN)

    async def lost(self, key: str, look: Callable[[], Awaitable[object]]) -> bool:
        """The blob `key` could not be read just now: True when it is lost for good. Otherwise look again later.

        `look` reads what could not be read; it raises BlobMissing or PartDamaged where that is still so. Raises
        Unavailable when the store does not work at all.
        """
        missing = self._note(key)
        if missing.last < missing.proven_until:
            return True
        seconds = missing.last - missing.since
        if missing.looks < LOOKS_MIN or seconds < self._lost_after_seconds:
            return False
        await self._blobs.check()
        others = await self._others_stand(key)
        if not others and seconds < self._gone_after_seconds:
            if not missing.told:
                log.error("blobs_missing", key=key, seconds=round(seconds), gone_after_seconds=self._gone_after_seconds)
                missing.told = True
            return False
        try:
            await look()
        except (BlobMissing, PartDamaged) as exc:
            log.error("blob_lost", key=key, seconds=round(seconds), others_stand=others, reason=exc.message)  # noqa: TRY400 - told, not traced
            missing.proven_until = asyncio.get_running_loop().time() + PROVEN_SECONDS
            return True
        del self._missing[key]
        return False

    def _note(self, key: str) -> _Missing:
        now = asyncio.get_running_loop().time()
        stale = now - max(_STALE_SECONDS, _STALE_LOOKS * self.look_seconds)
        self._missing = {name: seen for name, seen in self._missing.items() if seen.last >= stale}
        seen = self._missing.get(key)
        if seen is None:
            seen = self._missing[key] = _Missing(now, now)
        else:
            seen.last = now
            seen.looks += 1
        return seen

    async def _others_stand(self, key: str) -> bool:
        """Most of a sample of the other blobs that the database names are there."""
        async with self._database.read() as tx:
            sample = await retention.some_named(tx, limit=_SAMPLE)
        others = [(name, size) for name, size in sample if name != key]
        standing = 0
        for name, size in others:
            standing += await stands(self._blobs, name, size=size)
        return standing * 2 > len(others)


async def last_byte(blobs: Blobs, key: str, *, size: int) -> None:
    """Raises BlobMissing when the blob `key` is not there, or shorter than `size`; Unavailable."""
    if size:
        await blobs.get(key, start=size - 1, end=size)


async def stands(blobs: Blobs, key: str, *, size: int) -> bool:
    """The blob `key` is there, as long as `size`. Raises Unavailable."""
    try:
        await last_byte(blobs, key, size=size)
    except BlobMissing:
        return False
    return True
