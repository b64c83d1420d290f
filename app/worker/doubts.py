"""What is known against the lines of a job, in memory and in the database. The rules: app/domain/suspicion.py.

Deaths of the engine are noted in memory as they happen and saved a little later. A line that may take the whole process
along is noted before it runs, as if it had: who comes after the process cannot ask it. As soon as it has its answer the
note is set right, and only then is the answer anybody's: what ends a process later is not the line's doing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from app.domain.result import error_body
from app.domain.suspicion import TRUSTED, Doubt
from app.engine.base import Reply
from app.store import suspects
from app.store.db import Database

#: The reply of a line that is not run again.
GUILTY = Reply(
    500,
    error_body(
        "The model server died repeatedly while it worked on this request.", type_="server_error", code="engine_error"
    ),
)


class Doubts:
    """Of one job. `known` holds the suspects: lines of which something is known. All of a `cautious` job's are noted.

    `record`, where there is one, makes what it is given durable; it says False when the line must not run.
    """

    def __init__(self, known: Mapping[int, Doubt] | None = None, *, cautious: bool = False) -> None:
        self.known = dict(known or {})
        self._cautious = cautious
        self._met: dict[int, int] = {}  # line → generation of the engine whose death was counted last
        self._unsaved: set[int] = set()
        self._noted: set[int] = set()  # in flight; the database expects the worst
        self.record: Callable[[Mapping[int, Doubt]], Awaitable[bool]] | None = None

    def of(self, index: int) -> Doubt:
        """What is known of line `index`."""
        return self.known.get(index, TRUSTED)

    def died(self, index: int, *, generation: int, killed: bool) -> Doubt:
        """The engine of this generation died under the line. One death is one death, however often it is noticed."""
        doubt = self.of(index)
        if self._met.get(index) != generation:
            self._met[index] = generation
            doubt = self.known[index] = doubt.after_death(killed=killed)
            self._unsaved.add(index)
        return doubt

    def noteworthy(self, index: int) -> bool:
        """The line must `begin` before it runs."""
        return (self._cautious or (index in self.known and self.of(index).alone)) and self.record is not None

    async def begin(self, index: int) -> bool:
        """Note that the line is about to run; False when it must not."""
        assert self.record is not None
        # First, for a caller that is cancelled here cannot know whether the note was made.
        self._noted.add(index)
        self._unsaved.add(index)
        if await self.record({index: self.of(index).after_death(killed=True)}):
            return True
        self._noted.discard(index)
        return False

    async def answered(self, index: int) -> None:
        """The line has its answer: set its note right, if it has one."""
        if index in self._noted and self.record is not None and await self.record({index: self.of(index)}):
            self._unsaved.discard(index)

    def ended(self, index: int) -> None:
        """The line is no more in flight; a note that still expects the worst is unsaved."""
        if self._noted:
            self._noted.discard(index)

    def take_unsaved(self) -> dict[int, Doubt]:
        """What the database does not say yet of lines that are not in flight; the caller saves it."""
        lines = self._unsaved - self._noted
        self._unsaved -= lines
        return {index: self.of(index) for index in lines}

    def give_back(self, lines: Iterable[int]) -> None:
        """These could not be saved."""
        self._unsaved.update(lines)


async def record(database: Database, chunk_id: str, token: str, doubts: Mapping[int, Doubt]) -> None:
    """Make `doubts` durable, fenced by the lease. Raises LeaseLost, Unavailable."""
    async with database.write() as tx:
        await suspects.record(tx, chunk_id, token, doubts)
