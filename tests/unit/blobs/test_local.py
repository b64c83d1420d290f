from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from app.blobs.base import BLOCK_BYTES, Blobs
from app.blobs.key import part_key, upload_key
from app.blobs.local import LocalBlobs
from app.errors import BlobMissing, StorageFull, Unavailable


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def blobs(root: Path) -> LocalBlobs:
    return LocalBlobs(root)


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


async def read(blobs: Blobs, key: str, *, start: int = 0, end: int | None = None) -> bytes:
    pieces = []
    async with aclosing(blobs.read(key, start=start, end=end)) as blocks:
        async for block in blocks:
            assert 0 < len(block) <= BLOCK_BYTES
            pieces.append(block)
    return b"".join(pieces)


def test_local_blobs_fulfil_the_contract(blobs: LocalBlobs) -> None:
    _: Blobs = blobs


async def test_put_then_read_gives_the_same_bytes(blobs: LocalBlobs) -> None:
    data = os.urandom(3 * BLOCK_BYTES + 17)
    await blobs.put("uploads/a", data)
    assert await blobs.get("uploads/a") == data
    assert await read(blobs, "uploads/a") == data


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 5), (3, 4), (5, None), (10, None), (0, 10)])
async def test_range_of_a_blob(blobs: LocalBlobs, start: int, end: int | None) -> None:
    data = b"0123456789"
    await blobs.put("uploads/a", data)
    assert await blobs.get("uploads/a", start=start, end=end) == data[start:end]
    assert await read(blobs, "uploads/a", start=start, end=end) == data[start:end]


async def test_writer_joins_writes_of_every_size_and_kind(blobs: LocalBlobs) -> None:
    reused = bytearray(b"x" * 10)
    expected = b""
    async with blobs.writer("uploads/a") as writer:
        for size in (0, 1, 10, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1):
            data = os.urandom(size)
            await writer.write(data)
            await writer.write(memoryview(data))
            expected += data + data
        await writer.write(reused)
        expected += bytes(reused)
        reused[:] = b"y" * 10
        await writer.write(memoryview(reused))
        expected += bytes(reused)
        reused[:] = b"z" * 10
    assert await blobs.get("uploads/a") == expected


async def test_empty_blob(blobs: LocalBlobs) -> None:
    await blobs.put("uploads/a", b"")
    assert await blobs.get("uploads/a") == b""
    assert await read(blobs, "uploads/a") == b""


async def test_nothing_is_visible_before_the_writer_ends(blobs: LocalBlobs) -> None:
    async with blobs.writer("uploads/a") as writer:
        await writer.write(b"x" * (2 * BLOCK_BYTES))
        with pytest.raises(BlobMissing):
            await blobs.get("uploads/a")
        assert [info async for info in blobs.scan()] == []
    assert len(await blobs.get("uploads/a")) == 2 * BLOCK_BYTES


async def test_exception_in_the_writer_leaves_nothing(blobs: LocalBlobs, root: Path) -> None:
    async def write() -> None:
        async with blobs.writer("uploads/a") as writer:
            await writer.write(b"x" * (2 * BLOCK_BYTES))
            raise LookupError

    with pytest.raises(LookupError):
        await write()
    assert files(root) == []


@pytest.mark.parametrize("delay_ms", [0, 1, 2, 4, 8, 16, 32])
async def test_cancel_at_any_moment_leaves_nothing_or_the_whole(blobs: LocalBlobs, root: Path, delay_ms: int) -> None:
    async def write() -> None:
        async with blobs.writer("uploads/a") as writer:
            for _ in range(4):
                await writer.write(b"x" * BLOCK_BYTES)

    task = asyncio.create_task(write())
    await asyncio.sleep(delay_ms / 1000)
    task.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        assert files(root) == []
    else:
        assert files(root) == ["uploads/a"]
        assert len(await blobs.get("uploads/a")) == 4 * BLOCK_BYTES


