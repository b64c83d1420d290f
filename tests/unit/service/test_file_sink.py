from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.blobs.base import BlobWriter
from app.blobs.local import LocalBlobs
from app.domain.file import Purpose
from app.errors import InvalidRequest, StorageFull, TooLarge, Unavailable
from app.service import purposes as module
from app.service.files import FileService
from app.service.purposes import check_filename, parse_purpose
from app.settings import LimitSettings, RetentionSettings
from app.store.db import Database, Write
from app.worker.retention import Sweep
from tests.unit.service.scenes import LINE, content, stored, upload

DAY = 86_400


async def test_upload_is_counted_hashed_and_kept_as_sent(files: FileService) -> None:
    data = LINE + os.urandom(5 << 20)
    file = await upload(files, data)
    assert (file.bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert (file.filename, file.purpose) == ("a.jsonl", Purpose.BATCH)
    assert await content(files, file) == data
    assert await files.get("team", file.id) == file


@pytest.mark.parametrize("step_bytes", [1, 67, 2 << 20, (2 << 20) + 1])
async def test_upload_in_steps_of_any_size(files: FileService, step_bytes: int) -> None:
    data = LINE * (30 if step_bytes < 100 else 80_000)
    file = await upload(files, data, step_bytes=step_bytes)
    assert file.sha256 == hashlib.sha256(data).hexdigest()
    assert await content(files, file) == data


@pytest.mark.parametrize(
    ("purpose", "asked", "life"),
    [
        (Purpose.BATCH, None, 30 * DAY),
        (Purpose.BATCH, 3600, 3600),
        (Purpose.USER_DATA, None, None),
        (Purpose.USER_DATA, 3600, 3600),
    ],
)
async def test_life_of_a_file(files: FileService, purpose: Purpose, asked: int | None, life: int | None) -> None:
    file = await upload(files, purpose=purpose, expires_after_seconds=asked)
    assert (None if file.expires_at is None else file.expires_at - file.created_at) == life


async def test_file_is_allowed_up_to_its_limit(files: FileService, limits: LimitSettings, root: Path) -> None:
    filler = LINE + b"\n" * (limits.batch_file_max_bytes - len(LINE))
    assert (await upload(files, filler)).bytes == limits.batch_file_max_bytes
    with pytest.raises(TooLarge, match=r"^File is too large\.$"):
        await upload(files, filler + b"\n")
    more = await upload(files, filler + b"\n", purpose=Purpose.USER_DATA)
    assert more.bytes == limits.batch_file_max_bytes + 1
    with pytest.raises(TooLarge):
        await upload(files, bytes(limits.file_max_bytes + 1), purpose=Purpose.USER_DATA)
    assert len(stored(root)) == 2


async def test_limit_holds_as_soon_as_the_purpose_is_known(
    files: FileService, limits: LimitSettings, root: Path
) -> None:
    async def early() -> None:
        async with files.upload("team") as sink:
            sink.declare(Purpose.BATCH)
            for _ in range(limits.batch_file_max_bytes >> 20):
                await sink.write(bytes(1 << 20))
            await sink.write(b"x")

    async def late() -> None:
        async with files.upload("team") as sink:
            await sink.write(bytes(limits.batch_file_max_bytes + 1))
            sink.declare(Purpose.BATCH)

    for attempt in (early, late):
        with pytest.raises(TooLarge):
            await attempt()
    assert stored(root) == []


@pytest.mark.parametrize(
    "data",
    [
        LINE,
        LINE + b"not json\n",
        b"\xef\xbb\xbf" + LINE,
        b"\r\n \t\n" + LINE,
        LINE.rstrip(b"\n"),
        LINE.replace(b"\n", b"\r\n") * 2,
        b"\n\n\n",
        b'{"a":"' + b"x" * (2 << 20) + b'"}\n',
        b'["not an object"]\n',
    ],
)
async def test_batch_file_whose_first_line_is_json_is_accepted(files: FileService, data: bytes) -> None:
    assert (await upload(files, data)).bytes == len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json\n" + LINE,
        b"\n\nnot json",
        b'{"a":1} trailing\n',
        b"{'a':1}\n",
        b'{"a":NaN}\n',
        b'{"a":"\xff"}\n',
        LINE.decode().encode("utf-16"),
        b"[" * 100_000 + b"\n",
        b"x" * (2 << 20),
        b"\0",
    ],
)
@pytest.mark.parametrize("filename", ["a.jsonl", "upload"])
async def test_batch_file_whose_first_line_is_not_json(
    files: FileService, root: Path, data: bytes, filename: str
) -> None:
    with pytest.raises(InvalidRequest, match=r"Invalid file format for Batch API\. Must be \.jsonl"):
        await upload(files, data, filename=filename)
    assert stored(root) == []
    assert (await files.page("team", purpose=None, after=None, limit=10, descending=True)).items == []


@pytest.mark.parametrize("data", [b"", b"not json", os.urandom(3000)], ids=["none", "text", "random"])
async def test_other_purposes_take_any_bytes(files: FileService, data: bytes) -> None:
    file = await upload(files, data, purpose=Purpose.VISION, filename="a.png")
    assert file.sha256 == hashlib.sha256(data).hexdigest()
    assert await content(files, file) == data


@pytest.mark.parametrize("filename", ["a.jsonl", "A.JSONL", "upload", "a.b.jsonl"])
def test_name_for_a_batch_file(filename: str) -> None:
    check_filename(filename, purpose=Purpose.BATCH)


