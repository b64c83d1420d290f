from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from app.blobs.local import LocalBlobs
from app.domain.file import Purpose
from app.domain.upload import Upload, UploadStatus
from app.errors import Conflict, InvalidRequest, NotFound, StorageFull, TooLarge
from app.service.files import FileService
from app.service.uploads import UploadService
from app.settings import LimitSettings, RetentionSettings
from app.store.db import Database
from tests.unit.service.scenes import LINE, content, stored

LIMITS = LimitSettings(batch_file_max_bytes=8 << 20, upload_max_bytes=16 << 20, upload_part_max_bytes=4 << 20)


@pytest.fixture
def uploads(sqlite_database: Database, blobs: LocalBlobs) -> UploadService:
    return UploadService(database=sqlite_database, blobs=blobs, limits=LIMITS, retention=RetentionSettings())


async def create(uploads: UploadService, size: int, **changes: Any) -> Upload:
    usual: dict[str, Any] = {
        "filename": "a.jsonl",
        "purpose": Purpose.EVALS,
        "mime_type": "application/jsonl",
        "expires_after_seconds": None,
    }
    return await uploads.create("team", bytes=size, **(usual | changes))


async def add(uploads: UploadService, upload: Upload, data: bytes, *, project_id: str = "team") -> str:
    async with uploads.part(project_id, upload.id) as sink:
        for start in range(0, len(data), 70_000):
            await sink.write(memoryview(data)[start : start + 70_000])
        return (await sink.finish()).id


async def test_file_is_its_parts_in_order(uploads: UploadService, files: FileService, root: Path) -> None:
    pieces = [os.urandom(size) for size in (1, 3 << 20, 70_001)]
    upload = await create(uploads, sum(map(len, pieces)))
    ids = [await add(uploads, upload, piece) for piece in pieces[::-1]][::-1]
    before = set(stored(root))
    done = await uploads.complete("team", upload.id, part_ids=ids, md5=hashlib.md5(b"".join(pieces)).hexdigest())
    assert done.file is not None
    assert await content(files, done.file) == b"".join(pieces)
    assert await content(files, done.file, start=1, end=5) == pieces[1][:4]
    assert set(stored(root)) == before, "nothing is copied"


async def test_another_project_sees_no_upload(uploads: UploadService) -> None:
    upload = await create(uploads, 5)
    with pytest.raises(NotFound):
        await add(uploads, upload, b"12345", project_id="other")
    with pytest.raises(NotFound):
        await uploads.complete("other", upload.id, part_ids=[], md5=None)
    with pytest.raises(NotFound):
        await uploads.cancel("other", upload.id)


@pytest.mark.parametrize(
    ("purpose", "size", "fits"),
    [
        (Purpose.BATCH, 8 << 20, True),
        (Purpose.BATCH, (8 << 20) + 1, False),
        (Purpose.EVALS, 16 << 20, True),
        (Purpose.EVALS, (16 << 20) + 1, False),
    ],
)
async def test_size_limit_of_the_purpose(uploads: UploadService, purpose: Purpose, size: int, fits: bool) -> None:
    if fits:
        assert (await create(uploads, size, purpose=purpose)).bytes == size
        return
    with pytest.raises(InvalidRequest) as caught:
        await create(uploads, size, purpose=purpose)
    assert (caught.value.param, caught.value.code) == ("bytes", "integer_above_max_value")


async def test_part_above_its_limit_leaves_nothing(uploads: UploadService, root: Path) -> None:
    upload = await create(uploads, 5 << 20)
    with pytest.raises(TooLarge) as caught:
        await add(uploads, upload, bytes((4 << 20) + 1))
    assert caught.value.param == "data"
    assert stored(root) == []
    await add(uploads, upload, bytes(4 << 20))


async def test_part_that_is_left_or_breaks_leaves_nothing(uploads: UploadService, root: Path) -> None:
    upload = await create(uploads, 5 << 20)
    async with uploads.part("team", upload.id) as sink:
        await sink.write(bytes(3 << 20))

    async def broken() -> None:
        async with uploads.part("team", upload.id) as sink:
            await sink.write(bytes(3 << 20))
            raise LookupError

    with pytest.raises(LookupError):
        await broken()
    assert stored(root) == []