@pytest.mark.parametrize("step", ["create", "commit", "discard"])
async def test_cancel_while_a_thread_creates_commits_or_discards(
    blobs: LocalBlobs, root: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import app.blobs.local as module

    entered = asyncio.Event()
    loop = asyncio.get_running_loop()
    original: Callable[..., None] = getattr(module._Draft, step)

    def slow(draft: object) -> None:
        loop.call_soon_threadsafe(entered.set)
        time.sleep(0.1)
        original(draft)

    monkeypatch.setattr(module._Draft, step, slow)

    async def write() -> None:
        async with blobs.writer("uploads/a") as writer:
            await writer.write(b"abc")
            if step == "discard":
                raise LookupError

    task = asyncio.create_task(write())
    await entered.wait()
    task.cancel()
    await asyncio.sleep(0.02)
    task.cancel()  # twice: the clean-up itself must not be cut off
    await asyncio.wait([task])
    assert task.cancelled()
    assert files(root) == []


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EIO, Unavailable)]
)
async def test_failing_disk(
    blobs: LocalBlobs, root: Path, number: int, error: type[Unavailable], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number), str(root))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(error) as caught:
        await blobs.put("uploads/a", b"abc")
    assert str(root) not in caught.value.message
    assert files(root) == []


async def test_full_disk_while_writing(root: Path) -> None:
    """/dev/full gives the kernel's own ENOSPC."""
    blobs = LocalBlobs(root)

    async def write() -> None:
        async with blobs.writer("uploads/a") as writer:
            unfinished = next((root / ".tmp").iterdir())
            names = (path.name for path in Path("/proc/self/fd").iterdir())
            descriptor = next(int(name) for name in names if _target(name) == str(unfinished))
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, descriptor)
            os.close(full)
            await writer.write(b"x" * BLOCK_BYTES)

    with pytest.raises(StorageFull):
        await write()
    assert files(root) == []


def _target(name: str) -> str:
    try:
        return str(Path("/proc/self/fd", name).readlink())
    except OSError:
        return ""


async def test_folder_that_is_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("in the way")
    blobs = LocalBlobs(tmp_path / "blobs")
    with pytest.raises(Unavailable):
        await blobs.put("uploads/a", b"abc")
    with pytest.raises(Unavailable):
        await blobs.get("uploads/a")


async def test_missing_blob(blobs: LocalBlobs) -> None:
    with pytest.raises(BlobMissing):
        await blobs.get("uploads/a")
    with pytest.raises(BlobMissing):
        await read(blobs, "uploads/a")
    await blobs.delete("uploads/a")


async def test_blob_that_ends_early_is_missing_not_short(blobs: LocalBlobs) -> None:
    await blobs.put("uploads/a", b"abc")
    with pytest.raises(BlobMissing):
        await blobs.get("uploads/a", end=4)
    with pytest.raises(BlobMissing):
        await read(blobs, "uploads/a", end=4)


async def test_delete_takes_empty_folders_along(blobs: LocalBlobs, root: Path) -> None:
    await blobs.put("parts/batch_1/chunk_1/a", b"1")
    await blobs.put("parts/batch_1/chunk_2/b", b"2")
    await blobs.delete("parts/batch_1/chunk_1/a")
    assert not (root / "parts/batch_1/chunk_1").exists()
    assert await blobs.get("parts/batch_1/chunk_2/b") == b"2"
    await blobs.delete("parts/batch_1/chunk_2/b")
    assert not (root / "parts").exists()


async def test_writers_and_deleters_of_one_folder_do_not_disturb_each_other(blobs: LocalBlobs, root: Path) -> None:
    async def one(number: int) -> None:
        for turn in range(15):
            key = part_key("batch_1", "chunk_1", f"{number:08x}")
            await blobs.put(key, b"%d" % turn)
            assert await blobs.get(key) == b"%d" % turn
            await blobs.delete(key)

    await asyncio.gather(*(one(number) for number in range(6)))
    assert files(root) == []


