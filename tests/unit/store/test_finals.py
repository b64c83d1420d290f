from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import func, select, text

from app.domain.batch import Batch, BatchStatus
from app.domain.chunk import Tally
from app.domain.file import File, Purpose, Segment
from app.errors import Internal
from app.store import batches, chunks, files, finals
from app.store.db import Database
from app.store.tables import chunks as chunk_rows
from app.store.tables import files as file_rows
from tests.unit.store.scenes import DAY, claimed, finish, look, make_batch, running, seal, tokens


async def drain(database: Database, *tallies: Tally) -> list[str]:
    """Claim and seal one chunk per tally, the last chunk first; the chunk ids by position."""
    claims = [await claimed(database) for _ in tallies]
    for claim, tally in reversed(list(zip(claims, tallies, strict=True))):
        await seal(database, claim, tally)
    return [claim.chunk_id for claim in claims]


async def ready(database: Database) -> list[str]:
    async with database.read() as tx:
        return await finals.ready(tx)


async def manifest(database: Database, file_id: str) -> tuple[File | None, list[Segment]]:
    async with database.read() as tx:
        return await files.get(tx, file_id, project_id="team"), await files.segments(tx, file_id)


async def test_finish_completes_with_both_files_in_input_order(database: Database) -> None:
    batch = await running(database, 3, 2, 4)
    assert await ready(database) == []
    ids = await drain(database, Tally(2, 1, 0, tokens(5)), Tally(0, 2), Tally(4, 0, 0, tokens(6)))
    assert await ready(database) == [batch.id]
    async with database.write() as tx:
        begun = await finals.begin(tx, batch.id)
        assert await finals.begin(tx, batch.id) is None
    assert begun is not None
    assert (begun.status, begun.output_file_id) == (BatchStatus.FINALIZING, None)
    assert await ready(database) == [batch.id]
    ended = await finish(database, batch.id)
    assert ended == replace(
        begun,
        status=BatchStatus.COMPLETED,
        completed_at=ended.completed_at if ended else None,
        output_file_id=f"file-out-{batch.id}",
        error_file_id=f"file-err-{batch.id}",
    )
    assert ended == await look(database, batch.id)
    assert ended is not None
    assert ended.completed_at is not None
    assert ended.tally == Tally(6, 3, 0, tokens(5) + tokens(6))
    output, output_segments = await manifest(database, f"file-out-{batch.id}")
    error, error_segments = await manifest(database, f"file-err-{batch.id}")
    assert output_segments == [Segment(f"{ids[0]}/output", 0, 20), Segment(f"{ids[2]}/output", 20, 40)]
    assert error_segments == [Segment(f"{ids[0]}/error", 0, 10), Segment(f"{ids[1]}/error", 10, 20)]
    assert output is not None
    assert output == File(
        f"file-out-{batch.id}",
        "team",
        Purpose.BATCH_OUTPUT,
        f"{batch.id}_output.jsonl",
        60,
        None,
        output.created_at,
        output.created_at + 30 * DAY,
    )
    assert error is not None
    assert (error.filename, error.bytes) == (f"{batch.id}_error.jsonl", 30)
    assert await ready(database) == []


async def test_finish_leaves_no_chunk_behind(database: Database) -> None:
    batch = await running(database, 1, 1)
    await drain(database, Tally(1), Tally(1))
    await finish(database, batch.id)
    async with database.read() as tx:
        assert (await tx.conn.execute(select(func.count()).select_from(chunk_rows))).scalar_one() == 0


async def test_finish_with_every_request_failed_is_completed_without_an_output(database: Database) -> None:
    batch = await running(database, 2)
    await drain(database, Tally(failed=2))
    ended = await finish(database, batch.id)
    assert ended is not None
    assert (ended.status, ended.output_file_id) == (BatchStatus.COMPLETED, None)
    assert ended.error_file_id == f"file-err-{batch.id}"
    assert await manifest(database, f"file-out-{batch.id}") == (None, [])


async def test_finish_with_every_request_completed_has_no_error_file(database: Database) -> None:
    batch = await running(database, 2)
    await drain(database, Tally(completed=2))
    ended = await finish(database, batch.id)
    assert ended is not None
    assert (ended.output_file_id, ended.error_file_id) == (f"file-out-{batch.id}", None)


async def test_finish_expires_a_batch_with_lines_that_never_ran(database: Database) -> None:
    batch = await running(database, 2, 3, window_seconds=0)
    await drain(database, Tally(1, 1), Tally(unrun=3))
    async with database.write() as tx:
        assert await finals.begin(tx, batch.id) is None
    ended = await finish(database, batch.id)
    assert ended is not None
    assert (ended.status, ended.total, ended.tally) == (BatchStatus.EXPIRED, 5, Tally(1, 1))
    assert ended.expired_at is not None
    assert (ended.finalizing_at, ended.completed_at) == (None, None)
    assert (await manifest(database, f"file-err-{batch.id}"))[0] == replace(
        (await manifest(database, f"file-out-{batch.id}"))[0] or pytest.fail("no output"),
        id=f"file-err-{batch.id}",
        filename=f"{batch.id}_error.jsonl",
        bytes=40,
    )


async def test_finish_after_the_deadline_is_completed_when_every_line_ran(database: Database) -> None:
    batch = await running(database, 1, window_seconds=0)
    await drain(database, Tally(1))
    ended = await finish(database, batch.id)
    assert ended is not None
    assert ended.status is BatchStatus.COMPLETED


