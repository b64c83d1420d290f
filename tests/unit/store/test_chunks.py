from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import select, text

from app.domain.batch import BatchStatus
from app.domain.chunk import NO_TALLY, Claim, Part, SealedSegment, Tally
from app.errors import Internal, LeaseLost
from app.store import batches, chunks
from app.store.chunks import Extension
from app.store.db import Database
from app.store.tables import parts as part_rows
from tests.unit.store.scenes import (
    DAY,
    LAPSED,
    LONG,
    claimed,
    cut,
    finish,
    look,
    running,
    seal,
    tokens,
)


async def take(database: Database, *, exclude: tuple[str, ...] = (), lease_seconds: float = LONG) -> Claim | None:
    async with database.write() as tx:
        return await chunks.claim(tx, lease_seconds=lease_seconds, exclude_batches=exclude)


async def commit(database: Database, claim: Claim, tally: Tally, *, key: str = "part") -> Part:
    async with database.write() as tx:
        return await chunks.commit_part(tx, claim.chunk_id, claim.token, key=key, bytes=tally.lines * 10, tally=tally)


async def cancel(database: Database, batch_id: str) -> None:
    async with database.write() as tx:
        assert await batches.cancel(tx, batch_id, project_id="team") is not None


class TestClaim:
    async def test_claim_tells_everything_the_worker_needs(self, database: Database) -> None:
        batch = await running(database, 2, 3)
        first, second = await claimed(database), await claimed(database)
        assert first == Claim(
            chunk_id=first.chunk_id,
            token=first.token,
            batch_id=batch.id,
            project_id="team",
            endpoint=batch.endpoint,
            input_file_id=batch.input_file_id,
            expires_at=batch.expires_at,
            cancelling=False,
            expired=False,
            spec=cut(2, 3)[0],
            parts=(),
        )
        assert second.spec == cut(2, 3)[1]
        assert first.token != second.token
        assert await take(database) is None

    async def test_claim_finds_nothing_in_an_empty_database(self, database: Database) -> None:
        assert await take(database) is None

    async def test_claim_in_parallel_gives_each_chunk_to_one(self, database: Database) -> None:
        for number in range(4):
            await running(database, *[1] * 10, project_id=f"project {number % 2}")

        async def worker() -> list[str]:
            mine = []
            while (claim := await take(database)) is not None:
                mine.append(claim.chunk_id)
            return mine

        shares = await asyncio.gather(*(worker() for _ in range(8)))
        taken = [chunk_id for share in shares for chunk_id in share]
        assert len(taken) == len(set(taken)) == 40

    async def test_claim_does_not_wait_for_another_that_is_under_way_on_postgres(self, postgres_url: str) -> None:
        database = Database(postgres_url)
        try:
            busy, free = await running(database, 1), await running(database, 1)
            async with database.write() as tx:
                first = await chunks.claim(tx, lease_seconds=LONG)
                async with asyncio.timeout(5):
                    second = await take(database)
                    assert await take(database) is None
            assert first is not None
            assert second is not None
            assert (first.batch_id, second.batch_id) == (busy.id, free.id)
        finally:
            await database.close()

    async def test_claim_counts_takeovers_since_something_became_durable(self, database: Database) -> None:
        await running(database, 9)
        held = [await claimed(database, lease_seconds=LAPSED) for _ in range(3)]
        counted = [claim.takeovers for claim in held]
        async with database.write() as tx:
            await chunks.release(tx, [(held[-1].chunk_id, held[-1].token)])
        released = await claimed(database, lease_seconds=LAPSED)
        await commit(database, released, Tally(completed=1))
        assert [*counted, released.takeovers, (await claimed(database)).takeovers] == [0, 1, 2, 2, 1]

    async def test_claim_after_a_lapse_returns_the_committed_parts(self, database: Database) -> None:
        await running(database, 9)
        first = await claimed(database, lease_seconds=LAPSED)
        one = await commit(database, first, Tally(2, 1, 0, tokens(5)), key="one")
        two = await commit(database, first, Tally(1, 0, 0), key="two")
        second = await claimed(database)
        assert second == replace(first, token=second.token, parts=(one, two), takeovers=1)
        assert second.token != first.token
        assert [(part.sequence, part.key, part.bytes) for part in second.parts] == [(1, "one", 30), (2, "two", 10)]
        assert second.parts[0].tally == Tally(2, 1, 0, tokens(5))
        three = await commit(database, second, NO_TALLY, key="three")
        assert three.sequence == 3

    async def test_claim_leaves_a_live_lease_alone(self, database: Database) -> None:
        await running(database, 1)
        await claimed(database, lease_seconds=0.4)
        assert await take(database) is None
        await asyncio.sleep(0.45)
        assert await take(database) is not None

    async def test_claim_is_fair_between_projects_then_by_deadline(self, database: Database) -> None:
        late = await running(database, 1, 1, 1, project_id="big", window_seconds=2 * DAY)
        soon = await running(database, 1, 1, 1, project_id="big", window_seconds=DAY)
        small = await running(database, 1, project_id="small", window_seconds=3 * DAY)
        order = [await claimed(database) for _ in range(7)]
        assert [claim.batch_id for claim in order] == [soon.id, small.id, *[soon.id] * 2, *[late.id] * 3]
        assert [claim.spec.position for claim in order] == [0, 0, 1, 2, 0, 1, 2]

    async def test_claim_counts_only_leases_that_hold(self, database: Database) -> None:
        a = await running(database, 1, 1, 1, project_id="a", window_seconds=DAY)
        b = await running(database, 1, 1, project_id="b", window_seconds=2 * DAY)
        await claimed(database, lease_seconds=LAPSED)
        assert (await claimed(database)).batch_id == a.id  # the lapsed chunk itself
        assert (await claimed(database)).batch_id == b.id

    async def test_claim_prefers_batches_that_only_need_closing(self, database: Database) -> None:
        plain = await running(database, 1, window_seconds=DAY)
        cancelled = await running(database, 1, window_seconds=9 * DAY)
        await cancel(database, cancelled.id)
        expired = await running(database, 1, window_seconds=0)
        order = [await claimed(database) for _ in range(3)]
        assert [claim.batch_id for claim in order] == [expired.id, cancelled.id, plain.id]
        assert [(claim.cancelling, claim.expired) for claim in order] == [(False, True), (True, False), (False, False)]

    async def test_claim_passes_over_excluded_batches(self, database: Database) -> None:
        first, second = await running(database, 1), await running(database, 1)
        assert await take(database, exclude=(first.id, second.id)) is None
        claim = await take(database, exclude=(first.id,))
        assert claim is not None
        assert claim.batch_id == second.id

    async def test_claim_can_look_at_closing_batches_only(self, database: Database) -> None:
        await running(database, 1)
        cancelled = await running(database, 1)
        await cancel(database, cancelled.id)
        expired = await running(database, 1, window_seconds=0)
        async with database.write() as tx:
            claims = [await chunks.claim(tx, lease_seconds=LONG, closing_only=True) for _ in range(3)]
        assert [claim.batch_id if claim else None for claim in claims] == [expired.id, cancelled.id, None]

    async def test_claim_leaves_sealed_chunks_and_ended_batches_alone(self, database: Database) -> None:
        batch = await running(database, 1)
        await seal(database, await claimed(database), Tally(completed=1))
        assert await take(database) is None
        assert await finish(database, batch.id) is not None
        assert await take(database) is None


