"""What is known about one leased chunk, in memory: which lines have ended, and which of their rows are not durable yet.

    todo ──dealt──► running ──► pending ──commit──► committed part ──seal──► segment
      ▲                │
      └── engine died, engine busy, worker stopping

A line ends once: its row goes to `pending` and its text is dropped. `pending` rows leave by `take` for a part or for
the seal.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from app.domain.chunk import Claim, Part, Tally
from app.domain.part import COMPLETED, FAILED, UNRUN, Row
from app.domain.request import custom_id_of, envelope_of
from app.domain.result import CANCELLED, EXPIRED, LOST, POISONED, Outcome, answered, unanswered
from app.domain.usage import Usage
from app.worker.doubts import GUILTY, Doubts
from app.worker.job import Request


class Backlog:
    """Bytes of result rows that are in memory and not durable yet, over all chunks.

    `drained` is called whenever it shrinks.
    """

    __slots__ = ("bytes", "drained")

    def __init__(self) -> None:
        self.bytes = 0
        self.drained: Callable[[], None] = lambda: None

    def settle(self, size: int) -> None:
        """So many bytes are durable, or were given up."""
        self.bytes -= size
        self.drained()


# Lines that a user or a deadline cut off are not counted as failed, all others are.
_WHY_CLOSED = {
    "cancelled": (UNRUN, *CANCELLED),
    "expired": (UNRUN, *EXPIRED),
    "poisoned": (FAILED, *POISONED),
    "lost": (FAILED, *LOST),
}


class Ledger:
    """One chunk under one lease. `texts[i]` is line i's text until it has ended; `order` is the order to send them in.

    A text that is lost is empty; such a ledger is closed before anything of it is dealt.

    `kick` wakes whoever makes it durable: all lines have ended, enough bytes are pending, or the lease is lost.
    """

    def __init__(
        self,
        claim: Claim,
        *,
        texts: Sequence[bytes],
        order: Iterable[int],
        ended: Collection[int] = (),
        part_max_bytes: int,
        backlog: Backlog,
        doubts: Doubts | None = None,
    ) -> None:
        self.claim = claim
        self.texts: list[bytes | None] = list(texts)
        for index in ended:
            self.texts[index] = None
        self.todo: deque[int] = deque(index for index in order if self.texts[index] is not None)
        self.left = len(self.todo)
        self.doubts = doubts or Doubts()
        self.parts: list[Part] = list(claim.parts)
        self.pending: list[Row] = []
        self.pending_bytes = 0
        self.model: str | None = None
        self.model_told = False
        self.closing: str | None = None
        self.lost = False
        self.kick = asyncio.Event()
        self._part_max_bytes = part_max_bytes
        self._backlog = backlog
        self._counts = [0, 0, 0]
        self._usage = [0, 0, 0, 0, 0]
        if not self.left:
            self.kick.set()

    @property
    def chunk_id(self) -> str:
        return self.claim.chunk_id

    @property
    def done(self) -> bool:
        """Every line has ended."""
        return self.left == 0

    def is_running(self) -> bool:
        """Lines are left, and the right to run them."""
        return self.left > 0 and not self.lost

    def request(self, index: int) -> Request:
        """As Job.request: every line of a chunk goes to its batch's endpoint."""
        text = self.texts[index]
        assert text is not None, "only lines that have not ended are dealt"
        custom_id, body = envelope_of(text)
        return Request(custom_id, self.claim.endpoint, body)

    def answer(self, index: int, custom_id: str, *, status: int, body: bytes) -> None:
        """As Job.answer."""
        self.end(index, answered(custom_id, status=status, body=body))

    def fail(self, index: int, *, code: str, message: str) -> None:
        """As Job.fail."""
        text = self.texts[index]
        if text is not None:
            self.end(index, unanswered(custom_id_of(text), code=code, message=message))

    def end_guilty(self) -> list[int]:
        """Give every line that is not run again its error row; which those are."""
        guilty = [index for index in self.todo if self.doubts.of(index).guilty]
        for index in guilty:
            self.todo.remove(index)
            text = self.texts[index]
            if text is not None:
                self.answer(index, custom_id_of(text), status=GUILTY.status, body=GUILTY.body)
        return guilty

    def names(self) -> Mapping[str, str]:
        """As Job.names."""
        return {"batch_id": self.claim.batch_id, "chunk_id": self.chunk_id}

    def end(self, index: int, outcome: Outcome) -> None:
        """Line `index` ran and ended so. Ignored when it has ended before, or when the lease is lost."""
        if self.texts[index] is None or self.lost:
            return
        self._add(index, COMPLETED if outcome.completed else FAILED, outcome.row)
        if outcome.completed:
            usage, stated = self._usage, outcome.usage
            usage[0] += stated.input_tokens
            usage[1] += stated.cached_tokens
            usage[2] += stated.output_tokens
            usage[3] += stated.reasoning_tokens
            usage[4] += stated.total_tokens
            if self.model is None:
                self.model = outcome.model

    def close(self, why: str) -> None:
        """Write off every line that has not ended.

        The batch was `cancelled`, has `expired` or was `poisoned` (its lines killed too many engines), or the texts are
        `lost`.
        """
        self.closing = why
        self.todo.clear()
        kind, code, message = _WHY_CLOSED[why]
        for index, text in enumerate(self.texts):
            if text is not None:
                # Where the name of a line is lost too, its place is all there is to tell.
                place = "" if text else f" It stood near line {self.claim.spec.first_line + index} of the file."
                custom_id = custom_id_of(text) if text else None
                self._add(index, kind, unanswered(custom_id, code=code, message=message + place).row)

    def lose(self) -> None:
        """The lease is gone: nothing of this ledger may be written any more."""
        self.lost = True
        self.todo.clear()
        self.pending.clear()
        self._backlog.settle(self.pending_bytes)
        self.pending_bytes = 0
        self.kick.set()

    def take(self) -> tuple[list[Row], Tally]:
        """The pending rows and what they add up to.

        They are the caller's now, who settles their bytes with the backlog.
        """
        rows, tally = self.pending, self._tally()
        self.pending, self.pending_bytes = [], 0
        self._counts, self._usage = [0, 0, 0], [0, 0, 0, 0, 0]
        if not self.done and not self.lost:
            self.kick.clear()
        return rows, tally

    def _tally(self) -> Tally:
        completed, failed, unrun = self._counts
        return Tally(completed, failed, unrun, Usage(*self._usage))

    def _add(self, index: int, kind: int, text: bytes) -> None:
        self.texts[index] = None
        self.pending.append(Row(index, kind, text))
        self.pending_bytes += len(text)
        self._backlog.bytes += len(text)
        self._counts[kind] += 1
        self.left -= 1
        if self.left == 0 or self.pending_bytes >= self._part_max_bytes:
            self.kick.set()
