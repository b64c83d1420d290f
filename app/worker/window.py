"""The seats in front of the engine: as many requests in flight as it wants, whatever chunk or batch they come from.

A seat is a task that lives as long as the worker: it takes a line, calls the engine, notes the outcome, and takes the
next. So no line waits for another one's chunk, and no line costs a task. Aborting a line cancels its seat's call,
never the seat; a call that ignores that for GIVE_UP_SECONDS keeps its task, and another seat takes its place.
"""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

import structlog

from app.domain.result import TIMED_OUT, error_body
from app.engine.base import Engine, Health, Reply
from app.errors import EngineBusy, EngineDead
from app.telemetry import ENGINE_CALL_SECONDS, LINES_RERUN
from app.worker.doubts import GUILTY
from app.worker.feed import Feed
from app.worker.job import Job, Request

log = structlog.get_logger()

# An engine that lets go of an aborted call does so within 10 s.
GIVE_UP_SECONDS = 20.0
BUSY_FIRST_SECONDS = 0.05
BUSY_MAX_SECONDS = 2.0

_CRASHED = error_body("The model server failed on this request.", type_="server_error", code="engine_error")


class RebuiltEngine(Engine, Protocol):
    """An engine that is built anew when it dies, and can be waited for. Each rebuild raises `generation`."""

    generation: int

    async def wait_ready(self, stop: asyncio.Event | None = None) -> bool:
        """True once it answers; False when `stop` was set first."""


