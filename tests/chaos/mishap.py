"""What is done to a fleet, one thing after the other, all of it decided by a seed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.failpoint import NAMES
from tests.chaos.fleet import LEASE_SECONDS, Fleet, Member
from tests.chaos.storage import PrivatePostgres

#: Points that an API passes; all others are a worker's.
_API_POINTS = frozenset(
    {
        "upload_stored",
        "upload_named",
        "upload_part_stored",
        "upload_completed",
        "create_recorded",
        "create_committed",
        "cancel_committed",
    }
)
#: How long a failpoint may take to be reached, from the start of its process, before the next mishap comes.
_REACH_SECONDS = 8.0
#: … and where nothing else is to be seen.
_COVER_SECONDS = 20.0
#: Most mishaps wait so long for the last one to be got over; the others strike while it is not.
_RECOVERY_SECONDS = 8.0
_WEIGHTS = {"kill": 6, "kill_all": 2, "freeze": 3, "end": 2, "scale": 2, "outage": 1}
#: Of ten mishaps so many happen at failpoints, which are dealt in turn over the rounds of a run: none is left out.
POINTS_A_ROUND = 4
_ACTIONS = {"kill": 6, "freeze": 2, "error": 1, "pause:1": 1}


def points_of(seed: str) -> list[str]:
    """The failpoints of a round, in order; `seed` is that of the run, a slash and the number of the round."""
    run, _, number = seed.rpartition("/")
    names = list(NAMES)
    random.Random(f"{run}/points").shuffle(names)
    first = int(number) * POINTS_A_ROUND
    return [names[(first + place) % len(names)] for place in range(POINTS_A_ROUND)]


@dataclass
class Mishaps:
    """`outage_seconds` is the longest time for which Postgres goes away. With `only`, nothing but those failpoints."""

    fleet: Fleet
    seed: str
    postgres: PrivatePostgres | None
    outage_seconds: float
    tell: Callable[[str], None]
    only: Sequence[str] = ()
    done: Counter[str] = field(default_factory=Counter)

    def run(self, count: int) -> None:
        """`count` of them. Every choice comes from the seed, but what it meets depends on time."""
        plan = random.Random(f"{self.seed}/plan")
        points = dict(enumerate(self.only))
        if not points:
            places = sorted(plan.sample(range(count), min(count, POINTS_A_ROUND)))
            points = dict(zip(places, points_of(self.seed), strict=False))
        for number in range(len(self.only) or count):
            rng = random.Random(f"{self.seed}/mishap/{number}")
            if rng.random() < 0.75:
                self._recovered()
            time.sleep(rng.uniform(0.2, 1.5))
            kinds = [kind for kind in _WEIGHTS if self._possible(kind)]
            [kind] = rng.choices(kinds, weights=[_WEIGHTS[kind] for kind in kinds])
            if number in points:
                kind, target = "failpoint", self._failpoint(rng, points[number])
            else:
                target = getattr(self, f"_{kind}")(rng)
            self.done[kind] += 1
            self.tell(f"mishap {number}: {kind} {target}")

    def _recovered(self) -> None:
        deadline = time.monotonic() + _RECOVERY_SECONDS
        while time.monotonic() < deadline and not self.fleet.whole():
            time.sleep(0.05)

    def _possible(self, kind: str) -> bool:
        if kind == "outage":
            return self.postgres is not None
        return kind != "scale" or any(member.role == "worker" for member in self.fleet.members)

    def _victim(self, rng: random.Random, *roles: str) -> Member | None:
        live = self.fleet.live(*roles)
        return rng.choice(live) if live else None

    def _kill(self, rng: random.Random) -> str:
        victim, pause = self._victim(rng), rng.uniform(0, 1.5)
        if victim is None:
            return "nobody"
        self.fleet.kill([victim], restart_seconds=pause)
        return victim.name

    def _kill_all(self, rng: random.Random) -> str:
        self.fleet.kill(self.fleet.live(), restart_seconds=rng.uniform(0, 1.5))
        return ""

    def _freeze(self, rng: random.Random) -> str:
        seconds = rng.uniform(0.5, 2) * LEASE_SECONDS
        victim = self._victim(rng)
        if victim is None:
            return "nobody"
        self.fleet.freeze(victim, seconds)
        return f"{victim.name} for {seconds:.1f} s"

    def _end(self, rng: random.Random) -> str:
        victim = self._victim(rng)
        if victim is None:
            return "nobody"
        self.fleet.end(victim, restart_seconds=rng.uniform(0, 1))
        return victim.name

    def _scale(self, rng: random.Random) -> str:
        """One worker more for a while; then one, perhaps another, is killed or ended for good."""
        self.fleet.add("worker")
        time.sleep(rng.uniform(1.5, 3))
        victim, gently = self._victim(rng, "worker"), rng.random() < 0.5
        if victim is None:
            return "up"
        if gently:
            self.fleet.end(victim, restart_seconds=None)
        else:
            victim.wanted = False
            self.fleet.kill([victim], restart_seconds=float("inf"))
        return f"up, and {victim.name} away"

    def _failpoint(self, rng: random.Random, name: str) -> str:
        [action] = rng.choices(list(_ACTIONS), weights=list(_ACTIONS.values()))
        nth = 1 if self.only else rng.choice([1, 1, 1, 2, 4])
        victim = self._victim(rng, "all", "api" if name in _API_POINTS else "worker")
        if victim is None:
            return "nobody"
        trap = f"{name}={action}@{nth}"
        self.fleet.end(victim, restart_seconds=0, failpoint=trap)
        deadline = time.monotonic() + (_COVER_SECONDS if self.only else _REACH_SECONDS)
        while not victim.fired() and time.monotonic() < deadline:
            time.sleep(0.05)
        return f"{trap} in {victim.name}"

    def _outage(self, rng: random.Random) -> str:
        """The database goes, kindly or not, and comes back."""
        assert self.postgres is not None
        mode, seconds = rng.choice(["fast", "immediate"]), rng.uniform(0.3, 1) * self.outage_seconds
        begin, durable = time.monotonic_ns(), self.fleet.durable()
        self.fleet.outage.set()
        self.postgres.stop(mode=mode)
        time.sleep(seconds)
        self.postgres.start()
        self.fleet.database_was_away(begin, durable)
        self.fleet.outage.clear()
        return f"{mode}, {seconds:.1f} s"
