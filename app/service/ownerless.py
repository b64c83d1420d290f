"""Bytes that are stored, and about to be named by a row.

The retention sweep removes blobs that had no owner for its grace time. A process that stood still that long between the
two (a stopped process, a paused machine) would name bytes that are gone. So it names them only within that time, by the
database's clock, and asks in the transaction that names them: the sweep decides in one of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from app.blobs.base import Blobs
from app.errors import Unavailable
from app.store import retention
from app.store.db import Database, Write

# The rest of the grace time is for the end of the transaction that names.
_SHARE = 0.9


@dataclass(slots=True)
class Naming:
    """Set `done` once the row that names the blob is durable."""

    began_at: float
    seconds: float
    committing: bool = False
    done: bool = False

    async def in_time(self, tx: Write) -> None:
        """Ask last, in the transaction that names the blob. Raises Unavailable when the sweep may have taken it."""
        if await tx.now() - self.began_at > self.seconds:
            raise Unavailable("The file waited too long to be stored. Send it again.")
        self.committing = True


@asynccontextmanager
async def naming(database: Database, blobs: Blobs, *, key: str, grace_seconds: float) -> AsyncGenerator[Naming]:
    """Write and name the blob `key` inside, and say so; else, and unless a row names it all the same, it is deleted.

    `grace_seconds` is the sweep's. A commit may fail after it happened, so the database is asked. Where it cannot say,
    the sweep finds the blob. Raises Unavailable.
    """
    async with database.read() as tx:
        state = Naming(await tx.now(), _SHARE * grace_seconds)
    try:
        yield state
    finally:
        if not (state.done or (state.committing and database.commits_late)):
            await asyncio.shield(_drop(database, blobs, key))


async def _drop(database: Database, blobs: Blobs, key: str) -> None:
    with suppress(Unavailable):
        async with database.read() as tx:
            owned = await retention.owned(tx, [key])
        if key not in owned:
            await blobs.delete(key)
