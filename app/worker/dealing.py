"""Keeps lines flowing from the feed to the seats while the engine answers, and ends the flow in order.

The part of a drain that knows no storage: the hosted worker and the offline run share it.
"""

from __future__ import annotations

import asyncio
from math import isqrt

import structlog

from app.telemetry import INFLIGHT, WINDOW
from app.worker.feed import Feed
from app.worker.patience import Bell, rest
from app.worker.window import RebuiltEngine, Window

log = structlog.get_logger()

# An engine that let calls down and still says it is ready gets this long to admit its death.
UNADMITTED_SECONDS = 0.25


class Dealing:
    """`final` is the event that ends `mind_engine`. `size` 0 takes the window the engine asks for.

    `bell` is rung when there are seats to fill.
    """

    def __init__(
        self, *, engine: RebuiltEngine, feed: Feed, window: Window, bell: Bell, size: int, final: asyncio.Event
    ) -> None:
        self._engine = engine
        self._feed = feed
        self._window = window
        self._bell = bell
        self._asked_size = size
        self._size = 0  # known once the engine has been ready
        self._final = final
        self._dealt = 0

    async def mind_engine(self) -> None:
        """Deal only while the engine answers, to as many seats as it asks for. Returns when `final` is set."""
        generation = 0
        while await self._engine.wait_ready(self._final):
            if self._engine.generation == generation and await rest(self._final, UNADMITTED_SECONDS):
                return
            generation = self._engine.generation
            self._size = self._asked_size or self._engine.capacity().window
            self._window.size = self._size
            self._feed.suspects_max = isqrt(self._size)
            WINDOW.set(self._size)
            self._feed.engine_came()
            self._bell.ring()
            waits = [asyncio.create_task(event.wait()) for event in (self._feed.engine_lost, self._final)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if self._final.is_set():
                return

    def look(self) -> None:
        """End lines whose time is over, and see how much is to be dealt. Call it a few times a second."""
        self._window.time_out()
        INFLIGHT.set(self._feed.running)
        # As many lines as were dealt since the last look keep the seats busy until the next one.
        self._feed.low_water = max(8, self._size // 8, self._feed.dealt - self._dealt)
        self._dealt = self._feed.dealt

    async def wind_down(self, stop_seconds: float) -> None:
        """Deal nothing more, and give the lines in flight so long to end before they are aborted."""
        self._feed.stop()
        if not await rest(self._feed.idle, stop_seconds):
            log.info("stop_aborts_lines", lines=self._feed.running)
            self._window.abort_all()
            await rest(self._feed.idle, 1.0)
            self._window.give_up()
