from __future__ import annotations

import asyncio

from sqlalchemy import update

from app.domain.file import Purpose
from app.domain.id import new_upload_id, new_upload_part_id
from app.domain.upload import UPLOAD_SECONDS, Upload, UploadStatus
from app.store import retention, uploads
from app.store.contract_tables import uploads as upload_rows
from app.store.db import Database


async def make(database: Database, *, project_id: str = "team", keys: tuple[str, ...] = ()) -> Upload:
    async with database.write() as tx:
        upload = await uploads.create(
            tx,
            id=new_upload_id(),
            project_id=project_id,
            filename="a.jsonl",
            purpose=Purpose.BATCH,
            mime_type="text/plain",
            bytes=100,
            file_expires_after_seconds=None,
        )
        for key in keys:
            await uploads.add_part(tx, upload.id, part_id=new_upload_part_id(), key=key, bytes=10)
    return upload


async def age(database: Database, upload: Upload, seconds: int) -> None:
    async with database.write() as tx:
        older = update(upload_rows).where(upload_rows.c.id == upload.id)
        await tx.conn.execute(older.values(expires_at=upload_rows.c.expires_at - seconds))


async def look(database: Database, upload: Upload, *, project_id: str = "team") -> Upload | None:
    async with database.read() as tx:
        return await uploads.get(tx, upload.id, project_id=project_id)


async def test_upload_is_pending_for_an_hour_and_belongs_to_its_project(database: Database) -> None:
    upload = await make(database)
    assert upload.status is UploadStatus.PENDING
    assert upload.expires_at == upload.created_at + UPLOAD_SECONDS
    assert await look(database, upload) == upload
    assert await look(database, upload, project_id="other") is None
    async with database.write() as tx:
        assert await uploads.hold(tx, upload.id, project_id="team") == upload
        assert await uploads.hold(tx, upload.id, project_id="other") is None


async def test_upload_past_its_hour_is_expired_before_the_sweep_says_so(database: Database) -> None:
    upload = await make(database, keys=("a", "b"))
    await age(database, upload, UPLOAD_SECONDS)
    found = await look(database, upload)
    assert found is not None
    assert found.status is UploadStatus.EXPIRED
    async with database.read() as tx:
        assert await uploads.lapsed(tx, grace_seconds=60, limit=10) == []
        assert await uploads.lapsed(tx, grace_seconds=0, limit=10) == [upload.id]
    async with database.write() as tx:
        assert sorted(await uploads.expire(tx, upload.id)) == ["a", "b"]
        assert await uploads.expire(tx, upload.id) == []
        assert await uploads.parts(tx, upload.id) == {}


async def test_parts_are_counted_and_own_their_blobs(database: Database) -> None:
    upload, other = await make(database, keys=("a", "b", "c")), await make(database, keys=("d",))
    async with database.read() as tx:
        assert await uploads.held(tx, upload.id) == (3, 30)
        assert await uploads.held(tx, "upload_unknown") == (0, 0)
        parts = await uploads.parts(tx, upload.id)
        assert {part.key for part in parts.values()} == {"a", "b", "c"}
        assert await retention.owned(tx, ["a", "d", "x"]) == {"a", "d"}
    async with database.write() as tx:
        assert await uploads.cancel(tx, other.id) is not None
    async with database.read() as tx:
        assert await retention.owned(tx, ["a", "d", "x"]) == {"a"}


async def test_an_upload_ends_once(database: Database) -> None:
    upload = await make(database, keys=("a", "b"))
    async with database.write() as tx:
        ended = await uploads.complete(tx, upload.id, file_id="file-1", completed_with="digest")
    assert ended is not None
    completed, keys = ended
    assert (completed.status, completed.file_id, completed.completed_with) == (
        UploadStatus.COMPLETED,
        "file-1",
        "digest",
    )
    assert sorted(keys) == ["a", "b"]
    async with database.write() as tx:
        assert await uploads.complete(tx, upload.id, file_id="file-2", completed_with="other") is None
        assert await uploads.cancel(tx, upload.id) is None
        assert await uploads.expire(tx, upload.id) == []
    assert await look(database, upload) == completed


async def test_complete_and_cancel_at_once_leave_one_winner(database: Database) -> None:
    for _ in range(10):
        upload = await make(database, keys=("a",))

        async def complete(upload_id: str = upload.id) -> bool:
            async with database.write() as tx:
                return await uploads.complete(tx, upload_id, file_id="f", completed_with="d") is not None

        async def cancel(upload_id: str = upload.id) -> bool:
            async with database.write() as tx:
                return await uploads.cancel(tx, upload_id) is not None

        assert sorted(await asyncio.gather(complete(), cancel())) == [False, True]