async def test_finish_cancels_keeping_what_finished(database: Database) -> None:
    batch = await running(database, 2, 3)
    async with database.write() as tx:
        await batches.cancel(tx, batch.id, project_id="team")
    await drain(database, Tally(2, 0, 0, tokens(3)), Tally(0, 0, 3))
    ended = await finish(database, batch.id)
    assert ended is not None
    assert (ended.status, ended.total, ended.tally) == (BatchStatus.CANCELLED, 5, Tally(2, 0, 0, tokens(3)))
    assert ended.cancelled_at is not None
    assert ended.cancelling_at is not None
    assert ended.finalizing_at is None
    assert (ended.output_file_id, ended.error_file_id) == (f"file-out-{batch.id}", f"file-err-{batch.id}")


async def test_finish_cancels_a_batch_that_was_never_validated(database: Database) -> None:
    async with database.write() as tx:
        made = await make_batch(tx)
    assert await ready(database) == []
    async with database.write() as tx:
        await batches.cancel(tx, made.id, project_id="team")
    assert await ready(database) == [made.id]
    ended = await finish(database, made.id)
    assert ended is not None
    assert (ended.status, ended.output_file_id, ended.error_file_id) == (BatchStatus.CANCELLED, None, None)


async def test_finish_of_what_is_not_ready_is_none(database: Database) -> None:
    batch = await running(database, 1, 1)
    await drain(database, Tally(1))
    assert await finish(database, batch.id) is None
    await drain(database, Tally(1))
    async with database.write() as tx:  # all lines ran: `begin` comes first
        assert await finals.finish(tx, batch.id, output_file_id="o", error_file_id="e", expires_after_seconds=1) is None
        assert (
            await finals.finish(tx, "batch_x", output_file_id="o", error_file_id="e", expires_after_seconds=1) is None
        )
    assert await finish(database, batch.id) is not None
    assert await finish(database, batch.id) is None


async def test_finish_by_several_at_once_publishes_once(database: Database) -> None:
    batch = await running(database, 1)
    await drain(database, Tally(1))
    async with database.write() as tx:
        await finals.begin(tx, batch.id)

    async def end(number: int) -> Batch | None:
        async with database.write() as tx:
            return await finals.finish(
                tx, batch.id, output_file_id=f"o{number}", error_file_id=f"e{number}", expires_after_seconds=DAY
            )

    ended = [batch for batch in await asyncio.gather(*(end(number) for number in range(5))) if batch is not None]
    async with database.read() as looker:
        made = list((await looker.conn.execute(select(file_rows.c.id))).scalars())
    assert len(made) == 1
    assert [batch.output_file_id for batch in ended] == made


async def test_finish_honours_the_batches_own_lifetime_of_results(database: Database) -> None:
    batch = await running(database, 1, output_expires_after_seconds=3_600)
    await drain(database, Tally(1))
    await finish(database, batch.id)
    file, _ = await manifest(database, f"file-out-{batch.id}")
    assert file is not None
    assert file.expires_at == file.created_at + 3_600


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE batches SET total = total + 1",
        "UPDATE batches SET completed = completed + 1",
        "UPDATE chunks SET output_rows = output_rows - 1",
        "UPDATE chunks SET output_rows = output_rows - 1, error_rows = 1",
        "DELETE FROM chunks WHERE position = 0",
    ],
)
async def test_finish_refuses_a_ledger_that_does_not_add_up(database: Database, damage: str) -> None:
    batch = await running(database, 2, 2)
    await drain(database, Tally(2), Tally(2))
    async with database.write() as tx:
        await finals.begin(tx, batch.id)
        await tx.conn.execute(text(damage))
    with pytest.raises(Internal, match="does not add up"):
        await finish(database, batch.id)
    async with database.read() as tx:
        assert (await tx.conn.execute(select(file_rows.c.id))).all() == []
    assert (await look(database, batch.id)).status is BatchStatus.FINALIZING


async def test_ready_is_limited_and_ignores_what_still_runs(database: Database) -> None:
    done = []
    for _ in range(3):
        done.append(await running(database, 1))
        await drain(database, Tally(1))
    await running(database, 1)
    async with database.read() as tx:
        assert await finals.ready(tx, limit=2) == [batch.id for batch in done[:2]]
        assert await finals.ready(tx) == [batch.id for batch in done]


async def test_finish_of_a_million_lines_copies_nothing_and_is_quick(database: Database) -> None:
    batch = await running(database, *[1_000] * 1_000)
    async with database.write() as tx:
        await tx.conn.execute(
            text(
                "UPDATE chunks SET state = 'sealed', completed = 999, failed = 1, output_key = 'o' || position, "
                "output_bytes = 5000000, output_rows = 999, "
                "error_key = 'e' || position, error_bytes = 7, error_rows = 1"
            )
        )
        await tx.conn.execute(text("UPDATE batches SET completed = 999000, failed = 1000"))
    async with asyncio.timeout(10):
        ended = await finish(database, batch.id)
    assert ended is not None
    assert ended.total == 1_000_000
    output, segments = await manifest(database, f"file-out-{batch.id}")
    assert output is not None
    assert output.bytes == 5_000_000_000
    assert len(segments) == 1_000
    assert segments[-1] == Segment("o999", 999 * 5_000_000, 5_000_000)
    async with database.write() as tx:
        assert await chunks.claim(tx, lease_seconds=1) is None
