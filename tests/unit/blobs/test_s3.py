"""What only a bucket does: requests that fail, hang or get lost, and answers that must not be taken for others."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable

import pytest

from app.blobs.base import BLOCK_BYTES, Blobs
from app.blobs.s3 import PART_BYTES, RANGE_BYTES, Bucket, S3Blobs
from app.errors import BlobMissing, StorageFull, Unavailable
from tests.buckets import KEYS, TestBucket
from tests.faults import Fault, FaultyProxy
from tests.unit.blobs.stores import read, s3_blobs

pytestmark = pytest.mark.usefixtures("aws_keys")

LARGE_BYTES = 2 * PART_BYTES + BLOCK_BYTES


@pytest.fixture
def blobs(bucket: TestBucket, faulty_s3: FaultyProxy) -> S3Blobs:
    return s3_blobs(bucket, endpoint=faulty_s3.endpoint, timeout_seconds=4)


async def scan(blobs: Blobs) -> None:
    async for _ in blobs.scan():
        pass


def every_call(blobs: Blobs) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: blobs.put("uploads/b", b"abc"),
        lambda: blobs.put("uploads/b", bytes(LARGE_BYTES)),
        lambda: blobs.get("uploads/a"),
        lambda: read(blobs, "uploads/a"),
        lambda: blobs.delete("uploads/a"),
        lambda: scan(blobs),
        lambda: blobs.check(),
        lambda: blobs.sweep_unfinished(older_than_seconds=0),
    ]


def test_s3_blobs_fulfil_the_contract(blobs: S3Blobs) -> None:
    _: Blobs = blobs


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.CUT])
async def test_store_that_is_away_is_unavailable_within_seconds_and_heals(
    blobs: S3Blobs, bucket: TestBucket, faulty_s3: FaultyProxy, fault: Fault
) -> None:
    await blobs.put("uploads/a", b"abc")
    faulty_s3.always(fault)
    for call in every_call(blobs):
        began = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            await call()
        assert time.monotonic() - began < 6
        assert not any(secret in caught.value.message for secret in (*KEYS.values(), bucket.name, faulty_s3.endpoint))
    faulty_s3.always(None)
    assert await blobs.get("uploads/a") == b"abc"
    assert bucket.objects() == ["yard/one/uploads/a"]
    assert bucket.uploads() == []


async def test_hanging_store_is_unavailable_within_its_timeout(bucket: TestBucket, faulty_s3: FaultyProxy) -> None:
    blobs = s3_blobs(bucket, endpoint=faulty_s3.endpoint, timeout_seconds=1)
    faulty_s3.always(Fault.HANG)
    for call in every_call(blobs):
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await call()
        assert time.monotonic() - began < 4


async def test_nobody_listens(bucket: TestBucket) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        blobs = s3_blobs(bucket, endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(Unavailable, match="does not answer"):
            await blobs.put("uploads/a", b"abc")
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.CUT, Fault.LOSE_ANSWER, Fault.HALF])
async def test_every_third_request_failing_is_not_noticed(
    blobs: S3Blobs, bucket: TestBucket, faulty_s3: FaultyProxy, fault: Fault
) -> None:
    """Retries carry it, and what was done twice was done once."""
    asked = 0

    def choose(_method: str, _path: str) -> Fault | None:
        nonlocal asked
        asked += 1
        return fault if asked % 3 == 0 else None

    faulty_s3.choose = choose
    small, large = os.urandom(1000), os.urandom(LARGE_BYTES)
    for turn in range(4):
        await blobs.put(f"uploads/s{turn}", small)
        assert await blobs.get(f"uploads/s{turn}") == small
    await blobs.put("uploads/large", large)
    assert await read(blobs, "uploads/large") == large
    await blobs.delete("uploads/large")
    for turn in range(4):
        await blobs.delete(f"uploads/s{turn}")
    assert faulty_s3.met[fault] >= 3
    assert bucket.objects() == []


async def test_slow_store_only_takes_longer(blobs: S3Blobs, faulty_s3: FaultyProxy) -> None:
    faulty_s3.always(Fault.DAWDLE)
    data = os.urandom(RANGE_BYTES + 1)
    await blobs.put("uploads/a", data)
    assert await blobs.get("uploads/a") == data
    await blobs.check()


@pytest.mark.parametrize("size", [3, LARGE_BYTES])
async def test_store_without_room_is_storage_full(
    blobs: S3Blobs, bucket: TestBucket, faulty_s3: FaultyProxy, size: int
) -> None:
    faulty_s3.choose = lambda method, _path: Fault.FULL if method == "PUT" else None
    with pytest.raises(StorageFull):
        await blobs.put("uploads/a", bytes(size))
    assert bucket.objects() == bucket.uploads() == []


async def test_cancel_of_a_put_that_takes_effect_late_leaves_nothing(
    blobs: S3Blobs, bucket: TestBucket, faulty_s3: FaultyProxy
) -> None:
    faulty_s3.choose = lambda method, _path: Fault.DAWDLE if method == "PUT" else None
    task = asyncio.create_task(blobs.put("uploads/a", b"abc"))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert bucket.objects() == []


async def test_cancelled_check_does_not_wait_for_the_store(blobs: S3Blobs, faulty_s3: FaultyProxy) -> None:
    """`/ready` gives it a few seconds and must answer then."""
    faulty_s3.always(Fault.HANG)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await blobs.check()
    assert time.monotonic() - began < 1


async def test_bucket_that_is_not_there_is_unavailable_and_no_blob_is_called_lost(bucket: TestBucket) -> None:
    blobs = s3_blobs(TestBucket(bucket.endpoint, "no-such-bucket"))
    for call in every_call(blobs):
        with pytest.raises(Unavailable):
            await call()
    with pytest.raises(Unavailable, match="NoSuchBucket"):
        await blobs.check()


async def test_not_found_of_a_machine_on_the_way_is_no_lost_blob(bucket: TestBucket) -> None:
    async def gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(gateway, "127.0.0.1", 0)
    async with server:
        blobs = s3_blobs(bucket, endpoint=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(Unavailable, match="404"):
            await blobs.get("uploads/a")


async def test_blob_deleted_under_a_reader_is_missing_not_short(blobs: S3Blobs) -> None:
    await blobs.put("uploads/a", bytes(2 * RANGE_BYTES))
    reader = blobs.read("uploads/a")
    await anext(reader)
    await blobs.delete("uploads/a")
    with pytest.raises(BlobMissing):
        async for _ in reader:
            pass


async def test_two_prefixes_of_one_bucket_do_not_see_each_other(bucket: TestBucket) -> None:
    one, none = s3_blobs(bucket), S3Blobs(Bucket(bucket.name, endpoint=bucket.endpoint), allow_http=True)
    await one.put("uploads/a", b"1")
    await none.put("uploads/a", b"2")
    assert bucket.objects() == ["uploads/a", "yard/one/uploads/a"]
    assert await one.get("uploads/a") == b"1"
    assert [info.key async for info in one.scan()] == ["uploads/a"]
    assert await one.free_bytes() is None  # type: ignore[func-returns-value]


def test_bucket_in_the_host_name() -> None:
    assert Bucket("b-1", endpoint="https://s3.lan:9000").address() == "https://s3.lan:9000"
    assert Bucket("b-1", endpoint="https://s3.lan:9000", path_style=False).address() == "https://b-1.s3.lan:9000"
    assert Bucket("b-1").address() is None


async def test_writer_is_held_up_by_a_store_that_is_slower(blobs: S3Blobs, faulty_s3: FaultyProxy) -> None:
    """So memory stays bounded: a few parts are under way, and the rest is not taken."""
    faulty_s3.dawdle_seconds = 1.5
    faulty_s3.choose = lambda method, _path: Fault.DAWDLE if method == "PUT" else None
    given = 0
    async with blobs.writer("uploads/a") as writer:
        began = time.monotonic()
        while given < 12 * PART_BYTES and time.monotonic() - began < 1:
            await writer.write(bytes(BLOCK_BYTES))
            given += BLOCK_BYTES
        assert given <= 8 * PART_BYTES
    assert len(await blobs.get("uploads/a")) == given
