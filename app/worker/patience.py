"""Waiting out what does not answer: database, blob store, disk space (app.errors.Unavailable)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from app.errors import Unavailable

log = structlog.get_logger()

FIRST_SECONDS = 0.1
MAX_SECONDS = 5.0

T = TypeVar("T")


async def persist(act: Callable[[], Awaitable[T]], *, doing: str, give_up: asyncio.Event | None = None) -> T:
    """What `act` returns, tried until it is not Unavailable. `doing` is an event word for the log.

    Raises Unavailable once `give_up` is set, and whatever else `act` raises. `act` may have taken effect although it
    said Unavailable (a commit whose answer got lost): it must find that out itself when it is called again.
    """
    pause_seconds = FIRST_SECONDS
    while True:
        try:
            return await act()
        except Unavailable as exc:
            if give_up is not None and give_up.is_set():
                raise
            log.warning("waiting_for_storage", doing=doing, reason=exc.message, pause_seconds=round(pause_seconds, 2))
        await _pause(pause_seconds * random.uniform(0.7, 1.3), give_up)  # noqa: S311 - jitter, no secret
        pause_seconds = min(MAX_SECONDS, pause_seconds * 2)


async def _pause(seconds: float, give_up: asyncio.Event | None) -> None:
    if give_up is None:
        await asyncio.sleep(seconds)
        return
    await rest(give_up, seconds)


async def rest(event: asyncio.Event, seconds: float) -> bool:
    """Wait for `event`, at most `seconds`; True when it is set."""
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Bell:
    """Wakes one loop early. Ringing is a shortcut only: every loop that waits on a bell also polls."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake the loop, now or when it next waits."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Until rung, at most `seconds`."""
        await rest(self._event, seconds)
        self._event.clear()
