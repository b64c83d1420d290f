"""A short run on each database: ten mishaps, then the ledger. `make chaos` runs longer ones."""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest

from tests.chaos.round import Kind, Round
from tests.chaos.storage import private_postgres
from tests.databases import programs

#: Fixed, so that a failure is found again; `make chaos` takes a new one each time.
SEED = os.environ.get("CHAOS_SEED", "short")


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_break_everything_and_lose_nothing(database: Kind) -> None:
    if database == "postgres":
        programs()
    with private_postgres() if database == "postgres" else nullcontext() as postgres:
        report = Round(f"{SEED}/0", database, 2, 10, postgres, outage_seconds=12, tell=print).run()
    assert report.problems == []
    assert report.mishaps.total() == 10
    assert report.lines > 0
    assert report.verdict.ran > 0
