"""Which line runs next: the queue in front of the window, over all chunks at hand.

Lines are dealt chunk by chunk in the order of their claims, without a barrier anywhere. Dealing pauses while the
engine is away, while leases are in doubt, and while too many results wait to become durable.

Lines that were in flight when an engine died come first: few of them at a time, beside lines that were not, and those
that were in flight at two deaths alone, with nothing else in flight. app/domain/suspicion.py says why.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from app.worker.job import Job
from app.worker.ledger import Backlog
from app.worker.patience import Bell

# Lines dealt in one turn of the event loop: a real engine spends about 1 ms of this loop on admitting one.
TURN_LINES = 32
# Seats woken in one turn. One is enough for an engine that answers at once: it takes all lines of the turn.
TURN_SEATS = 4
# Request bodies inside the engine; one above it still runs, by itself.
INFLIGHT_MAX_BYTES = 256 << 20


class Feed:
    """Deals lines to seats. `spawn(n)` is asked for up to n more seats when lines wait and no seat does; it says how
    many it made.

    At most `suspects_max` lines are in flight that were so at a death of the engine. `halted` is called at the stop.

    Dealing pauses while more than `backlog_max_bytes` of results wait.

    `hungry`: fewer than `low_water` lines are left to deal. When it becomes so, `bell` is rung: claim a chunk.
    """

    def __init__(self, *, backlog: Backlog, backlog_max_bytes: int, bell: Bell) -> None:
        self._queue: deque[Job] = deque()
        self._alone: deque[tuple[Job, int]] = deque()
        self._solo = False
        self._suspects: deque[tuple[Job, int]] = deque()
        self._suspects_running = 0
        self.suspects_max = 1
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._backlog = backlog
        self._backlog_max_bytes = backlog_max_bytes
        self.spawn: Callable[[int], int] = lambda seats: 0
        self.halted: Callable[[], None] = lambda: None
        self._turn_due = False
        self._dealt_this_turn = 0
        self._running_bytes = 0
        self._held_until = float("inf")
        self._loop: asyncio.AbstractEventLoop | None = None
        self.engine_up = False
        self.engine_lost = asyncio.Event()
        self.stopped = False
        self.running = 0
        self.dealt = 0
        self.low_water = 1
        self.hungry = True
        self._bell = bell
        self.idle = asyncio.Event()
        self.idle.set()
        backlog.drained = self.notify

    def add(self, job: Job) -> None:
        """Deal the lines of `job` after those of the jobs before it."""
        if job.todo:
            self._queue.append(job)
        self._measure()
        self.notify()

    def give_back(self, job: Job, index: int) -> None:
        """A dealt line did not end: deal it again, soon."""
        if job.lost or job.texts[index] is None:
            return
        if not self._held_apart(job, index):
            job.todo.appendleft(index)
            if job not in self._queue:
                self._queue.appendleft(job)
        self.notify()

    def remove(self, job: Job) -> None:
        """Deal nothing of `job` any more."""
        if job in self._queue:
            self._queue.remove(job)
        self._alone = deque(item for item in self._alone if item[0] is not job)
        self._suspects = deque(item for item in self._suspects if item[0] is not job)
        self._measure()
        self.notify()

    def take(self) -> tuple[Job, int] | None:
        """The next line, in flight from now on until `ended`; None when a seat must `wait`."""
        if self._dealt_this_turn >= TURN_LINES or self._paused():
            return None
        found = self._next()
        if found is None:
            return None
        if not self._dealt_this_turn:
            self._schedule_turn()
        self._dealt_this_turn += 1
        self.dealt += 1
        self.running += 1
        self.idle.clear()
        self._running_bytes += len(found[0].texts[found[1]] or b"")
        self._suspects_running += found[1] in found[0].doubts.known
        return found

    def ended(self, size: int, *, suspect: bool = False) -> None:
        """A dealt line of `size` bytes left the engine; it was among its job's suspects when it was dealt."""
        self.running -= 1
        self._running_bytes -= size
        self._suspects_running -= suspect
        self._solo = False
        if self.running == 0:
            self.idle.set()
        if self._alone or self._suspects or (self._waiters and self.running == 0):
            self.notify()

    async def wait(self) -> None:
        """Until there may be a line to take."""
        waiter: asyncio.Future[None] = self._event_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def undealt(self) -> int:
        """Lines left to deal."""
        return sum(len(job.todo) for job in self._queue) + len(self._suspects) + len(self._alone)

    def engine_came(self) -> None:
        """The engine answers."""
        self.engine_lost.clear()
        self.engine_up = True
        self.notify()

    def engine_went(self) -> None:
        """The engine is dead: deal nothing until `engine_came`."""
        self.engine_up = False
        self.engine_lost.set()

    @property
    def in_doubt(self) -> bool:
        """Leases may have lapsed: another worker may be running the same lines."""
        return self._event_loop().time() > self._held_until

    def hold_until(self, moment: float) -> None:
        """Deal until `moment` by the event loop's clock."""
        in_doubt = self.in_doubt
        self._held_until = moment
        if in_doubt:
            self.notify()
            self._bell.ring()

    def stop(self) -> None:
        """Deal nothing any more; waiting seats return."""
        self.stopped = True
        while self._waiters:
            _wake(self._waiters.popleft())
        self.halted()

    def notify(self) -> None:
        """Something changed: wake seats in the next turn, as many as there are lines for."""
        if not self.stopped:
            self._schedule_turn()

    def _paused(self) -> bool:
        return (
            not self.engine_up
            or self.stopped
            or self.in_doubt
            or self._solo
            or self._backlog.bytes > self._backlog_max_bytes
            or (self._running_bytes > INFLIGHT_MAX_BYTES and self.running > 0)
        )

    def _next(self) -> tuple[Job, int] | None:
        while self._alone:
            if self.running:
                return None
            job, index = self._alone.popleft()
            if job.texts[index] is not None:
                self._solo = True
                return job, index
        while self._suspects and self._suspects_running < self.suspects_max:
            job, index = self._suspects.popleft()
            if job.texts[index] is not None:
                return job, index
        queue = self._queue
        while queue:
            job = queue[0]
            while job.todo:
                index = job.todo.popleft()
                if not self._held_apart(job, index):
                    return job, index
            queue.popleft()
        return None

    def _held_apart(self, job: Job, index: int) -> bool:
        """True for a line that is not dealt with the others; it waits elsewhere now."""
        if index not in job.doubts.known:
            return False
        (self._alone if job.doubts.of(index).alone else self._suspects).append((job, index))
        self.notify()
        return True

    def _ready(self) -> int:
        """Lines that can be dealt now."""
        if self._alone:
            return int(not self.running)
        suspects = min(len(self._suspects), self.suspects_max - self._suspects_running)
        return sum(len(job.todo) for job in self._queue) + max(0, suspects)

    def _measure(self) -> None:
        if not self.hungry and self.undealt() < self.low_water:
            self.hungry = True
            self._bell.ring()

    def _schedule_turn(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._event_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self._dealt_this_turn = 0
        self._measure()
        if self._paused():
            return
        ready = self._ready()
        wanted = min(ready, TURN_SEATS)
        woken = 0
        while woken < wanted and self._waiters:
            woken += _wake(self._waiters.popleft())
        if woken < wanted:
            woken += self.spawn(wanted - woken)
        if 0 < woken < ready:
            self._schedule_turn()

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        # Kept: up to Python 3.11 asking for it is a system call each time.
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop


def _wake(waiter: asyncio.Future[None]) -> bool:
    """False for one that waits no more."""
    if waiter.done():
        return False
    waiter.set_result(None)
    return True