class TestFence:
    async def test_stale_token_can_write_nothing(self, database: Database) -> None:
        batch = await running(database, 3)
        stale = await claimed(database, lease_seconds=LAPSED)
        fresh = await claimed(database)
        async with database.write() as tx:
            extension = await chunks.extend(tx, [(stale.chunk_id, stale.token)], lease_seconds=LONG)
            assert extension == Extension(frozenset({stale.chunk_id}), {})
            await chunks.release(tx, [(stale.chunk_id, stale.token)])
        with pytest.raises(LeaseLost):
            await commit(database, stale, Tally(completed=1))
        with pytest.raises(LeaseLost):
            await seal(database, stale, Tally(completed=3))
        assert await take(database) is None
        assert (await look(database, batch.id)).tally == NO_TALLY
        async with database.read() as tx:
            assert (await tx.conn.execute(select(part_rows))).all() == []
        await commit(database, fresh, Tally(completed=1))

    async def test_token_of_another_chunk_opens_nothing(self, database: Database) -> None:
        await running(database, 1, 1)
        one, two = await claimed(database), await claimed(database)
        with pytest.raises(LeaseLost):
            await commit(database, replace(one, token=two.token), Tally(completed=1))

    async def test_sealed_chunk_takes_no_more_writes(self, database: Database) -> None:
        await running(database, 2)
        claim = await claimed(database)
        await seal(database, claim, Tally(completed=2))
        with pytest.raises(LeaseLost):
            await commit(database, claim, Tally(completed=1))
        with pytest.raises(LeaseLost):
            await seal(database, claim, Tally(completed=2))
        async with database.write() as tx:
            extension = await chunks.extend(tx, [(claim.chunk_id, claim.token)], lease_seconds=LONG)
            await chunks.release(tx, [(claim.chunk_id, claim.token)])
        assert extension.lost == {claim.chunk_id}
        assert await take(database) is None

    async def test_commit_and_takeover_at_once_count_each_line_once(self, database: Database) -> None:
        for _ in range(6):
            batch = await running(database, 1)
            stale = await claimed(database, lease_seconds=LAPSED)

            async def late(stale: Claim = stale) -> bool:
                try:
                    await commit(database, stale, Tally(completed=1))
                except LeaseLost:
                    return False
                return True

            committed, successor = await asyncio.gather(late(), take(database))
            successor = successor or await claimed(database)  # Postgres passes over a row that is just being written
            assert successor.chunk_id == stale.chunk_id
            if not committed:
                assert successor.parts == ()
            else:  # it won, so it came first: the successor knows of it
                assert [part.tally for part in successor.parts] == [Tally(completed=1)]
            await seal(database, successor, NO_TALLY if committed else Tally(completed=1))
            assert (await look(database, batch.id)).tally == Tally(completed=1)