async def test_upload_that_ends_while_a_part_arrives_takes_it_not(uploads: UploadService, root: Path) -> None:
    upload = await create(uploads, 5)

    async def late() -> None:
        async with uploads.part("team", upload.id) as sink:
            await sink.write(b"12345")
            await uploads.cancel("team", upload.id)
            await sink.finish()

    with pytest.raises(InvalidRequest, match="cancelled"):
        await late()
    assert stored(root) == []


@pytest.mark.parametrize("delay_ms", [0, 1, 3, 9, 27])
async def test_cancel_of_the_task_leaves_nothing_or_a_part(uploads: UploadService, root: Path, delay_ms: int) -> None:
    data = os.urandom(3 << 20)
    upload = await create(uploads, len(data))
    task = asyncio.create_task(add(uploads, upload, data))
    await asyncio.sleep(delay_ms / 1000)
    task.cancel()
    await asyncio.wait([task])
    kept = len(stored(root))
    assert kept in (0, 1)
    assert (await uploads.cancel("team", upload.id)).status is UploadStatus.CANCELLED
    assert stored(root) == [], "a part that is there is owned by its upload"


class _Interrupted(LocalBlobs):
    """Lets something happen right before the first read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.before_read: Any = None

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        if self.before_read is not None:
            action, self.before_read = self.before_read, None
            await action()
        return await super().get(key, start=start, end=end)


@pytest.mark.parametrize("same", [True, False])
async def test_upload_that_ends_while_its_content_is_checked(sqlite_database: Database, root: Path, same: bool) -> None:
    blobs = _Interrupted(root)
    uploads = UploadService(database=sqlite_database, blobs=blobs, limits=LIMITS, retention=RetentionSettings())
    upload = await create(uploads, len(LINE), purpose=Purpose.BATCH)
    ids = [await add(uploads, upload, LINE)]

    async def complete() -> Any:
        return await uploads.complete("team", upload.id, part_ids=ids, md5=None)

    async def cancel() -> Any:
        return await uploads.cancel("team", upload.id)

    blobs.before_read = complete if same else cancel
    if same:
        done = await complete()
        assert done == await complete()
    else:
        with pytest.raises(InvalidRequest, match="cancelled"):
            await complete()


async def test_full_disk(uploads: UploadService, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = await create(uploads, 5 << 20)

    def fail(descriptor: int) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageFull):
        await add(uploads, upload, bytes(3 << 20))
    assert stored(root) == []


async def test_md5_stays_off_the_loop(uploads: UploadService, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(3 << 20)
    wanted = hashlib.md5(data).hexdigest()
    upload = await create(uploads, len(data))
    ids = [await add(uploads, upload, data)]
    threads: set[int] = set()

    class Recorded:
        def __init__(self, **options: Any) -> None:
            self._hash = hashlib.new("md5", usedforsecurity=False)

        def update(self, block: bytes) -> None:
            threads.add(threading.get_ident())
            self._hash.update(block)

        def hexdigest(self) -> str:
            return self._hash.hexdigest()

    monkeypatch.setattr(hashlib, "md5", Recorded)
    await uploads.complete("team", upload.id, part_ids=ids, md5=wanted)
    assert threads
    assert threading.get_ident() not in threads


async def test_key_of_another_complete_is_a_conflict_even_where_the_call_would_be_refused(
    uploads: UploadService,
) -> None:
    upload = await create(uploads, len(LINE))
    ids = [await add(uploads, upload, LINE)]
    done = await uploads.complete("team", upload.id, part_ids=ids, md5=None, idempotency_key="k")
    assert await uploads.complete("team", upload.id, part_ids=ids, md5=None, idempotency_key="k") == done
    assert await uploads.complete("team", upload.id, part_ids=ids, md5=None) == done
    with pytest.raises(Conflict):
        await uploads.complete("team", upload.id, part_ids=["part_unknown"], md5=None, idempotency_key="k")
