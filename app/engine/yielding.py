"""A scheduler whose batch requests stand aside, with their cache, while a client's are under way.

vLLM's priority alone only orders who enters: a client waits for a seat, and then shares each step with everybody else.
`YieldingSteps` goes in front of vLLM's scheduler (app/engine/vllm_library.py) and decides for each step who takes part:

    no client about                    everybody; for a minute after one, batches leave an eighth of the seats free
    a client runs or waits             clients only
    … but now and then                 everybody, so that a batch never stands still: at most one step of eight, and at
                                       most a fifth of the time, since a full step may take as long as many small ones
    … or the cache is nearly full      everybody: who stands aside might hold what a client needs
    … or no client could take part     everybody, next: a client's grammar is being made, say, or its prompt has no room
"""

from __future__ import annotations

import math
import time
from typing import Any

#: Priorities inside the engine; the lower one goes first.
INTERACTIVE = 0
BATCH = 1

BATCH_STEP_EVERY = 8
#: Clients have the engine to themselves for so many times what the last step with a batch took.
CLIENTS_TIMES = 4
RESERVED_SHARE = 0.125
#: Seats are left free for so long after the last client; the first one of a while waits for a seat.
RESERVED_SECONDS = 60.0
CACHE_MAX_USAGE = 0.9
#: Clients moved for one step beyond the free seats: those at the head may not be able to run yet.
_SPARE_CLIENTS = 16

#: What is needed of vLLM's scheduler, which is no public interface. A release that lacks it takes its own steps.
_NEEDED = ("max_num_active_reqs", "running", "waiting", "policy", "kv_cache_manager")


class YieldingSteps:
    """A mixin over vLLM's Scheduler. The class that is made of both brings `new_queue`, from a policy to a queue."""

    running: list[Any]
    waiting: Any
    new_queue: Any
    clock = staticmethod(time.monotonic)

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        super().__init__(*arguments, **fields)
        self._fits = all(hasattr(self, name) for name in _NEEDED)
        self._seats: int = getattr(self, "max_num_active_reqs", 0)
        # One seat alone cannot be shared.
        self._batch_seats = max(1, self._seats - math.ceil(self._seats * RESERVED_SHARE))
        self._steps_beside_clients = 0
        self._clients_idle = False
        self._client_at = -math.inf
        # When the last step with a batch began, None once it has ended; how long it took; since when clients are alone.
        self._began_at: float | None = None
        self._step_seconds = 0.0
        self._alone_since = 0.0

    def schedule(self, *arguments: Any, **fields: Any) -> Any:
        """One step."""
        if not self._fits:
            return self._everybody(None, *arguments, **fields)
        self._look_at_the_clock()
        client_waits = bool(self.waiting) and self.waiting.peek_request().priority < BATCH
        if not client_waits and all(request.priority >= BATCH for request in self.running):
            self._steps_beside_clients = 0
            lately = self.clock() - self._client_at < RESERVED_SECONDS
            return self._everybody(self._batch_seats if lately else self._seats, *arguments, **fields)
        self._client_at = self.clock()
        self._steps_beside_clients += 1
        crowded = self.kv_cache_manager.usage > CACHE_MAX_USAGE  # type: ignore[attr-defined]
        if crowded or self._clients_idle or self._batch_is_due():
            self._clients_idle = False
            self._steps_beside_clients = 0
            seats = self._seats if crowded and client_waits else self._batch_seats
            return self._everybody(seats, *arguments, **fields)
        step = self._clients_only(*arguments, **fields)
        self._clients_idle = not step.total_num_scheduled_tokens
        return step

    def _look_at_the_clock(self) -> None:
        """A step lasts until the next one is asked for, unless nobody was left to go on."""
        if self._began_at is not None:
            self._alone_since = self.clock()
            if self.running:
                self._step_seconds = self._alone_since - self._began_at
            self._began_at = None

    def _batch_is_due(self) -> bool:
        alone_seconds = self.clock() - self._alone_since
        return self._steps_beside_clients >= BATCH_STEP_EVERY and alone_seconds >= CLIENTS_TIMES * self._step_seconds

    def _everybody(self, seats: int | None, *arguments: Any, **fields: Any) -> Any:
        """An ordinary step, which admits nobody beyond `seats`."""
        if seats is not None:
            self._began_at = self.clock()
            self.max_num_active_reqs = seats
        try:
            return super().schedule(*arguments, **fields)  # type: ignore[misc]
        finally:
            if seats is not None:
                self.max_num_active_reqs = self._seats

    def _clients_only(self, *arguments: Any, **fields: Any) -> Any:
        """A step without batches. Those who stand aside keep their seats."""
        aside = [request for request in self.running if request.priority >= BATCH]
        queue = self.waiting
        self.running = [request for request in self.running if request.priority < BATCH]
        self.waiting = self.new_queue(self.policy)  # type: ignore[attr-defined]
        room = self._seats - len(aside) - len(self.running) + _SPARE_CLIENTS
        while queue and queue.peek_request().priority < BATCH and len(self.waiting) < room:
            self.waiting.add_request(queue.pop_request())
        try:
            self.max_num_active_reqs = self._seats - len(aside)
            return super().schedule(*arguments, **fields)  # type: ignore[misc]
        finally:
            self.max_num_active_reqs = self._seats
            for request in self.waiting:
                queue.add_request(request)
            self.waiting = queue
            self.running = [*aside, *self.running]
