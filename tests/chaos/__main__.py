"""`python -m tests.chaos --n 100 --seed 7 --database sqlite --workers 2`: rounds of ten mishaps, and a table."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from app.failpoint import NAMES
from tests.chaos.round import Report, Round
from tests.chaos.storage import PrivatePostgres, private_postgres

MISHAPS_A_ROUND = 10
#: Of so many mishaps every failpoint must have fired; they deal each at least once.
COVERING = 100
COVERING_ROUNDS = 2


def main() -> int:
    """Exit code 1 when anything was lost, doubled, stuck, or otherwise wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Break the service, check the ledger.")
    parser.add_argument("--n", type=int, default=100, help="mishaps (100)")
    parser.add_argument("--seed", default=None, help="repeats a run's choices (default: a new one)")
    parser.add_argument("--round", type=int, default=None, help="only this round")
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--workers", type=int, default=2, help="processes that run lines (2)")
    parser.add_argument("--outage-seconds", type=float, default=20.0, help="longest time without Postgres (20)")
    parser.add_argument("--failpoints", default="", help="one round in which only these happen, with commas between")
    given = parser.parse_args()
    seed = given.seed or secrets.token_hex(3)
    console = Console(width=140, highlight=False)
    console.print(f"seed {seed}, {given.n} mishaps, {given.database}, {given.workers} workers")
    total, began = Report(), time.monotonic()
    with private_postgres() if given.database == "postgres" else nullcontext() as postgres:
        run = Run(given, seed, postgres, total, console)
        if only := [name for name in given.failpoints.split(",") if name]:
            run.round(given.round or 0, only=only)
        else:
            for number in _rounds(given.n, given.round):
                run.round(number)
            if given.round is None and given.n >= COVERING:
                run.cover()
    show(total, seconds=time.monotonic() - began, console=console)
    return 1 if total.problems else 0


@dataclass
class Run:
    """The rounds of one run."""

    given: argparse.Namespace
    seed: str
    postgres: PrivatePostgres | None
    total: Report
    console: Console

    def round(self, number: int, *, only: Sequence[str] = ()) -> None:
        """One round, told as it goes."""
        given, console = self.given, self.console
        left = MISHAPS_A_ROUND if given.round is not None else min(MISHAPS_A_ROUND, given.n - MISHAPS_A_ROUND * number)
        found = Round(
            seed=f"{self.seed}/{number}",
            database=given.database,
            workers=given.workers,
            mishaps=left,
            postgres=self.postgres,
            outage_seconds=given.outage_seconds,
            tell=lambda text: console.print(f"  {text}", style="dim", markup=False),
            only=only,
        ).run()
        self.total.add(found)
        ran = f"{found.lines} lines, {found.verdict.rerun} run again (at most {found.verdict.bound})"
        ended = f"{sum(found.ends.values())} batches, {ran}, quiet after {found.slowest_seconds:.1f} s"
        console.print(f"round {number}: {ended}")
        for problem in found.problems:
            console.print(f"  WRONG in round {number} of seed {self.seed}: {problem}", style="red", markup=False)
        if found.problems:
            again = f"make chaos SEED={self.seed} ROUND={number} DATABASE={given.database} WORKERS={given.workers}"
            again += f" ARGS=--failpoints={','.join(only)}" if only else ""
            console.print(f"  once more: {again}", style="red")

    def cover(self) -> None:
        """A long run has seen every failpoint fire: what was dealt and not reached gets rounds of its own."""
        number = -(-self.given.n // MISHAPS_A_ROUND)
        for _ in range(COVERING_ROUNDS):
            missing = [name for name in NAMES if not self.total.fired[name]]
            if not missing:
                return
            self.console.print(f"failpoints that have not fired yet: {', '.join(missing)}")
            self.round(number, only=missing)
            number += 1
        self.total.problems += [f"the failpoint {name} never fired" for name in NAMES if not self.total.fired[name]]


def _rounds(mishaps: int, only: int | None) -> range:
    return range(-(-mishaps // MISHAPS_A_ROUND)) if only is None else range(only, only + 1)


def show(total: Report, *, seconds: float, console: Console) -> None:
    """The table."""
    table = Table("what", "figure", title="chaos")
    figures = {
        "mishaps": ", ".join(f"{count} {kind}" for kind, count in total.mishaps.most_common()),
        "failpoints that fired": ", ".join(f"{count} {name}" for name, count in sorted(total.fired.items())),
        "failpoints that did not": ", ".join(name for name in NAMES if not total.fired[name]) or "none",
        "batches": ", ".join(f"{count} {status}" for status, count in total.ends.most_common()),
        "lines": f"{total.lines:,}, of which {total.verdict.ran:,} ran",
        "lines run again": f"{total.verdict.rerun:,}; in flight or not yet durable: {total.verdict.bound:,}",
        "run again although durable": str(len(total.verdict.unexcused)),
        "lost": str(total.count(" lost")),
        "doubled": str(total.count("doubled")),
        "stuck": str(total.count("stuck")),
        "other problems": str(len(total.problems) - total.count(" lost", "doubled", "stuck")),
        "answers 503": str(total.unavailable),
        "slowest end after quiet": f"{total.slowest_seconds:.1f} s",
        "time": f"{seconds:.0f} s",
    }
    for name, figure in figures.items():
        table.add_row(name, figure)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
