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
from app.blobs.key import upload_key
from app.blobs.local import LocalBlobs
from app.errors import StorageFull, Unavailable
from tests.unit.blobs.stores import files, read


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def blobs(root: Path) -> LocalBlobs:
    return LocalBlobs(root)


def test_local_blobs_fulfil_the_contract(blobs: LocalBlobs) -> None:
    _: Blobs = blobs


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


async def test_delete_takes_empty_folders_along(blobs: LocalBlobs, root: Path) -> None:
    await blobs.put("parts/batch_1/chunk_1/a", b"1")
    await blobs.put("parts/batch_1/chunk_2/b", b"2")
    await blobs.delete("parts/batch_1/chunk_1/a")
    assert not (root / "parts/batch_1/chunk_1").exists()
    assert await blobs.get("parts/batch_1/chunk_2/b") == b"2"
    await blobs.delete("parts/batch_1/chunk_2/b")
    assert not (root / "parts").exists()


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


async def test_scan_passes_over_what_is_no_blob(blobs: LocalBlobs, root: Path) -> None:
    await blobs.put("uploads/a", b"x")
    (root / ".tmp" / "unfinished").write_bytes(b"x")
    (root / "uploads" / ".hidden").write_bytes(b"x")
    assert [info.key async for info in blobs.scan()] == ["uploads/a"]


async def test_sweep_unfinished_takes_only_what_is_old(blobs: LocalBlobs, root: Path) -> None:
    await blobs.put("uploads/a", b"x")
    for name, age in (("old", 100), ("new", 0)):
        path = root / ".tmp" / name
        path.write_bytes(b"x")
        os.utime(path, (time.time() - age, time.time() - age))
    assert await blobs.sweep_unfinished(older_than_seconds=50) == 1
    assert files(root) == [".tmp/new", "uploads/a"]


async def test_check_below_the_free_space_asked_for(root: Path) -> None:
    blobs = LocalBlobs(root, min_free_bytes=1 << 60)
    with pytest.raises(StorageFull, match="MiB of disk are free"):
        await blobs.check()
    assert files(root) == []


async def test_free_bytes_before_the_folder_exists(blobs: LocalBlobs) -> None:
    assert await blobs.free_bytes() > 0


async def test_files_are_private(blobs: LocalBlobs, root: Path) -> None:
    key = upload_key()
    await blobs.put(key, b"x")
    assert (root / key).stat().st_mode & 0o077 == 0
