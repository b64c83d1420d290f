"""A piece of the input, whose lines are dealt to the engine; and the rows of all pieces that are not durable yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from app.domain.result import Outcome
from app.offline.format import Rows
from app.offline.journal import COMPLETED, FAILED, Finished
from app.offline.line import request_of
from app.worker.doubts import Doubts
from app.worker.job import Request
from app.worker.ledger import Backlog


class Outbox:
    """Rows that wait to become durable. `kick` is set when many bytes wait, or when no line is left to run."""

    def __init__(self, *, backlog: Backlog, part_max_bytes: int) -> None:
        self._backlog = backlog
        self._part_max_bytes = part_max_bytes
        self._rows: list[Finished] = []
        self._bytes = 0
        self.running = 0  # lines that were handed to pieces and have not ended
        self.kick = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    def begin(self, lines: int) -> None:
        """So many lines are going to end."""
        self.running += lines
        if self.running:
            self.idle.clear()

    def put(self, line: Finished, *, ran: bool = True) -> None:
        """One has ended; not `ran` for a line that was never begun."""
        self._rows.append(line)
        self._bytes += len(line.row)
        self._backlog.bytes += len(line.row)
        self.running -= ran
        if not self.running:
            self.idle.set()
        if self._bytes >= self._part_max_bytes or not self.running:
            self.kick.set()

    def take(self) -> tuple[list[Finished], int]:
        """What waits, and its bytes, which the caller settles with the backlog."""
        taken = self._rows, self._bytes
        self._rows, self._bytes = [], 0
        self.kick.clear()
        return taken


class Piece:
    """A Job (app.worker.job) over lines of the input. `positions[i]` says where in the input line i stands."""

    def __init__(
        self, *, texts: Sequence[bytes], positions: Sequence[int], order: Iterable[int], rows: Rows, outbox: Outbox
    ) -> None:
        self.texts: list[bytes | None] = list(texts)
        self.todo: deque[int] = deque(order)
        self.doubts = Doubts()
        self.lost = False
        self._positions = positions
        self._rows = rows
        self._outbox = outbox

    def request(self, index: int) -> Request:
        text = self.texts[index]
        assert text is not None, "only lines that have not ended are dealt"
        return request_of(text)

    def answer(self, index: int, custom_id: str, *, status: int, body: bytes) -> None:
        if self.texts[index] is not None:
            self._end(index, self._rows.answered(custom_id, status=status, body=body))

    def fail(self, index: int, *, code: str, message: str) -> None:
        text = self.texts[index]
        if text is not None:
            self._end(index, self._rows.unanswered(request_of(text).custom_id, code=code, message=message))

    def names(self) -> Mapping[str, str]:
        return {"from_line": str(self._positions[0] + 1)}

    def _end(self, index: int, outcome: Outcome) -> None:
        self.texts[index] = None
        kind = COMPLETED if outcome.completed else FAILED
        self._outbox.put(Finished(self._positions[index], kind, outcome.row, outcome.usage))
