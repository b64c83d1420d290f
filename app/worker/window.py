"""The seats in front of the engine: as many requests in flight as it wants, whatever chunk or batch they come from.

A seat is a task that lives as long as the worker: it takes a line, calls the engine, notes the outcome, and takes the
next. So no line waits for another one's chunk, and no line costs a task. Aborting a line cancels its seat's call,
never the seat.
"""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

import structlog

from app.domain.request import custom_id_of, envelope_of
from app.domain.result import TIMED_OUT, Outcome, answered, error_body, unanswered
from app.engine.base import Engine, Health
from app.errors import EngineBusy, EngineDead
from app.telemetry import ENGINE_CALL_SECONDS, LINES_RERUN
from app.worker.feed import Feed
from app.worker.ledger import Ledger

log = structlog.get_logger()

# Deaths of the engine with one line in flight: from here on the line runs alone …
DEATHS_UNTIL_ALONE = 2
# … and here it is the line's doing.
DEATHS_UNTIL_ERROR = 3
BUSY_FIRST_SECONDS = 0.05
BUSY_MAX_SECONDS = 2.0

_POISON = error_body(
    "The model server died repeatedly while it worked on this request.", type_="server_error", code="engine_error"
)
_CRASHED = error_body("The model server failed on this request.", type_="server_error", code="engine_error")


class RebuiltEngine(Engine, Protocol):
    """An engine that is built anew when it dies, and can be waited for. Each rebuild raises `generation`."""

    generation: int

    async def wait_ready(self, stop: asyncio.Event | None = None) -> bool:
        """True once it answers; False when `stop` was set first."""


class _Seat:
    """One place in the window. `ledger` is None while it is free; `aborted` while its call is being cancelled."""

    __slots__ = ("aborted", "began", "busy", "index", "ledger", "size", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.ledger: Ledger | None = None
        self.index = 0
        self.size = 0
        self.began: float | None = None
        self.aborted = False
        self.busy = 0


class Window:
    """At most `size` seats, made when first needed; none before `size` is set.

    Every seat is a task of `group`, so that a seat's death is noticed.
    """

    def __init__(
        self,
        *,
        engine: RebuiltEngine,
        feed: Feed,
        request_timeout_seconds: float,
        group: asyncio.TaskGroup,
    ) -> None:
        self._engine = engine
        self._feed = feed
        self.size = 0
        self._timeout_seconds = request_timeout_seconds
        self._group = group
        self._seats: list[_Seat] = []
        self._loop = asyncio.get_running_loop()
        feed.spawn = self._grow

    def abort(self, ledger: Ledger) -> None:
        """Abort, in the engine, every line of `ledger` in flight. What became of the line is the caller's to note."""
        for seat in self._seats:
            if seat.ledger is ledger:
                self._abort(seat)

    def abort_all(self) -> None:
        """As `abort`, for all ledgers."""
        for seat in self._seats:
            if seat.ledger is not None:
                self._abort(seat)

    def time_out(self) -> None:
        """End with an error row every line whose call began too long ago.

        Cheaper than a timer a line: call it often.
        """
        before = self._loop.time() - self._timeout_seconds
        code, message = TIMED_OUT
        for seat in self._seats:
            ledger = seat.ledger
            if ledger is None or seat.aborted or seat.began is None or seat.began > before:
                continue
            text = ledger.texts[seat.index]
            if text is not None:
                ledger.end(seat.index, unanswered(custom_id_of(text), code=code, message=message))
            self._abort(seat)
            log.info("line_timed_out", batch_id=ledger.claim.batch_id, chunk_id=ledger.chunk_id, index=seat.index)

    def _grow(self, seats: int) -> None:
        for _ in range(min(seats, self.size - len(self._seats))):
            seat = _Seat()
            self._seats.append(seat)
            seat.task = self._group.create_task(self._sit(seat), name=f"seat-{len(self._seats)}")

    def _abort(self, seat: _Seat) -> None:
        if not seat.aborted and seat.task is not None:
            seat.aborted = True
            seat.task.cancel()

    async def _sit(self, seat: _Seat) -> None:
        feed = self._feed
        while not feed.stopped:
            dealt = feed.take()
            if dealt is None:
                await feed.wait()
                continue
            ledger, index = dealt
            text = ledger.texts[index]
            assert text is not None, "only lines that have not ended are dealt"
            seat.ledger, seat.index, seat.size = ledger, index, len(text)
            try:
                await self._serve(seat, ledger, index, text)
            finally:
                seat.ledger, seat.began, seat.aborted = None, None, False
                feed.ended(seat.size)

    async def _serve(self, seat: _Seat, ledger: Ledger, index: int, text: bytes) -> None:
        custom_id, body = envelope_of(text)
        try:
            outcome = await self._call(seat, ledger, index, custom_id, body)
        except asyncio.CancelledError:
            if not seat.aborted:
                raise  # the worker is being torn down
            self._uncancel()
            return
        if seat.aborted:  # the engine swallowed the cancel; whoever aborted has noted the line's end
            self._uncancel()
        elif outcome is not None:
            ledger.end(index, outcome)

    @staticmethod
    def _uncancel() -> None:
        """The seat goes on after an abort, unless the worker is being torn down at the same time."""
        task = asyncio.current_task()
        if task is not None and task.uncancel() > 0:
            raise asyncio.CancelledError

    async def _call(self, seat: _Seat, ledger: Ledger, index: int, custom_id: str, body: bytes) -> Outcome | None:
        """The line's outcome; None when it goes back to the feed."""
        engine, now = self._engine, self._loop.time
        if engine.health() is not Health.READY:  # died with nothing in flight: no line is to blame
            self._feed.engine_went()
            self._feed.give_back(ledger, index)
            return None
        seat.began = began = now()
        generation = engine.generation
        try:
            reply = await engine.call(ledger.claim.endpoint, body)
        except EngineDead:
            return self._died(ledger, index, custom_id, generation)
        except EngineBusy:
            seat.began = None
            await self._later(seat, ledger, index)
            return None
        except Exception:
            # An engine's defect on one request must not end the others: they are other people's.
            log.exception("engine_call_failed", batch_id=ledger.claim.batch_id, chunk_id=ledger.chunk_id, index=index)
            return answered(custom_id, status=500, body=_CRASHED)
        seat.busy = 0
        ENGINE_CALL_SECONDS.observe(now() - began)
        return answered(custom_id, status=reply.status, body=reply.body)

    def _died(self, ledger: Ledger, index: int, custom_id: str, generation: int) -> Outcome | None:
        self._feed.engine_went()
        seen = ledger.deaths.setdefault(index, set())
        seen.add(generation)  # one death is one death, however often it is noticed
        deaths = len(seen)
        if deaths >= DEATHS_UNTIL_ERROR:
            log.error("line_killed_engine", batch_id=ledger.claim.batch_id, chunk_id=ledger.chunk_id, index=index)
            return answered(custom_id, status=500, body=_POISON)
        LINES_RERUN.inc()
        self._feed.give_back(ledger, index, alone=deaths >= DEATHS_UNTIL_ALONE)
        return None

    async def _later(self, seat: _Seat, ledger: Ledger, index: int) -> None:
        """The engine refused admission.

        The seat rests, longer each time, so that fewer requests ask until it has room.
        """
        seat.busy = min(seat.busy + 1, 16)
        seconds = min(BUSY_MAX_SECONDS, BUSY_FIRST_SECONDS * 2.0 ** (seat.busy - 1))
        await asyncio.sleep(seconds * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
        self._feed.give_back(ledger, index)
