"""Any history of claims, lapses, releases, parts and seals of one chunk, against a model of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from app.domain.chunk import NO_TALLY, Claim, Part, Tally
from app.errors import LeaseLost
from app.store import chunks
from app.store.db import Database
from app.store.tables import batches, parts
from app.store.tables import chunks as chunk_rows
from tests.unit.store.scenes import LAPSED, LONG, look, running, seal

LINES = 4


@dataclass
class Story:
    """What must be true: who holds the chunk, whether a claim would be given, and which lines have ended."""

    database: Database
    batch_id: str
    claims: list[Claim] = field(default_factory=list)
    token: str | None = None
    free: bool = True
    sealed: bool = False
    parts: int = 0
    ended: int = 0

    async def claim(self, lease_seconds: float) -> None:
        async with self.database.write() as tx:
            claim = await chunks.claim(tx, lease_seconds=lease_seconds)
        assert (claim is not None) is (self.free and not self.sealed)
        if claim is not None:
            assert sum((part.tally for part in claim.parts), NO_TALLY) == Tally(completed=self.ended)
            assert [part.sequence for part in claim.parts] == list(range(1, self.parts + 1))
            self.claims.append(claim)
            self.token, self.free = claim.token, lease_seconds == LAPSED

    async def commit(self, claim: Claim) -> None:
        tally = Tally(completed=min(1, LINES - self.ended))

        async def write() -> None:
            async with self.database.write() as tx:
                await chunks.commit_part(tx, claim.chunk_id, claim.token, key="k", bytes=1, tally=tally)

        if claim.token == self.token:
            await write()
            self.parts, self.ended = self.parts + 1, self.ended + tally.completed
        else:
            with pytest.raises(LeaseLost):
                await write()

    async def extend(self, claim: Claim) -> None:
        async with self.database.write() as tx:
            extension = await chunks.extend(tx, [(claim.chunk_id, claim.token)], lease_seconds=LONG)
        assert (claim.chunk_id in extension.lost) is (claim.token != self.token)
        if claim.token == self.token:
            self.free = False

    async def release(self, claim: Claim) -> None:
        async with self.database.write() as tx:
            await chunks.release(tx, [(claim.chunk_id, claim.token)])
        if claim.token == self.token:
            self.token, self.free = None, True

    async def seal(self, claim: Claim) -> None:
        # The claim may be older than the last parts: what they count is no longer to be added.
        whole = replace(claim, parts=(Part(claim.chunk_id, 1, "k", 1, Tally(completed=self.ended)),))
        added = Tally(completed=LINES - self.ended)
        if claim.token == self.token:
            assert len(await seal(self.database, whole, added)) == self.parts
            self.token, self.sealed, self.ended = None, True, LINES
        else:
            with pytest.raises(LeaseLost):
                await seal(self.database, whole, added)


ACTS = st.lists(
    st.tuples(st.sampled_from(["claim", "lapse", "commit", "commit", "extend", "release", "seal"]), st.integers(0, 3)),
    max_size=14,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=ACTS)
async def test_any_history_counts_each_line_once(sqlite_database: Database, acts: list[tuple[str, int]]) -> None:
    async with sqlite_database.write() as tx:
        for table in (parts, chunk_rows, batches):
            await tx.conn.execute(delete(table))
    story = Story(sqlite_database, (await running(sqlite_database, LINES)).id)
    for act, number in [("claim", 0), *acts]:
        if act == "claim":
            await story.claim(LONG)
        elif act == "lapse":
            await story.claim(LAPSED)
        else:
            await getattr(story, act)(story.claims[-1 - number % len(story.claims)])
        assert (await look(sqlite_database, story.batch_id)).tally == Tally(completed=story.ended)
