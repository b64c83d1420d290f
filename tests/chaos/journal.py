"""What the engines ran, and whether each repetition is excused by what was done to the service."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Excuse:
    """A mishap that may make lines run again: those that `pid` (None: anybody) had begun, and that were not durable.

    From `begin` to `end` by the machine's steady clock, in nanoseconds. A line begun before the end may run again
    after the beginning.
    """

    what: str
    pid: int | None
    begin: int
    end: int
    durable: frozenset[str] = field(repr=False)

    def covers(self, custom_id: str, first: tuple[int, int], second: tuple[int, int]) -> bool:
        """Whether the run `first` (nanoseconds, pid) of a line excuses the run `second` that follows it."""
        mine = self.pid is None or first[1] == self.pid
        return mine and first[0] <= self.end and second[0] >= self.begin and custom_id not in self.durable


@dataclass
class Verdict:
    """`rerun`: runs beyond a line's first. `bound`: lines in flight or not durable, over all mishaps."""

    ran: int = 0
    rerun: int = 0
    bound: int = 0
    unexcused: list[str] = field(default_factory=list)
    never: set[str] = field(default_factory=set)


class Journal:
    """The files that echo engines write (app/engine/echo.py)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def runs(self, digests: Mapping[str, str]) -> dict[str, list[tuple[int, int]]]:
        """Per custom_id its runs in order of time, as (nanoseconds, pid); `digests` names the lines."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        text = self._path.read_bytes().decode() if self._path.exists() else ""
        for line in text.splitlines():
            moment, pid, digest = line.split(" ")
            if digest in digests:
                found[digests[digest]].append((int(moment), int(pid)))
        for runs in found.values():
            runs.sort()
        return dict(found)


def judge(runs: Mapping[str, list[tuple[int, int]]], excuses: list[Excuse]) -> Verdict:
    """Every repetition needs an excuse of its own line: a result that is committed is never made again."""
    verdict = Verdict(ran=len(runs))
    for custom_id, moments in runs.items():
        for first, second in pairwise(moments):
            verdict.rerun += 1
            if not any(excuse.covers(custom_id, first, second) for excuse in excuses):
                verdict.unexcused.append(f"{custom_id} ran at {first} and again at {second}")
    for excuse in excuses:
        verdict.bound += sum(
            1
            for custom_id, moments in runs.items()
            if custom_id not in excuse.durable
            and any(moment <= excuse.end and excuse.pid in (None, pid) for moment, pid in moments)
        )
    return verdict