class TestExtend:
    async def test_extend_holds_every_lease_of_a_worker_at_once(self, database: Database) -> None:
        await running(database, 1, 1, 1)
        claims = [await claimed(database, lease_seconds=30) for _ in range(3)]
        async with database.write() as tx:
            await tx.conn.execute(text("UPDATE chunks SET leased_until = 0"))
            extension = await chunks.extend(tx, [(c.chunk_id, c.token) for c in claims], lease_seconds=LONG)
            assert extension == Extension(frozenset(), {})
        assert await take(database) is None

    async def test_extend_of_nothing_asks_nothing(self, database: Database) -> None:
        async with database.write() as tx:
            assert await chunks.extend(tx, [], lease_seconds=LONG) == Extension(frozenset(), {})
            await chunks.release(tx, [])
            assert await chunks.closing(tx, []) == {}

    async def test_extend_and_closing_tell_of_cancel_and_deadline(self, database: Database) -> None:
        plain = await running(database, 1)
        cancelled = await running(database, 1)
        expired = await running(database, 1, window_seconds=0)
        both = await running(database, 1, window_seconds=0)
        claims = {claim.batch_id: claim for claim in [await claimed(database) for _ in range(4)]}
        await cancel(database, cancelled.id)
        await cancel(database, both.id)
        async with database.write() as tx:
            extension = await chunks.extend(tx, [(c.chunk_id, c.token) for c in claims.values()], lease_seconds=LONG)
            by_batch = await chunks.closing(tx, [*claims, "batch_unknown"])
        expected = {cancelled.id: "cancelled", expired.id: "expired", both.id: "cancelled"}
        assert by_batch == expected
        assert extension.closing == {claims[batch_id].chunk_id: why for batch_id, why in expected.items()}
        assert plain.id not in by_batch

    async def test_release_frees_at_once_and_keeps_the_parts(self, database: Database) -> None:
        await running(database, 2, 2)
        one, two = await claimed(database), await claimed(database)
        part = await commit(database, one, Tally(completed=1))
        async with database.write() as tx:
            await chunks.release(tx, [(one.chunk_id, one.token), (two.chunk_id, two.token)])
        again = await claimed(database)
        assert (again.chunk_id, again.parts) == (one.chunk_id, (part,))
        assert (await claimed(database)).chunk_id == two.chunk_id


