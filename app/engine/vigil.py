"""Notices the end of processes at once and without polling, also of those that are not our children."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress


class Vigil:
    """Calls `ended` once, on the running event loop, when the first of `pids` has ended. `close` when done."""

    def __init__(self, pids: Iterable[int], *, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._handles: list[int] = []
        for pid in pids:
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                self._loop.call_soon(self._first)
                continue
            self._handles.append(handle)
            self._loop.add_reader(handle, self._first)  # readable from its end on

    def close(self) -> None:
        """Watch no more. Idempotent."""
        self._ended = _nothing
        while self._handles:
            handle = self._handles.pop()
            self._loop.remove_reader(handle)
            with suppress(OSError):
                os.close(handle)

    def _first(self) -> None:
        ended = self._ended
        self.close()
        ended()


def _nothing() -> None:
    """Nobody is told any more."""
