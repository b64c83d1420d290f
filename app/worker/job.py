"""What the feed and the window know of the lines they deal: a leased chunk (`Ledger`), or a piece of a local file.

A line is dealt with `request`, and ends once: by `answer` or by `fail`. Whoever owns the job makes what it ends with
durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from app.worker.doubts import Doubts


class Request(NamedTuple):
    """What to ask the engine: `path` is the endpoint, `body` the JSON as the user wrote it."""

    custom_id: str
    path: str
    body: bytes


class Job(Protocol):
    """A run of lines. `texts[i]` is line i's text until it has ended; `todo` holds those to deal, in order.

    `doubts` knows which lines were in flight when an engine died. A `lost` job takes no more answers.
    """

    texts: list[bytes | None]
    todo: deque[int]
    doubts: Doubts
    lost: bool

    def request(self, index: int) -> Request:
        """The request of line `index`, which has not ended."""

    def answer(self, index: int, custom_id: str, *, status: int, body: bytes) -> None:
        """Line `index` ran, and this is the engine's reply. Ignored when the line has ended before."""

    def fail(self, index: int, *, code: str, message: str) -> None:
        """Line `index` gets no reply. Ignored when the line has ended before."""

    def names(self) -> Mapping[str, str]:
        """Fields that name the job in the log."""
