"""Rows so far, over a store and blobs that are driven by hand: parts, seals and the end in any order."""

from __future__ import annotations

import random

import pytest

from app.blobs.base import Blobs
from app.blobs.local import LocalBlobs
from app.domain.chunk import Claim, SealedSegment, Tally
from app.domain.part import COMPLETED, FAILED, Row, encode
from app.errors import InvalidRequest, NotFound
from app.service import results as module
from app.service.results import ResultService
from app.store import batches, chunks
from app.store.db import Database
from app.store.progress import Kind
from tests.unit.store.scenes import claimed, finish, look, make_batch, running


def row(chunk: int, line: int) -> Row:
    """Every fourth line fails; a row is of some length of its own."""
    kind = FAILED if line % 4 == 3 else COMPLETED
    return Row(line, kind, b'{"chunk":%d,"line":%d,"x":"%s"}\n' % (chunk, line, b"x" * (line * 7 % 90)))


def segment(chunk: int, lines: int, kind: Kind) -> bytes:
    wanted = COMPLETED if kind == "output" else FAILED
    return b"".join(one.text for one in (row(chunk, line) for line in range(lines)) if one.kind == wanted)


class Hand:
    """A worker's hand: commits parts of a claim, and seals it."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs

    async def commit(self, claim: Claim, *lines: int) -> None:
        rows = [row(claim.spec.position, line) for line in lines]
        failed = sum(one.kind == FAILED for one in rows)
        key = f"parts/{claim.chunk_id}/p{random.getrandbits(64):x}"
        data = encode(rows)
        await self._blobs.put(key, data)
        async with self._database.write() as tx:
            tally = Tally(len(rows) - failed, failed)
            await chunks.commit_part(tx, claim.chunk_id, claim.token, key=key, bytes=len(data), tally=tally)

    async def seal(self, claim: Claim) -> None:
        made: dict[Kind, SealedSegment] = {}
        kind: Kind
        for kind in ("output", "error"):
            data = segment(claim.spec.position, claim.spec.lines, kind)
            key = f"segments/{claim.chunk_id}-{random.getrandbits(64):x}.{kind}"
            await self._blobs.put(key, data)
            made[kind] = SealedSegment(key, len(data), data.count(b"\n"))
        async with self._database.write() as tx:
            dropped = await chunks.seal(tx, claim.chunk_id, claim.token, output=made["output"], error=made["error"])
        for key in dropped:
            await self._blobs.delete(key)


@pytest.fixture
def hand(sqlite_database: Database, blobs: LocalBlobs) -> Hand:
    return Hand(sqlite_database, blobs)


@pytest.fixture
def service(sqlite_database: Database, blobs: LocalBlobs) -> ResultService:
    return ResultService(database=sqlite_database, blobs=blobs)


async def read(service: ResultService, batch_id: str, offset: int = 0, kind: Kind = "output") -> tuple[bytes, bool]:
    found = await service.so_far("team", batch_id, kind=kind, offset=offset)
    data = b"".join([block async for block in found.stream()])
    assert found.end - offset == len(data)
    return data, found.complete


async def test_rows_come_up_to_the_first_line_that_has_not_ended(
    sqlite_database: Database, hand: Hand, service: ResultService
) -> None:
    batch = await running(sqlite_database, 8, 8)
    first, second = await claimed(sqlite_database), await claimed(sqlite_database)
    whole = segment(0, 8, "output") + segment(1, 8, "output")
    assert await read(service, batch.id) == (b"", False)
    await hand.commit(first, 1, 2, 5)
    await hand.commit(second, *range(8))
    assert await read(service, batch.id) == (b"", False), "line 0 has not ended"
    await hand.commit(first, 0, 3)
    assert await read(service, batch.id) == (row(0, 0).text + row(0, 1).text + row(0, 2).text, False)
    assert await read(service, batch.id, kind="error") == (row(0, 3).text, False)
    await hand.seal(second)
    assert await read(service, batch.id) == (row(0, 0).text + row(0, 1).text + row(0, 2).text, False)
    await hand.commit(first, 4, 6, 7)
    assert await read(service, batch.id) == (segment(0, 8, "output"), False)
    await hand.seal(first)
    assert await read(service, batch.id) == (whole, False)
    await finish(sqlite_database, batch.id)
    assert await read(service, batch.id) == (whole, True)
    assert await read(service, batch.id, kind="error") == (segment(0, 8, "error") + segment(1, 8, "error"), True)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["output", "error"])
async def test_any_history_gives_the_final_file_piece_by_piece(
    sqlite_database: Database,
    hand: Hand,
    service: ResultService,
    seed: int,
    kind: Kind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TAIL_MAX_BYTES", 300)
    chance = random.Random(seed)
    sizes = [chance.randrange(1, 30) for _ in range(4)]
    batch = await running(sqlite_database, *sizes)
    left: dict[Claim, list[int]] = {}
    claims = [await claimed(sqlite_database) for _ in sizes]
    for claim in claims:
        left[claim] = chance.sample(range(claim.spec.lines), claim.spec.lines)
    found = b""
    while left:
        claim = chance.choice(list(left))
        now, left[claim] = left[claim][:5], left[claim][5:]
        if now:
            await hand.commit(claim, *now)
        else:
            await hand.seal(claim)
            del left[claim]
        piece, complete = await read(service, batch.id, len(found), kind)
        assert not complete
        found += piece
        assert found.endswith(b"\n") or not found
        if chance.random() < 0.2:  # another process, with nothing in memory
            service._contents.clear()
    await finish(sqlite_database, batch.id)
    while True:
        piece, complete = await read(service, batch.id, len(found), kind)
        found += piece
        if complete:
            break
    assert found == b"".join(segment(position, size, kind) for position, size in enumerate(sizes))


async def test_long_tail_comes_in_several_answers(
    sqlite_database: Database, hand: Hand, service: ResultService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TAIL_MAX_BYTES", 200)
    batch = await running(sqlite_database, 60)
    claim = await claimed(sqlite_database)
    await hand.commit(claim, *range(50))
    found, calls = b"", 0
    while piece := (await read(service, batch.id, len(found)))[0]:
        found += piece
        calls += 1
    assert calls > 5
    assert found == b"".join(row(0, line).text for line in range(50) if line % 4 != 3)


async def test_offset_in_the_middle_of_a_row(sqlite_database: Database, hand: Hand, service: ResultService) -> None:
    batch = await running(sqlite_database, 4)
    await hand.commit(await claimed(sqlite_database), 0, 1)
    whole = row(0, 0).text + row(0, 1).text
    for offset in (1, len(row(0, 0).text) - 1, len(row(0, 0).text), len(whole)):
        assert await read(service, batch.id, offset) == (whole[offset:], False)
    with pytest.raises(InvalidRequest) as caught:
        await read(service, batch.id, len(whole) + 1)
    assert caught.value.param == "offset"


async def test_parts_that_are_sealed_between_two_looks(
    sqlite_database: Database, hand: Hand, service: ResultService, blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await running(sqlite_database, 8)
    claim = await claimed(sqlite_database)
    await hand.commit(claim, *range(8))
    original = blobs.read
    sealed: list[bool] = []

    def read_after_the_seal(key: str, *, start: int = 0, end: int | None = None) -> object:
        async def blocks() -> object:
            if not sealed:
                sealed.append(True)
                await hand.seal(claim)
            async for block in original(key, start=start, end=end):
                yield block

        return blocks()

    monkeypatch.setattr(blobs, "read", read_after_the_seal)
    assert await read(service, batch.id) == (segment(0, 8, "output"), False)
    assert sealed


async def test_batch_that_waits_or_was_cancelled_at_once(sqlite_database: Database, service: ResultService) -> None:
    async with sqlite_database.write() as tx:
        batch = await make_batch(tx)
    assert await read(service, batch.id) == (b"", False)
    async with sqlite_database.write() as tx:
        await batches.cancel(tx, batch.id, project_id="team")
    await finish(sqlite_database, batch.id)
    assert (await look(sqlite_database, batch.id)).is_terminal
    assert await read(service, batch.id) == (b"", True)


async def test_batch_of_another_project(sqlite_database: Database, service: ResultService) -> None:
    batch = await running(sqlite_database, 1)
    for batch_id, project_id in ((batch.id, "other"), ("batch_unknown", "team"), ("ü", "team")):
        with pytest.raises(NotFound):
            await service.so_far(project_id, batch_id, kind="output", offset=0)