class _Seat:
    """One place in the window. `job` is None while it is free; `aborted_at`: since when its call is being cancelled."""

    __slots__ = ("aborted_at", "began", "busy", "given_up", "index", "job", "size", "suspect", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.job: Job | None = None
        self.index = 0
        self.size = 0
        self.suspect = False
        self.began: float | None = None
        self.aborted_at: float | None = None
        self.given_up = False
        self.busy = 0


class Window:
    """At most `size` seats, made when first needed; none before `size` is set.

    A task of `group` watches over the seats, so that a seat's death is noticed; it ends when the feed has stopped and
    the seats have returned.
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
        self._seats: dict[asyncio.Task[None], _Seat] = {}
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        feed.spawn, feed.halted = self._grow, self._changed.set
        group.create_task(self._mind_seats(), name="window")

    def abort(self, job: Job) -> None:
        """Abort, in the engine, every line of `job` in flight. What became of the line is the caller's to note."""
        for seat in self._seats.values():
            if seat.job is job:
                self._abort(seat)

    def abort_all(self) -> None:
        """As `abort`, for all jobs."""
        for seat in self._seats.values():
            if seat.job is not None:
                self._abort(seat)

    def time_out(self) -> None:
        """End with an error row every line whose call began too long ago, and give up calls that ignore their abort.

        Cheaper than a timer a line: call it often.
        """
        self.give_up(GIVE_UP_SECONDS)
        before = self._loop.time() - self._timeout_seconds
        code, message = TIMED_OUT
        for seat in self._seats.values():
            job = seat.job
            if job is None or seat.aborted_at is not None or seat.began is None or seat.began > before:
                continue
            job.fail(seat.index, code=code, message=message)
            self._abort(seat)
            log.info("line_timed_out", **job.names(), index=seat.index)

    def _grow(self, seats: int) -> int:
        made = max(0, min(seats, self.size - len(self._seats)))
        for _ in range(made):
            seat = _Seat()
            seat.task = task = asyncio.create_task(self._sit(seat), name=f"seat-{len(self._seats) + 1}")
            self._seats[task] = seat
            task.add_done_callback(self._seat_ended)
        return made

    def _abort(self, seat: _Seat) -> None:
        if seat.aborted_at is None and seat.task is not None:
            seat.aborted_at = self._loop.time()
            seat.task.cancel()

    def give_up(self, seconds: float = 0) -> None:
        """Free the seats whose call goes on although it was aborted so long ago. Their tasks are nobody's then."""
        before = self._loop.time() - seconds
        for task, seat in list(self._seats.items()):
            if seat.job is not None and seat.aborted_at is not None and seat.aborted_at <= before:
                log.warning("seat_given_up", **seat.job.names(), index=seat.index)
                del self._seats[task]
                seat.given_up = True
                self._leave(seat)
                self._changed.set()
                self._feed.notify()  # another seat may be made

    def _leave(self, seat: _Seat) -> None:
        if seat.job is not None:
            seat.job.doubts.ended(seat.index)
            seat.job, seat.began, seat.aborted_at = None, None, None
            self._feed.ended(seat.size, suspect=seat.suspect)

    def _seat_ended(self, task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        self._failure = self._failure or failure
        self._seats.pop(task, None)
        self._changed.set()

    async def _mind_seats(self) -> None:
        try:
            while self._failure is None and not (self._feed.stopped and not self._seats):
                await self._changed.wait()
                self._changed.clear()
        finally:
            tasks = list(self._seats)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=GIVE_UP_SECONDS)
        if self._failure is not None:
            raise self._failure

    async def _sit(self, seat: _Seat) -> None:
        feed = self._feed
        while not (feed.stopped or seat.given_up):
            dealt = feed.take()
            if dealt is None:
                await feed.wait()
                continue
            job, index = dealt
            text = job.texts[index]
            assert text is not None, "only lines that have not ended are dealt"
            seat.job, seat.index, seat.size, seat.suspect = job, index, len(text), index in job.doubts.known
            try:
                await self._serve(seat, job, index)
            finally:
                self._leave(seat)

    async def _serve(self, seat: _Seat, job: Job, index: int) -> None:
        request = job.request(index)
        try:
            reply = await self._call(seat, job, index, request)
        except asyncio.CancelledError:
            if seat.aborted_at is None:
                raise  # the worker is being torn down
            self._uncancel()
            return
        if seat.given_up:
            return
        if seat.aborted_at is not None:  # the engine swallowed the cancel; whoever aborted has noted the line's end
            self._uncancel()
        elif reply is not None:
            job.answer(index, request.custom_id, status=reply.status, body=reply.body)

    @staticmethod
    def _uncancel() -> None:
        """The seat goes on after an abort, unless the worker is being torn down at the same time."""
        task = asyncio.current_task()
        if task is not None and task.uncancel() > 0:
            raise asyncio.CancelledError

    async def _call(self, seat: _Seat, job: Job, index: int, request: Request) -> Reply | None:
        """What the line is answered; None when it goes back to the feed."""
        engine, now = self._engine, self._loop.time
        if job.doubts.noteworthy(index) and not await job.doubts.begin(index):
            self._feed.give_back(job, index)
            return None
        if engine.health() is not Health.READY:  # died with nothing in flight: no line is to blame
            self._feed.engine_went()
            self._feed.give_back(job, index)
            return None
        seat.began = began = now()
        generation = engine.generation
        try:
            reply = await engine.call(request.path, request.body)
        except EngineDead as exc:
            return self._died(job, index, generation=generation, killed=exc.killed)
        except EngineBusy:
            seat.began = None
            await self._later(seat, job, index)
            return None
        except Exception:
            # An engine's defect on one request must not end the others: they are other people's.
            log.exception("engine_call_failed", **job.names(), index=index)
            return Reply(500, _CRASHED)
        seat.busy = 0
        ENGINE_CALL_SECONDS.observe(now() - began)
        if job.doubts.noteworthy(index):
            await job.doubts.answered(index)
        return reply

    def _died(self, job: Job, index: int, *, generation: int, killed: bool) -> Reply | None:
        self._feed.engine_went()
        doubt = job.doubts.died(index, generation=generation, killed=killed)
        if doubt.guilty:
            log.error("line_killed_engine", **job.names(), index=index, deaths=doubt.deaths)
            return GUILTY
        LINES_RERUN.inc()
        self._feed.give_back(job, index)
        return None

    async def _later(self, seat: _Seat, job: Job, index: int) -> None:
        """The engine refused admission.

        The seat rests, longer each time, so that fewer requests ask until it has room.
        """
        seat.busy = min(seat.busy + 1, 16)
        seconds = min(BUSY_MAX_SECONDS, BUSY_FIRST_SECONDS * 2.0 ** (seat.busy - 1))
        await asyncio.sleep(seconds * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
        self._feed.give_back(job, index)