@pytest.mark.parametrize("filename", ["notes.txt", "a.json", "a.jsonl.gz", "a."])
def test_other_name_for_a_batch_file(filename: str) -> None:
    check_filename(filename, purpose=Purpose.USER_DATA)
    with pytest.raises(InvalidRequest, match=r"^Invalid file format for Batch API\. Must be \.jsonl$"):
        check_filename(filename, purpose=Purpose.BATCH)


def test_purpose_by_name() -> None:
    assert parse_purpose("fine-tune") is Purpose.FINE_TUNE
    for text in ("vector_store", "batch_output", "", "Batch"):
        with pytest.raises(InvalidRequest) as caught:
            parse_purpose(text)
        assert caught.value.param == "purpose"
        assert caught.value.message == (
            f"'{text}' is not one of ['fine-tune', 'assistants', 'batch', 'user_data', 'vision', 'evals'] - 'purpose'"
        )


@pytest.mark.parametrize("written", [0, 100, 5 << 20])
async def test_upload_left_without_finish_leaves_nothing(files: FileService, root: Path, written: int) -> None:
    async with files.upload("team") as sink:
        await sink.write(bytes(written))
    assert stored(root) == []


async def test_exception_while_uploading_leaves_nothing(files: FileService, root: Path) -> None:
    async def broken() -> None:
        async with files.upload("team") as sink:
            await sink.write(bytes(5 << 20))
            raise LookupError

    with pytest.raises(LookupError):
        await broken()
    assert stored(root) == []


@pytest.mark.parametrize("delay_ms", [0, 1, 3, 9, 27])
async def test_cancel_at_any_moment_leaves_nothing_or_a_file(files: FileService, root: Path, delay_ms: int) -> None:
    task = asyncio.create_task(upload(files, LINE * 100_000))
    await asyncio.sleep(delay_ms / 1000)
    task.cancel()
    await asyncio.wait([task])
    rows = (await files.page("team", purpose=None, after=None, limit=10, descending=True)).items
    assert len(stored(root)) == len(rows)


async def test_full_disk(files: FileService, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageFull):
        await upload(files, LINE * 100_000)
    assert stored(root) == []


class AwayDatabase(Database):
    """Answers reads, and fails each commit: before it happens, or after."""

    after_commit = False

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[Write]:
        if not self.after_commit:
            raise Unavailable("The database does not answer.")
        async with super().write() as tx:
            yield tx
        raise Unavailable("The database does not answer.")


@pytest.fixture
async def away(sqlite_url: str) -> AsyncGenerator[AwayDatabase]:
    database = AwayDatabase(sqlite_url)
    yield database
    await database.close()


@pytest.mark.parametrize("after_commit", [False, True])
async def test_row_that_may_or_may_not_be_there_decides_over_the_bytes(
    away: AwayDatabase, blobs: LocalBlobs, limits: LimitSettings, root: Path, after_commit: bool
) -> None:
    away.after_commit = after_commit
    files = FileService(database=away, blobs=blobs, limits=limits, retention=RetentionSettings())
    with pytest.raises(Unavailable):
        await upload(files)
    rows = (await files.page("team", purpose=None, after=None, limit=10, descending=True)).items
    assert len(rows) == len(stored(root)) == int(after_commit)


async def test_hashing_and_the_first_line_stay_off_the_loop(
    files: FileService, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    class Recorded:
        def __init__(self) -> None:
            self._hash = hashlib.new("sha256")

        def update(self, data: bytes) -> None:
            threads.append(threading.get_ident())
            self._hash.update(data)

        def hexdigest(self) -> str:
            return self._hash.hexdigest()

    original = module._is_json

    def recorded(line: bytes) -> bool:
        threads.append(threading.get_ident())
        return original(line)

    monkeypatch.setattr(hashlib, "sha256", Recorded)
    monkeypatch.setattr(module, "_is_json", recorded)
    data = LINE * 100_000
    file = await upload(files, data)
    assert file.sha256 == hashlib.new("sha256", data).hexdigest()
    assert len(threads) == 1 + -(-len(data) // (2 << 20))
    assert threading.get_ident() not in threads


class StopsHere(LocalBlobs):
    """A process that stands still once its bytes are durable, and is woken up later."""

    def __init__(self, path: Path, *, seconds: float) -> None:
        super().__init__(path)
        self._seconds = seconds

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[BlobWriter]:
        async with super().writer(key) as writer:
            yield writer
        await asyncio.sleep(self._seconds)


async def test_process_that_stood_still_names_nothing_the_sweep_may_have_taken(database: Database, root: Path) -> None:
    """The sweep has removed the bytes when it wakes up; a row that names them would be a lie."""
    retention = RetentionSettings(orphan_grace_seconds=0.4)
    blobs = StopsHere(root, seconds=1.2)
    files = FileService(database=database, blobs=blobs, limits=LimitSettings(), retention=retention)
    sweep = Sweep(database=database, blobs=LocalBlobs(root), settings=retention)
    uploading = asyncio.create_task(upload(files))
    while not stored(root):  # noqa: ASYNC110 - asks what has no event
        await asyncio.sleep(0.01)
    while stored(root) and not uploading.done():
        await sweep._remove_orphans()
        await asyncio.sleep(0.05)
    with pytest.raises(Unavailable, match="too long"):
        await uploading
    assert (await files.page("team", purpose=None, after=None, limit=10, descending=True)).items == []
    assert stored(root) == []


async def test_slow_upload_within_the_grace_time_is_kept(sqlite_database: Database, root: Path) -> None:
    retention = RetentionSettings(orphan_grace_seconds=60)
    blobs = StopsHere(root, seconds=0.3)
    files = FileService(database=sqlite_database, blobs=blobs, limits=LimitSettings(), retention=retention)
    assert await content(files, await upload(files)) == LINE
