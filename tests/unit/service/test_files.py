from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import update

from app.blobs.local import LocalBlobs
from app.domain.file import Purpose
from app.domain.id import new_file_id
from app.errors import BlobMissing, InvalidRequest, NotFound
from app.service.files import FileService
from app.store import files as file_store
from app.store.db import Database
from app.store.tables import files as file_rows
from tests.unit.service.scenes import content, stored, upload

BAD_IDS = ["", "file-unknown", "a b", "x" * 97, "\0", "../etc", "ü"]


@pytest.mark.parametrize("file_id", BAD_IDS)
async def test_unknown_id_is_not_found_whatever_its_shape(files: FileService, file_id: str) -> None:
    for attempt in (files.get, files.delete, files.content):
        with pytest.raises(NotFound) as caught:
            await attempt("team", file_id)
        assert caught.value.message == f"No such File object: {file_id}"
        assert (caught.value.param, caught.value.code) == ("id", None)


async def test_file_of_another_project_is_not_found(files: FileService) -> None:
    file = await upload(files, project_id="other")
    for attempt in (files.get, files.delete, files.content):
        with pytest.raises(NotFound):
            await attempt("team", file.id)
    assert await files.get("other", file.id) == file


async def test_deleted_file_is_gone_and_stays_gone(files: FileService) -> None:
    file = await upload(files)
    await files.delete("team", file.id)
    for attempt in (files.get, files.delete, files.content):
        with pytest.raises(NotFound):
            await attempt("team", file.id)


async def test_expired_file_is_gone(files: FileService, sqlite_database: Database) -> None:
    file = await upload(files)
    async with sqlite_database.write() as tx:
        await tx.conn.execute(update(file_rows).values(expires_at=file.created_at - 1))
    with pytest.raises(NotFound):
        await files.get("team", file.id)
    assert (await files.page("team", purpose=None, after=None, limit=10, descending=True)).items == []


@pytest.mark.parametrize("purpose", [Purpose.USER_DATA, Purpose.ASSISTANTS])
async def test_bytes_of_some_purposes_are_not_given_out(files: FileService, purpose: Purpose) -> None:
    file = await upload(files, purpose=purpose)
    with pytest.raises(InvalidRequest) as caught:
        await files.content("team", file.id)
    assert caught.value.message == f"Not allowed to download files of purpose: {purpose}"
    assert (caught.value.param, caught.value.code) == (None, None)


async def test_content_of_many_segments_is_one_run_of_bytes(
    files: FileService, blobs: LocalBlobs, sqlite_database: Database
) -> None:
    pieces = [os.urandom(size) for size in (10, 0, 1, 3 << 20, 7)]
    whole = b"".join(pieces)
    segments = []
    for number, piece in enumerate(pieces):
        await blobs.put(f"segments/batch_1/{number}", piece)
        segments.append((f"segments/batch_1/{number}", len(piece)))
    async with sqlite_database.write() as tx:
        file = await file_store.create(
            tx,
            id=new_file_id(),
            project_id="team",
            purpose=Purpose.BATCH_OUTPUT,
            filename="o.jsonl",
            sha256=None,
            expires_after_seconds=None,
            segments=segments,
        )
    assert await content(files, file) == whole
    for start, end in [(0, 1), (9, 12), (10, 11), (5, (3 << 20) + 15), (len(whole) - 1, len(whole)), (4, 4)]:
        assert await content(files, file, start=start, end=end) == whole[start:end]


async def test_lost_blob_is_an_error_not_an_empty_file(files: FileService, root: Path) -> None:
    file = await upload(files)
    stored(root)[0].unlink()
    with pytest.raises(BlobMissing):
        await content(files, file)


async def test_page_by_purpose_order_and_cursor(files: FileService) -> None:
    made = [await upload(files, purpose=Purpose.BATCH if number % 2 else Purpose.EVALS) for number in range(5)]
    await upload(files, project_id="other")

    async def ids(**options: object) -> list[str]:
        asked = {"purpose": None, "after": None, "limit": 10, "descending": False} | options
        return [file.id for file in (await files.page("team", **asked)).items]  # type: ignore[arg-type]

    assert await ids() == [file.id for file in made]
    assert await ids(descending=True) == [file.id for file in reversed(made)]
    assert await ids(purpose="batch") == [made[1].id, made[3].id]
    assert await ids(purpose="no such purpose") == []
    assert await ids(after=made[1].id, limit=2) == [made[2].id, made[3].id]


@pytest.mark.parametrize("after", BAD_IDS)
async def test_page_after_an_unknown_file(files: FileService, after: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await files.page("team", purpose=None, after=after, limit=10, descending=True)
    assert caught.value.param == "after"
