"""The sweep."""

from __future__ import annotations

import asyncio

from app.blobs.key import part_key, upload_key
from app.settings import RetentionSettings
from app.store import files
from tests.unit.worker.yard import Yard, jsonl, line

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
