"""`python -m bench.undurable serve …`: the same program with its durability taken out, to measure what that costs.

No part is written or committed: results wait in memory until their chunk has ended. Nothing is fsynced, and SQLite does
not wait for the disk. Result files are still written, once: they are the product, not the insurance. Never for use.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from app.cli import main
from app.store import db
from app.worker.ledger import Ledger
from app.worker.parts import Parts

_LOOK_SECONDS = 0.02


async def _commit(self: Parts, ledger: Ledger, *, give_up: asyncio.Event) -> None:
    """Wait for the end of the chunk instead: the seal takes all its rows from memory."""
    while ledger.is_running() and not give_up.is_set():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(_LOOK_SECONDS)


def _no_fsync(fd: object) -> None:
    """As if it had reached the disk."""


def _take_out() -> None:
    Parts.commit = _commit  # type: ignore[method-assign]
    os.fsync = _no_fsync
    connector = db.connector

    def without_waiting(*place: Any, **options: Any) -> AsyncEngine:
        engine = connector(*place, **options)

        @event.listens_for(engine.sync_engine, "connect")
        def hurry(connection: Any, record: object) -> None:
            cursor = connection.cursor()
            cursor.execute("PRAGMA synchronous = OFF")
            cursor.close()

        return engine

    db.connector = without_waiting


if __name__ == "__main__":
    _take_out()
    main()
