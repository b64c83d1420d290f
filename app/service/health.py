"""Is the service able to do its work? Asked by `/ready`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from app.blobs.base import Blobs
from app.engine.base import Health
from app.errors import BatchyardError
from app.store.db import Database

_PATIENCE_SECONDS = 5.0
_FRESH_SECONDS = 1.0


class _HasHealth(Protocol):
    def health(self) -> Health: ...


@dataclass(frozen=True, slots=True)
class Readiness:
    """`checks` says for engine, database and blobs `ok` (an engine: its state, or `none`), else a plain sentence."""

    ok: bool
    checks: dict[str, str]


class HealthService:
    """Checks for a process with (`all`) or without (`api`) an engine of its own."""

    def __init__(self, *, database: Database, blobs: Blobs, engine: _HasHealth | None) -> None:
        self._database = database
        self._blobs = blobs
        self._engine = engine
        self._turn = asyncio.Lock()
        self._stored: dict[str, str] = {}
        self._stored_at = float("-inf")

    async def ready(self) -> Readiness:
        """Never raises, and answers within about five seconds. Answers about storage are at most a second old.

        The blob check writes and fsyncs, and `/ready` asks for no key: many callers must not become many writes.
        """
        async with self._turn:
            if time.monotonic() - self._stored_at > _FRESH_SECONDS:
                database, blobs = await asyncio.gather(
                    _ask(self._database.check(), silent="The database does not answer."),
                    _ask(self._blobs.check(), silent="The blob store does not answer."),
                )
                self._stored = {"database": database, "blobs": blobs}
                self._stored_at = time.monotonic()
            stored = self._stored
        engine = "none" if self._engine is None else self._engine.health().value
        ok = engine in ("none", Health.READY) and all(answer == "ok" for answer in stored.values())
        return Readiness(ok, {"engine": engine, **stored})


async def _ask(check: Awaitable[None], *, silent: str) -> str:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await check
    except BatchyardError as exc:
        return exc.message
    except TimeoutError:
        return silent
    return "ok"
