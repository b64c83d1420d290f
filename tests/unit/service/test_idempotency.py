from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import func, select

from app.blobs.local import LocalBlobs
from app.domain.file import File, Purpose
from app.errors import Conflict
from app.service.batches import BatchService
from app.service.files import FileService
from app.service.idempotency import digest_of
from app.store.db import Database
from app.store.tables import batches as batch_rows
from app.store.tables import files as file_rows
from tests.unit.service.scenes import LINE, stored


async def upload(files: FileService, data: bytes = LINE, *, key: str | None = "k", project_id: str = "team") -> File:
    async with files.upload(project_id) as sink:
        await sink.write(data)
        return await sink.finish(
            purpose=Purpose.BATCH, filename="a.jsonl", expires_after_seconds=None, idempotency_key=key
        )
    raise AssertionError


def test_digest_is_of_what_was_asked_not_of_its_order() -> None:
    assert digest_of({"a": 1, "b": {"c": None, "d": "ü"}}) == digest_of({"b": {"d": "ü", "c": None}, "a": 1})
    assert digest_of({"a": None}) != digest_of({"a": "null"})
    assert digest_of({"a": ["b", "c"]}) != digest_of({"a": ["c", "b"]})


async def test_file_with_a_known_key_keeps_no_second_copy(files: FileService, root: Path) -> None:
    first = await upload(files)
    assert await upload(files) == first
    assert len(stored(root)) == 1
    with pytest.raises(Conflict):
        await upload(files, LINE * 2)
    assert len(stored(root)) == 1
    assert (await upload(files, project_id="other")).id != first.id
    assert (await upload(files, key=None)).id != first.id


async def test_files_at_once_with_one_key(sqlite_database: Database, files: FileService, root: Path) -> None:
    found = await asyncio.gather(*(upload(files) for _ in range(8)))
    assert len({file.id for file in found}) == 1
    assert len(stored(root)) == 1
    async with sqlite_database.read() as tx:
        assert (await tx.conn.execute(select(func.count()).select_from(file_rows))).scalar_one() == 1


async def test_key_of_a_deleted_file_makes_no_other(files: FileService, blobs: LocalBlobs) -> None:
    first = await upload(files)
    await files.delete("team", first.id)
    with pytest.raises(Conflict) as caught:
        await upload(files)
    assert caught.value.code == "idempotency_key_object_gone"


async def test_batches_at_once_with_one_key(sqlite_database: Database, batches: BatchService) -> None:
    async def create(window: str = "24h") -> str:
        batch = await batches.create(
            "team", endpoint="/v1/embeddings", input_file_id="f", completion_window=window, idempotency_key="k"
        )
        return batch.id

    assert len(set(await asyncio.gather(*(create() for _ in range(8))))) == 1
    async with sqlite_database.read() as tx:
        assert (await tx.conn.execute(select(func.count()).select_from(batch_rows))).scalar_one() == 1
