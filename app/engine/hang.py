"""Tells an engine that does nothing from one that has nothing to do, and from one that is slow.

An engine hangs when it has requests inside and did nothing for any of them for a set time: no token, no answer. One
very long request is no hang, since its tokens come. Engines that have no pulse (app.engine.base.Killable) are not
watched; for them only the deadline of each request helps.
"""

from __future__ import annotations

from app.engine.base import Pulse

# While this process stands still itself (frozen, suspended, starved) it sees nothing of the engine: of the time between
# two looks, at most this much counts.
LOOK_MAX_SECONDS = 1.0


class HangWatch:
    """Look often; a look that is `hung` saw no beat for `hang_seconds`. With 0 none ever is."""

    def __init__(self, hang_seconds: float) -> None:
        self._hang_seconds = hang_seconds
        self._beats: int | None = None
        self._looked_at: float | None = None
        self.still_seconds = 0.0

    def hung(self, pulse: Pulse, *, now: float) -> bool:
        """`now` by a steady clock, in seconds."""
        passed = 0.0 if self._looked_at is None else min(now - self._looked_at, LOOK_MAX_SECONDS)
        self._looked_at = now
        if pulse.inside and pulse.beats == self._beats:
            self.still_seconds += passed
        else:
            self._beats, self.still_seconds = pulse.beats, 0.0
        return 0 < self._hang_seconds <= self.still_seconds
