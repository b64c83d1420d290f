"""A scheduler whose batch requests stand aside, with their cache, while a client's are under way.

vLLM's priority alone only orders who enters: a client waits for a seat, and then shares each step with everybody else.
`YieldingSteps` goes in front of vLLM's scheduler (app/engine/vllm_library.py) and decides for each step who takes part:

    no client about                    everybody; batches leave an eighth of the seats free
    a client runs or waits             clients only
    … but one step of eight            everybody, so that a batch never stands still
    … or the cache is nearly full      everybody: who stands aside might hold what a client needs
"""

from __future__ import annotations

import math
from typing import Any

#: Priorities inside the engine; the lower one goes first.
INTERACTIVE = 0
BATCH = 1

BATCH_STEP_EVERY = 8
RESERVED_SHARE = 0.125
CACHE_MAX_USAGE = 0.9

#: What is needed of vLLM's scheduler, which is no public interface. A release that lacks it takes its own steps.
_NEEDED = ("max_num_active_reqs", "running", "waiting", "policy", "kv_cache_manager")


class YieldingSteps:
    """A mixin over vLLM's Scheduler. The class that is made of both brings `new_queue`, from a policy to a queue."""

    running: list[Any]
    waiting: Any
    new_queue: Any

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        super().__init__(*arguments, **fields)
        self._fits = all(hasattr(self, name) for name in _NEEDED)
        self._seats: int = getattr(self, "max_num_active_reqs", 0)
        # One seat alone cannot be shared.
        self._batch_seats = max(1, self._seats - math.ceil(self._seats * RESERVED_SHARE))
        self._steps_beside_clients = 0

    def schedule(self, *arguments: Any, **fields: Any) -> Any:
        """One step."""
        if not self._fits:
            return self._everybody(None, *arguments, **fields)
        client_waits = bool(self.waiting) and self.waiting.peek_request().priority < BATCH
        if not client_waits and all(request.priority >= BATCH for request in self.running):
            self._steps_beside_clients = 0
            return self._everybody(self._batch_seats, *arguments, **fields)
        self._steps_beside_clients += 1
        crowded = self.kv_cache_manager.usage > CACHE_MAX_USAGE  # type: ignore[attr-defined]
        if crowded or self._steps_beside_clients % BATCH_STEP_EVERY == 0:
            seats = self._seats if crowded and client_waits else self._batch_seats
            return self._everybody(seats, *arguments, **fields)
        return self._clients_only(*arguments, **fields)

    def _everybody(self, seats: int | None, *arguments: Any, **fields: Any) -> Any:
        """An ordinary step, which admits nobody beyond `seats`."""
        if seats is not None:
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
        while queue and queue.peek_request().priority < BATCH:
            self.waiting.add_request(queue.pop_request())
        try:
            return self._everybody(self._seats - len(aside), *arguments, **fields)
        finally:
            for request in self.waiting:
                queue.add_request(request)
            self.waiting = queue
            self.running = [*aside, *self.running]