async def test_delete_while_reading_does_not_cut_the_reader_off(blobs: LocalBlobs) -> None:
    data = os.urandom(3 * BLOCK_BYTES)
    await blobs.put("uploads/a", data)
    async with aclosing(blobs.read("uploads/a")) as blocks:
        got = await anext(blocks)
        await blobs.delete("uploads/a")
        async for block in blocks:
            got += block
    assert got == data


@pytest.mark.parametrize("turns", range(8))
async def test_cancelled_reader_closes_its_file(blobs: LocalBlobs, root: Path, turns: int) -> None:
    """Cancelled again at every turn, as a task group does it: the clean-up must not be cut off."""
    await blobs.put("uploads/a", bytes(8 * BLOCK_BYTES))
    task = asyncio.create_task(read(blobs, "uploads/a"))
    for _ in range(turns):
        await asyncio.sleep(0)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()
    assert [link for link in Path("/proc/self/fd").iterdir() if _target(link.name).startswith(str(root))] == []


async def test_scan_finds_blobs_by_prefix(blobs: LocalBlobs, root: Path) -> None:
    keys = {"uploads/a", "uploads/b", "parts/batch_1/chunk_1/a", "parts/batch_1/chunk_10/b", "parts/batch_2/chunk_1/c"}
    for key in keys:
        await blobs.put(key, key.encode())
    (root / ".tmp" / "unfinished").write_bytes(b"x")
    (root / "uploads" / ".hidden").write_bytes(b"x")
    infos = [info async for info in blobs.scan()]
    assert {info.key for info in infos} == keys
    assert all(info.bytes == len(info.key) and abs(info.modified_at - time.time()) < 10 for info in infos)
    for prefix in (
        "uploads/",
        "up",
        "parts/batch_1/",
        "parts/batch_1/chunk_1",
        "parts/batch_1/chunk_1/",
        "parts/x",
        "no/",
    ):
        assert {info.key async for info in blobs.scan(prefix)} == {key for key in keys if key.startswith(prefix)}


async def test_scan_before_the_first_write(blobs: LocalBlobs) -> None:
    assert [info async for info in blobs.scan("uploads/")] == []
    assert await blobs.sweep_unfinished(older_than_seconds=0) == 0


async def test_sweep_unfinished_takes_only_what_is_old(blobs: LocalBlobs, root: Path) -> None:
    await blobs.put("uploads/a", b"x")
    for name, age in (("old", 100), ("new", 0)):
        path = root / ".tmp" / name
        path.write_bytes(b"x")
        os.utime(path, (time.time() - age, time.time() - age))
    assert await blobs.sweep_unfinished(older_than_seconds=50) == 1
    assert files(root) == [".tmp/new", "uploads/a"]


async def test_check_leaves_nothing(blobs: LocalBlobs, root: Path) -> None:
    await blobs.check()
    assert files(root) == []


async def test_check_below_the_free_space_asked_for(root: Path) -> None:
    blobs = LocalBlobs(root, min_free_bytes=1 << 60)
    with pytest.raises(StorageFull, match="MiB of disk are free"):
        await blobs.check()
    assert files(root) == []


async def test_free_bytes_before_the_folder_exists(blobs: LocalBlobs) -> None:
    assert await blobs.free_bytes() > 0


@pytest.mark.parametrize("key", ["../a", "a", ".tmp/a", "a/../../b", "uploads/A"])
async def test_name_that_is_no_key_never_becomes_a_path(blobs: LocalBlobs, key: str) -> None:
    for attempt in (blobs.put(key, b""), blobs.get(key), blobs.delete(key), read(blobs, key)):
        with pytest.raises(ValueError, match="not a blob key"):
            await attempt


async def test_files_are_private(blobs: LocalBlobs, root: Path) -> None:
    key = upload_key()
    await blobs.put(key, b"x")
    assert (root / key).stat().st_mode & 0o077 == 0
