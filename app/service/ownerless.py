"""Bytes that are stored, and about to be named by a row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from app.blobs.base import Blobs
from app.errors import Unavailable
from app.store import retention
from app.store.db import Database


@dataclass(slots=True)
class Naming:
    """Set `done` once the row that names the blob is durable."""

    done: bool = False


@asynccontextmanager
async def naming(database: Database, blobs: Blobs, *, key: str) -> AsyncGenerator[Naming]:
    """Name the blob `key` inside, and say so; else, and unless a row names it all the same, it is deleted.

    A commit may fail after it happened, so the database is asked. Where it cannot say, the retention sweep finds the
    blob.
    """
    state = Naming()
    try:
        yield state
    finally:
        if not state.done:
            await asyncio.shield(_drop(database, blobs, key))


async def _drop(database: Database, blobs: Blobs, key: str) -> None:
    with suppress(Unavailable):
        async with database.read() as tx:
            owned = await retention.owned(tx, [key])
        if key not in owned:
            await blobs.delete(key)
