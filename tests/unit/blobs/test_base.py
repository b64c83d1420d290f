"""The contract, on every store."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import aclosing

import pytest

from app.blobs.base import BLOCK_BYTES, Blobs
from app.blobs.key import part_key
from app.errors import BlobMissing
from tests.unit.blobs.stores import Store, read

#: More than one part of a multipart upload, and no multiple of one.
LARGE_BYTES = 19 * BLOCK_BYTES + 17


@pytest.mark.parametrize("size", [1, 3 * BLOCK_BYTES + 17, 8 * BLOCK_BYTES, LARGE_BYTES])
async def test_put_then_read_gives_the_same_bytes(store: Store, size: int) -> None:
    data = os.urandom(size)
    await store.blobs.put("uploads/a", data)
    assert await store.blobs.get("uploads/a") == data
    assert await read(store.blobs, "uploads/a") == data
    assert await read(store.blobs, "uploads/a", start=size // 3, end=size // 2) == data[size // 3 : size // 2]
    assert store.left() == ["uploads/a"]


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 5), (3, 4), (5, None), (10, None), (12, None), (0, 10)])
async def test_range_of_a_blob(blobs: Blobs, start: int, end: int | None) -> None:
    data = b"0123456789"
    await blobs.put("uploads/a", data)
    assert await blobs.get("uploads/a", start=start, end=end) == data[start:end]
    assert await read(blobs, "uploads/a", start=start, end=end) == data[start:end]


async def test_writer_joins_writes_of_every_size_and_kind(blobs: Blobs) -> None:
    reused = bytearray(b"x" * 10)
    expected = b""
    async with blobs.writer("uploads/a") as writer:
        for size in (0, 1, 10, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 6 * BLOCK_BYTES):
            data = os.urandom(size)
            await writer.write(data)
            await writer.write(memoryview(data))
            await writer.write(bytearray(data))
            expected += data + data + data
        await writer.write(reused)
        expected += bytes(reused)
        reused[:] = b"y" * 10
        await writer.write(memoryview(reused))
        expected += bytes(reused)
        reused[:] = b"z" * 10
    assert await blobs.get("uploads/a") == expected


async def test_empty_blob(blobs: Blobs) -> None:
    await blobs.put("uploads/a", b"")
    assert await blobs.get("uploads/a") == b""
    assert await read(blobs, "uploads/a") == b""
    assert [info.bytes async for info in blobs.scan()] == [0]


@pytest.mark.parametrize("size", [2 * BLOCK_BYTES, LARGE_BYTES])
async def test_nothing_is_visible_before_the_writer_ends(blobs: Blobs, size: int) -> None:
    async with blobs.writer("uploads/a") as writer:
        await writer.write(b"x" * size)
        with pytest.raises(BlobMissing):
            await blobs.get("uploads/a")
        assert [info async for info in blobs.scan()] == []
    assert len(await blobs.get("uploads/a")) == size


@pytest.mark.parametrize("size", [2 * BLOCK_BYTES, LARGE_BYTES])
async def test_exception_in_the_writer_leaves_nothing(store: Store, size: int) -> None:
    async def write() -> None:
        async with store.blobs.writer("uploads/a") as writer:
            await writer.write(b"x" * size)
            raise LookupError

    with pytest.raises(LookupError):
        await write()
    assert store.left() == []


@pytest.mark.parametrize("delay_ms", [0, 1, 2, 4, 8, 16, 32, 64, 128])
async def test_cancel_at_any_moment_leaves_nothing_or_the_whole(store: Store, delay_ms: int) -> None:
    async def write() -> None:
        async with store.blobs.writer("uploads/a") as writer:
            for _ in range(19):
                await writer.write(b"x" * BLOCK_BYTES)

    task = asyncio.create_task(write())
    await asyncio.sleep(delay_ms / 1000)
    while not task.done():
        task.cancel()  # again and again, as a task group does it: the clean-up itself must not be cut off
        await asyncio.sleep(0.003)
    left = await asyncio.to_thread(store.left)
    if task.cancelled():
        assert left == []
    else:
        assert left == ["uploads/a"]
        assert len(await store.blobs.get("uploads/a")) == 19 * BLOCK_BYTES


async def test_missing_blob(blobs: Blobs) -> None:
    with pytest.raises(BlobMissing):
        await blobs.get("uploads/a")
    with pytest.raises(BlobMissing):
        await read(blobs, "uploads/a", start=5)
    await blobs.delete("uploads/a")


async def test_blob_that_ends_early_is_missing_not_short(blobs: Blobs) -> None:
    await blobs.put("uploads/a", b"abc")
    for start in (0, 2, 3):
        with pytest.raises(BlobMissing):
            await blobs.get("uploads/a", start=start, end=4)
        with pytest.raises(BlobMissing):
            await read(blobs, "uploads/a", start=start, end=4)


async def test_deleted_blob_is_gone(store: Store) -> None:
    await store.blobs.put("uploads/a", b"1")
    await store.blobs.put("uploads/b", b"2")
    await store.blobs.delete("uploads/a")
    with pytest.raises(BlobMissing):
        await store.blobs.get("uploads/a")
    assert store.left() == ["uploads/b"]


async def test_writers_and_deleters_of_one_folder_do_not_disturb_each_other(store: Store) -> None:
    async def one(number: int) -> None:
        for turn in range(15):
            key = part_key("batch_1", "chunk_1", f"{number:08x}")
            await store.blobs.put(key, b"%d" % turn)
            assert await store.blobs.get(key) == b"%d" % turn
            await store.blobs.delete(key)

    await asyncio.gather(*(one(number) for number in range(6)))
    assert store.left() == []


async def test_scan_finds_blobs_by_prefix(blobs: Blobs) -> None:
    keys = {"uploads/a", "uploads/b", "parts/batch_1/chunk_1/a", "parts/batch_1/chunk_10/b", "parts/batch_2/chunk_1/c"}
    for key in keys:
        await blobs.put(key, key.encode())
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


async def test_scan_finds_more_than_one_page(blobs: Blobs) -> None:
    keys = {f"uploads/{number:04d}" for number in range(1_050)}

    async def put(some: list[str]) -> None:
        for key in some:
            await blobs.put(key, b"")

    await asyncio.gather(*(put(sorted(keys)[start::8]) for start in range(8)))
    assert {info.key async for info in blobs.scan("uploads/")} == keys


async def test_scan_ended_early_holds_nothing_up(blobs: Blobs) -> None:
    for name in "abc":
        await blobs.put(f"uploads/{name}", b"")
    async with aclosing(blobs.scan()) as found:
        async for _ in found:
            break
    assert len([info async for info in blobs.scan()]) == 3


async def test_scan_before_the_first_write(blobs: Blobs) -> None:
    assert [info async for info in blobs.scan("uploads/")] == []
    assert await blobs.sweep_unfinished(older_than_seconds=0) == 0


async def test_check_leaves_nothing(store: Store) -> None:
    await store.blobs.check()
    assert store.left() == []


@pytest.mark.parametrize("key", ["../a", "a", ".tmp/a", "a/../../b", "uploads/A"])
async def test_name_that_is_no_key_never_becomes_an_address(blobs: Blobs, key: str) -> None:
    for attempt in (blobs.put(key, b""), blobs.get(key), blobs.delete(key), read(blobs, key)):
        with pytest.raises(ValueError, match="not a blob key"):
            await attempt
