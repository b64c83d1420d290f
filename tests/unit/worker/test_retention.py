"""The sweep."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest
from sqlalchemy import select, update

from app.blobs.key import part_key, segment_key, upload_key
from app.domain.chunk import ChunkSpec, SealedSegment, Tally
from app.domain.file import Purpose
from app.domain.id import new_upload_id, new_upload_part_id
from app.domain.project import DEFAULT_PROJECT
from app.errors import LeaseLost, Unavailable
from app.settings import RetentionSettings
from app.store import chunks, files, idempotency, uploads, validations
from app.store.contract_tables import idempotency_keys
from app.store.contract_tables import uploads as upload_rows
from app.store.db import Database
from app.store.idempotency import KeyUse
from app.store.tables import chunks as chunk_rows
from app.store.tables import parts, segments
from app.worker.retention import Sweep
from tests.unit.worker.yard import QUICK, Yard, jsonl, line

EAGER = RetentionSettings(sweep_seconds=0.1, orphan_grace_seconds=0.5)


async def test_purge_deleted_file(yard: Yard) -> None:
    file_id = await yard.put_file(b"x" * 100, pieces=3)
    kept = await yard.put_file(b"y" * 100)
    async with yard.database.write() as tx:
        await files.delete(tx, file_id, project_id="proj_default")
    yard.start(retention=EAGER)
    async with asyncio.timeout(5):
        while len(await yard.blob_keys()) > 1:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    assert await yard.content(kept) == b"y" * 100


async def test_remove_orphans_after_the_grace_time(yard: Yard) -> None:
    orphans = [upload_key(), part_key("batch_1", "chunk_1", "0" * 32)]
    kept = await yard.put_file(b"y" * 100)
    for key in orphans:
        await yard.blobs.put(key, b"nobody's")
    yard.start(retention=EAGER)
    await asyncio.sleep(0.3)
    assert len(await yard.blob_keys()) == 3, "a blob may be about to be named"
    async with asyncio.timeout(5):
        while len(await yard.blob_keys()) > 1:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    assert await yard.content(kept) == b"y" * 100


async def test_sweep_leaves_running_batches_alone(yard: Yard) -> None:
    yard.start(retention=EAGER, window=8)
    lines = jsonl(line(str(number), text=str(number), echo={"delay_ms": 30}) for number in range(400))
    file_id = await yard.put_file(lines)
    batch_id = await yard.create(file_id=file_id)
    await yard.until(batch_id, "in_progress")
    async with yard.database.write() as tx:
        await files.delete(tx, file_id, project_id="proj_default")
    batch = await yard.until(batch_id)
    await yard.check_ledger(batch, map(str, range(400)))


@asynccontextmanager
async def sweeping(yard: Yard, settings: RetentionSettings, *, many: int = 1) -> AsyncGenerator[None]:
    """Sweeps at work, each with connections of its own, and no worker beside them."""
    databases = [Database(yard.url) for _ in range(many)]
    stop = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            for database in databases:
                group.create_task(Sweep(database=database, blobs=yard.blobs, settings=settings).run(stop))
            yield
            stop.set()
    finally:
        for database in databases:
            await database.close()


async def test_sweep_never_removes_what_a_waiting_worker_is_about_to_name(yard: Yard) -> None:
    """The database is away from one worker only, for longer than its lease and the grace time, and nobody else claims.

    Whichever of the two acts first when it is back: no part is named whose bytes are gone.
    """
    # All lines are in one chunk: between two chunks nothing would be in flight, and so no part would wait for its name.
    worker = yard.start(settings=QUICK.model_copy(update={"chunk_max_lines": 300}), window=8)
    batch_id = await yard.create(jsonl(line(str(number), echo={"delay_ms": 20}) for number in range(300)))
    await yard.until_ended(batch_id, 40)
    worker.database.fail(Unavailable("away"))
    waiting = set(await yard.blob_keys("parts/"))
    async with sweeping(yard, EAGER), asyncio.timeout(20):
        while waiting <= set(await yard.blob_keys("parts/")):  # some part waits for its name; then it is gone
            waiting |= set(await yard.blob_keys("parts/"))
            await asyncio.sleep(0.02)
        worker.database.fail(None)
        batch = await yard.until(batch_id)
    await yard.check_ledger(batch, map(str, range(300)))


HASTY = RetentionSettings(sweep_seconds=0.05, orphan_grace_seconds=0.8)


class Actors:
    """What goes on while sweeps run: files come and go, chunks are leased, parts and segments written and named."""

    def __init__(self, yard: Yard, chance: random.Random) -> None:
        self.yard = yard
        self.chance = chance
        self.excused: set[str] = set()
        self.named = 0
        self.refused = 0

    async def file(self) -> None:
        began = time.monotonic()
        file_id = await self.yard.put_file(b"x" * 10, pieces=self.chance.randint(1, 3))
        if time.monotonic() - began > HASTY.orphan_grace_seconds * 0.9:
            # A machine this slow broke the rule that an upload is named within the grace time.
            async with self.yard.database.write() as tx:
                self.excused.update(segment.key for segment in await files.segments(tx, file_id))
        await asyncio.sleep(self.chance.uniform(0, 0.2))
        if self.chance.random() < 0.7:
            async with self.yard.database.write() as tx:
                await files.delete(tx, file_id, project_id=DEFAULT_PROJECT)

    async def litter(self) -> None:
        keys = [upload_key(), part_key("batch_x", "chunk_x", "0" * 32), segment_key("batch_x", "chunk_x", "error")]
        await self.yard.blobs.put(self.chance.choice(keys), b"nobody's")

    async def chunk(self) -> None:
        """One lease: parts, then a seal; each may be named long after it was written, or never."""
        async with self.yard.database.write() as tx:
            claim = await chunks.claim(tx, lease_seconds=self.chance.choice([0.05, 0.5, 5]))
        if claim is None:
            return
        ended = sum(part.tally.completed for part in claim.parts)
        with suppress(LeaseLost):
            while ended < claim.spec.lines and self.chance.random() < 0.8:
                key = part_key(claim.batch_id, claim.chunk_id, claim.token)
                await self.write(key)
                async with self.yard.database.write() as tx:
                    await chunks.commit_part(tx, claim.chunk_id, claim.token, key=key, bytes=9, tally=Tally(1))
                ended += 1
                self.named += 1
            if ended == claim.spec.lines:
                key = segment_key(claim.batch_id, claim.chunk_id, "output")
                await self.write(key)
                async with self.yard.database.write() as tx:
                    sealed = SealedSegment(key, 9, claim.spec.lines)
                    dropped = await chunks.seal(tx, claim.chunk_id, claim.token, output=sealed, error=None)
                self.named += 1
                for key in dropped:
                    await self.yard.blobs.delete(key)
            return
        self.refused += 1

    async def write(self, key: str) -> None:
        await self.yard.blobs.put(key, b"x" * 9)
        await asyncio.sleep(self.chance.choice([0, 0, 0.02, 1.5]))

    async def owned(self) -> set[str]:
        async with self.yard.database.read() as tx:
            found: set[str | None] = set()
            for column in (segments.c.key, parts.c.key, chunk_rows.c.output_key):
                found.update((await tx.conn.execute(select(column))).scalars())
        return {key for key in found if key}


@pytest.mark.parametrize("seed", range(4))
async def test_sweeps_amid_everything_remove_no_owned_blob_and_leave_no_other(yard: Yard, seed: int) -> None:
    chance = random.Random(seed)
    actors = Actors(yard, chance)
    batch_id = await yard.create(b"x" * 4000)
    async with yard.database.write() as tx:
        claim = await validations.claim(tx, lease_seconds=60)
        assert claim is not None
        specs = [ChunkSpec(place, place * 40, place * 40 + 40, place * 4 + 1, 4) for place in range(60)]
        await validations.accept(tx, claim, model=None, chunks=specs)
    async with sweeping(yard, HASTY, many=2), asyncio.TaskGroup() as group:
        for _ in range(150):
            group.create_task(chance.choice([actors.file, actors.litter, actors.chunk, actors.chunk])())
            await asyncio.sleep(chance.uniform(0, 0.03))
    assert await actors.owned() - actors.excused <= set(await yard.blob_keys())
    assert actors.named > 20
    assert actors.refused > 0, "no lease was lost: the test does not try what it is for"
    async with sweeping(yard, HASTY), asyncio.timeout(25):
        # Long leases must lapse first.
        while not set(await yard.blob_keys()) <= await actors.owned():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    assert (await yard.batch(batch_id)).status.value == "in_progress"


async def test_expire_uploads_and_forget_keys_whose_time_is_over(yard: Yard) -> None:
    kept, lapsed = new_upload_id(), new_upload_id()
    keys = {kept: upload_key(), lapsed: upload_key()}
    async with yard.database.write() as tx:
        for upload_id, key in keys.items():
            await yard.blobs.put(key, b"part")
            await uploads.create(
                tx,
                id=upload_id,
                project_id=DEFAULT_PROJECT,
                filename="a.jsonl",
                purpose=Purpose.BATCH,
                mime_type="text/plain",
                bytes=4,
                file_expires_after_seconds=None,
            )
            await uploads.add_part(tx, upload_id, part_id=new_upload_part_id(), key=key, bytes=4)
        old = update(upload_rows).where(upload_rows.c.id == lapsed)
        await tx.conn.execute(old.values(expires_at=upload_rows.c.expires_at - 2 * 3600))
        for name, seconds in (("old", 0), ("new", 3600)):
            use = KeyUse(DEFAULT_PROJECT, "files.create", name, "digest", seconds)
            await idempotency.claim(tx, use, object_id="file-1")
    yard.start(retention=EAGER)
    async with asyncio.timeout(5):
        while await yard.blob_keys() != [keys[kept]]:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    async with yard.database.read() as tx:
        found = {row.id: row.status for row in await tx.conn.execute(select(upload_rows))}
        assert found == {kept: "pending", lapsed: "expired"}
    async with asyncio.timeout(5):
        while True:
            async with yard.database.read() as tx:
                left = list((await tx.conn.execute(select(idempotency_keys.c.key))).scalars())
            if left == ["new"]:
                break
            await asyncio.sleep(0.02)