class TestCounts:
    async def test_commit_part_grows_chunk_and_batch(self, database: Database) -> None:
        batch = await running(database, 9)
        claim = await claimed(database)
        await commit(database, claim, Tally(3, 1, 0, tokens(10)))
        await commit(database, claim, Tally(2, 0, 1, tokens(1 << 40)))
        usage = tokens(10) + tokens(1 << 40)
        assert (await look(database, batch.id)).tally == Tally(5, 1, 0, usage)

    async def test_commit_part_by_many_workers_adds_up(self, database: Database) -> None:
        batch = await running(database, *[20] * 4)
        claims = [await claimed(database) for _ in range(4)]
        tally = Tally(4, 1, 0, tokens(7))

        async def drain(claim: Claim) -> None:
            for number in range(4):
                await commit(database, claim, tally, key=f"{claim.chunk_id}/{number}")
            done = Tally(16, 4)
            async with database.write() as tx:
                await chunks.seal(
                    tx,
                    claim.chunk_id,
                    claim.token,
                    output=SealedSegment("o", 1, done.completed),
                    error=SealedSegment("e", 1, done.failed),
                    added=NO_TALLY,
                )

        await asyncio.gather(*(drain(claim) for claim in claims))
        assert (await look(database, batch.id)).tally == sum([tally] * 16, NO_TALLY)

    async def test_seal_adds_the_rest_and_hands_back_the_parts_keys(self, database: Database) -> None:
        batch = await running(database, 6)
        claim = await claimed(database)
        await commit(database, claim, Tally(2, 0, 0, tokens(1)), key="one")
        await commit(database, claim, Tally(0, 1, 0), key="two")
        async with database.write() as tx:
            keys = await chunks.seal(
                tx,
                claim.chunk_id,
                claim.token,
                output=SealedSegment("out", 30, 3),
                error=SealedSegment("err", 30, 3),
                added=Tally(1, 0, 2, tokens(4)),
            )
            assert (await tx.conn.execute(select(part_rows))).all() == []
        assert sorted(keys) == ["one", "two"]
        assert (await look(database, batch.id)).tally == Tally(3, 1, 0, tokens(1) + tokens(4))

    @pytest.mark.parametrize(
        ("output_rows", "error_rows", "added"),
        [
            pytest.param(2, 0, Tally(completed=1), id="a line short"),
            pytest.param(4, 0, Tally(completed=3), id="a line over"),
            pytest.param(1, 2, Tally(completed=2), id="a row on the wrong side"),
            pytest.param(2, 1, Tally(completed=2), id="a row that nobody counted"),
            pytest.param(0, 0, Tally(completed=2), id="no segment"),
        ],
    )
    async def test_seal_that_does_not_add_up_changes_nothing(
        self, database: Database, output_rows: int, error_rows: int, added: Tally
    ) -> None:
        batch = await running(database, 3)
        claim = await claimed(database)
        await commit(database, claim, Tally(completed=1))
        with pytest.raises(Internal):
            async with database.write() as tx:
                await chunks.seal(
                    tx,
                    claim.chunk_id,
                    claim.token,
                    output=SealedSegment("o", 10, output_rows) if output_rows else None,
                    error=SealedSegment("e", 10, error_rows) if error_rows else None,
                    added=added,
                )
        assert (await look(database, batch.id)).tally == Tally(completed=1)
        async with database.read() as tx:
            assert len((await tx.conn.execute(select(part_rows))).all()) == 1
        async with database.write() as tx:
            good = SealedSegment("o", 30, 3)
            await chunks.seal(tx, claim.chunk_id, claim.token, output=good, error=None, added=Tally(completed=2))

    async def test_set_model_keeps_the_first_word(self, database: Database) -> None:
        batch = await running(database, 1)
        async with database.write() as tx:
            await chunks.set_model(tx, batch.id, "first")
            await chunks.set_model(tx, batch.id, "second")
        assert (await look(database, batch.id)).model == "first"
        assert (await look(database, batch.id)).status is BatchStatus.IN_PROGRESS
