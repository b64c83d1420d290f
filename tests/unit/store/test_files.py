from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text, update

from app.domain.file import Purpose, Segment
from app.domain.id import new_file_id
from app.errors import InvalidRequest
from app.store import files
from app.store.db import Database
from app.store.tables import files as file_rows
from tests.unit.store.scenes import DAY, make_batch, make_file


async def test_create_lays_segments_end_to_end(database: Database) -> None:
    async with database.write() as tx:
        file = await make_file(tx, segments=[("b", 5), ("a", 0), ("c", 7)])
    async with database.read() as tx:
        assert await files.get(tx, file.id, project_id="team") == file
        assert await files.segments(tx, file.id) == [Segment("b", 0, 5), Segment("a", 5, 0), Segment("c", 5, 7)]
    assert file.bytes == 12
    assert abs(file.created_at - time.time()) < 5
    assert file.expires_at == file.created_at + DAY


async def test_create_without_expiry_or_bytes(database: Database) -> None:
    async with database.write() as tx:
        file = await make_file(tx, expires_after_seconds=None, segments=[])
    async with database.read() as tx:
        assert await files.get(tx, file.id, project_id="team") == file
        assert await files.segments(tx, file.id) == []
    assert (file.bytes, file.expires_at) == (0, None)


async def test_create_keeps_every_field_beyond_32_bits_and_ascii(database: Database) -> None:
    async with database.write() as tx:
        file = await files.create(
            tx,
            id=new_file_id(),
            project_id="équipe",
            purpose=Purpose.FINE_TUNE,
            filename="naïve \u2028 \U0001f680.jsonl",
            sha256="0" * 64,
            expires_after_seconds=None,
            segments=[("a", 1 << 33), ("b", 1 << 33)],
        )
    async with database.read() as tx:
        assert await files.get(tx, file.id, project_id="équipe") == file
        assert (await files.segments(tx, file.id))[1].start == 1 << 33


async def test_get_hides_a_file_of_another_project(database: Database) -> None:
    async with database.write() as tx:
        file = await make_file(tx)
        assert not await files.delete(tx, file.id, project_id="other")
    async with database.read() as tx:
        assert await files.get(tx, file.id, project_id="other") is None
        assert await files.get(tx, file.id, project_id="team") is not None


async def test_deleted_file_is_gone_at_once_but_its_bytes_are_not(database: Database) -> None:
    async with database.write() as tx:
        file = await make_file(tx)
        assert await files.delete(tx, file.id, project_id="team")
    async with database.write() as tx:
        assert await files.get(tx, file.id, project_id="team") is None
        assert not await files.delete(tx, file.id, project_id="team")
        assert len(await files.segments(tx, file.id)) == 1


async def test_expired_file_is_gone_without_a_sweep(database: Database) -> None:
    async with database.write() as tx:
        file = await make_file(tx, expires_after_seconds=0)
    async with database.write() as tx:
        assert await files.get(tx, file.id, project_id="team") is None
        assert not await files.delete(tx, file.id, project_id="team")
        assert len(await files.segments(tx, file.id)) == 1


async def test_stored_bytes_counts_what_the_project_sees(database: Database) -> None:
    async with database.write() as tx:
        await make_file(tx, segments=[("a", 1 << 40)])
        await make_file(tx, expires_after_seconds=None, segments=[("b", 20)])
        await make_file(tx, expires_after_seconds=0, segments=[("c", 3)])
        await make_file(tx, project_id="other", segments=[("d", 4)])
        gone = await make_file(tx, segments=[("e", 5)])
        await files.delete(tx, gone.id, project_id="team")
        assert await files.stored_bytes(tx, project_id="team") == (1 << 40) + 20
        assert await files.stored_bytes(tx, project_id="nobody") == 0


async def walk(database: Database, *, project_id: str, limit: int, descending: bool) -> list[str]:
    """All ids, page after page, the way the SDK asks."""
    seen: list[str] = []
    async with database.read() as tx:
        while True:
            after = seen[-1] if seen else None
            page = await files.page(
                tx, project_id=project_id, purpose=None, after=after, limit=limit, descending=descending
            )
            assert len(page.items) == limit or not page.has_more
            seen += [file.id for file in page.items]
            if not page.has_more:
                return seen


