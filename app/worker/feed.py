"""Which line runs next: the queue in front of the window, over all leased chunks.

Lines are dealt chunk by chunk in the order of their claims, without a barrier anywhere. Dealing pauses while the
engine is away, while leases are in doubt, and while too many results wait to become durable. A line that was in
flight at two deaths of the engine is dealt alone: nothing else is in flight with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from app.worker.ledger import Backlog, Ledger
from app.worker.patience import Bell

# Lines dealt in one turn of the event loop: a real engine spends about 1 ms of this loop on admitting one.
TURN_LINES = 32
# Request bodies inside the engine; one above it still runs, by itself.
INFLIGHT_MAX_BYTES = 256 << 20


class Feed:
    """Deals lines to seats. `spawn(n)` is asked for up to n more seats when lines wait and no seat does.

    Dealing pauses while more than `backlog_max_bytes` of results wait.

    `hungry`: fewer than `low_water` lines are left to deal. When it becomes so, `bell` is rung: claim a chunk.
    """

    def __init__(self, *, backlog: Backlog, backlog_max_bytes: int, bell: Bell) -> None:
        self._queue: deque[Ledger] = deque()
        self._alone: deque[tuple[Ledger, int]] = deque()
        self._solo = False
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._backlog = backlog
        self._backlog_max_bytes = backlog_max_bytes
        self.spawn: Callable[[int], None] = lambda seats: None
        self._turn_due = False
        self._dealt_this_turn = 0
        self._running_bytes = 0
        self._suspended = False
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

    def add(self, ledger: Ledger) -> None:
        """Deal the lines of `ledger` after those of the ledgers before it."""
        if ledger.todo:
            self._queue.append(ledger)
        self._measure()
        self.notify()

    def give_back(self, ledger: Ledger, index: int, *, alone: bool = False) -> None:
        """A dealt line did not end: deal it again, soon; `alone` for one that may kill the engine."""
        if ledger.lost or ledger.texts[index] is None:
            return
        if alone:
            self._alone.append((ledger, index))
        else:
            ledger.todo.appendleft(index)
            if ledger not in self._queue:
                self._queue.appendleft(ledger)
        self.notify()

    def remove(self, ledger: Ledger) -> None:
        """Deal nothing of `ledger` any more."""
        if ledger in self._queue:
            self._queue.remove(ledger)
        self._alone = deque(item for item in self._alone if item[0] is not ledger)
        self._measure()
        self.notify()

    def take(self) -> tuple[Ledger, int] | None:
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
        self._measure()
        return found

    def ended(self, size: int) -> None:
        """A dealt line of `size` bytes left the engine."""
        self.running -= 1
        self._running_bytes -= size
        self._solo = False
        if self.running == 0:
            self.idle.set()
        if self._alone or (self._waiters and self.running == 0):
            self.notify()

    async def wait(self) -> None:
        """Until there may be a line to take."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def undealt(self) -> int:
        """Lines left to deal."""
        return sum(len(ledger.todo) for ledger in self._queue) + len(self._alone)

    def engine_came(self) -> None:
        """The engine answers."""
        self.engine_lost.clear()
        self.engine_up = True
        self.notify()

    def engine_went(self) -> None:
        """The engine is dead: deal nothing until `engine_came`."""
        self.engine_up = False
        self.engine_lost.set()

    def suspend(self, suspended: bool) -> None:
        """Leases are in doubt (or no more): another worker may be running the same lines."""
        self._suspended = suspended
        self.notify()

    def stop(self) -> None:
        """Deal nothing any more; waiting seats return."""
        self.stopped = True
        while self._waiters:
            _wake(self._waiters.popleft())

    def notify(self) -> None:
        """Something changed: wake seats in the next turn, as many as there are lines for."""
        if not self.stopped:
            self._schedule_turn()

    def _paused(self) -> bool:
        return (
            not self.engine_up
            or self.stopped
            or self._suspended
            or self._solo
            or self._backlog.bytes > self._backlog_max_bytes
            or (self._running_bytes > INFLIGHT_MAX_BYTES and self.running > 0)
        )

    def _next(self) -> tuple[Ledger, int] | None:
        while self._alone:
            if self.running:
                return None
            ledger, index = self._alone.popleft()
            if ledger.texts[index] is not None:
                self._solo = True
                return ledger, index
        queue = self._queue
        while queue:
            ledger = queue[0]
            if ledger.todo:
                return ledger, ledger.todo.popleft()
            queue.popleft()
        return None

    def _measure(self) -> None:
        if not self.hungry and self.undealt() < self.low_water:
            self.hungry = True
            self._bell.ring()

    def _schedule_turn(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self._dealt_this_turn = 0
        if self._paused():
            return
        ready = self.undealt() if not self._alone else int(not self.running)
        wanted = min(ready, TURN_LINES)
        woken = 0
        while woken < wanted and self._waiters:
            _wake(self._waiters.popleft())
            woken += 1
        if woken < wanted:
            self.spawn(wanted - woken)
        elif ready > wanted and self._waiters:
            self._schedule_turn()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