async def test_page_loses_nothing_when_created_at_is_equal(database: Database) -> None:
    async with database.write() as tx:
        made = [(await make_file(tx)).id for _ in range(11)]
        await tx.conn.execute(update(file_rows).values(created_at=1_700_000_000))
        await make_file(tx, project_id="other")
    for limit in (1, 2, 3, 11, 12):
        assert await walk(database, project_id="team", limit=limit, descending=False) == sorted(made)
        assert await walk(database, project_id="team", limit=limit, descending=True) == sorted(made, reverse=True)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    born=st.lists(st.integers(0, 3), max_size=9),
    limit=st.integers(1, 4),
    descending=st.booleans(),
    gone=st.integers(0, 9),
)
async def test_page_walks_any_listing_exactly_once(
    sqlite_database: Database, born: list[int], limit: int, descending: bool, gone: int
) -> None:
    project = new_file_id()  # a project of this example's own
    made = []
    async with sqlite_database.write() as tx:
        for number, created_at in enumerate(born):
            file = await make_file(tx, project_id=project)
            await tx.conn.execute(update(file_rows).where(file_rows.c.id == file.id).values(created_at=created_at))
            if number == gone:
                await files.delete(tx, file.id, project_id=project)
            else:
                made.append((created_at, file.id))
    expected = [file_id for _, file_id in sorted(made, reverse=descending)]
    assert await walk(sqlite_database, project_id=project, limit=limit, descending=descending) == expected


async def test_page_filters_by_purpose(database: Database) -> None:
    async with database.write() as tx:
        await make_file(tx)
        wanted = [(await make_file(tx, purpose=Purpose.VISION)).id for _ in range(3)]
        page = await files.page(tx, project_id="team", purpose=Purpose.VISION, after=None, limit=2, descending=False)
        rest = await files.page(
            tx, project_id="team", purpose=Purpose.VISION, after=wanted[1], limit=2, descending=False
        )
    assert [file.id for file in page.items] == wanted[:2]
    assert page.has_more
    assert [file.id for file in rest.items] == wanted[2:]
    assert not rest.has_more


async def test_page_hides_what_is_gone_and_still_goes_on_behind_it(database: Database) -> None:
    async with database.write() as tx:
        first, second, third = [await make_file(tx, expires_after_seconds=life) for life in (DAY, DAY, DAY)]
        expired = await make_file(tx, expires_after_seconds=0)
        last = await make_file(tx)
        await files.delete(tx, second.id, project_id="team")
        whole = await files.page(tx, project_id="team", purpose=None, after=None, limit=9, descending=False)
        behind = [
            await files.page(tx, project_id="team", purpose=None, after=mark, limit=9, descending=False)
            for mark in (second.id, expired.id)
        ]
    assert [file.id for file in whole.items] == [first.id, third.id, last.id]
    assert [[file.id for file in page.items] for page in behind] == [[third.id, last.id], [last.id]]


@pytest.mark.parametrize("project_id", ["team", "other"])
async def test_page_after_an_unknown_or_foreign_id_is_refused(database: Database, project_id: str) -> None:
    async with database.write() as tx:
        file = await make_file(tx)
        after = "file-unknown" if project_id == "team" else file.id
        with pytest.raises(InvalidRequest) as caught:
            await files.page(tx, project_id=project_id, purpose=None, after=after, limit=1, descending=True)
    assert caught.value.param == "after"


async def test_input_of_a_batch_survives_delete_and_expiry_after_its_creation(database: Database) -> None:
    async with database.write() as tx:
        file = await make_file(tx, expires_after_seconds=3_600)
        batch = await make_batch(tx, input_file_id=file.id)
        assert await files.delete(tx, file.id, project_id=file.project_id)
        await tx.conn.execute(text("UPDATE files SET expires_at = created_at"))
    async with database.read() as tx:
        assert await files.get(tx, file.id, project_id=file.project_id) is None
        seen = await files.input_of(tx, batch)
    assert seen is not None
    assert seen.id == file.id


async def test_input_of_a_batch_stays_unknown_when_it_was_gone_before(database: Database) -> None:
    async with database.write() as tx:
        file = await make_file(tx)
        assert await files.delete(tx, file.id, project_id=file.project_id)
        batch = replace(await make_batch(tx, input_file_id=file.id), input_found=False)
    async with database.read() as tx:
        assert await files.input_of(tx, batch) is None
        assert await files.input_of(tx, replace(batch, input_found=True, project_id="others")) is None
