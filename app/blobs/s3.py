"""Blobs as objects below a prefix of one S3 bucket (the contract: app/blobs/base.py).

A key is the rest of an object's name. A blob of at most PART_BYTES is one PUT; a larger one is a multipart upload,
streamed while it is written and aborted when its writer fails. Both become visible whole or not at all. Retries and
timeouts are the client's and bounded by `timeout_seconds`: a store that is away is Unavailable, and whoever can wait
does. What a lost answer, or a process that was killed, leaves behind goes with the sweep.

Credentials come from the AWS_* environment (or the machine's role); none passes through the settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from app.blobs.base import BLOCK_BYTES, BlobInfo, BlobWriter
from app.blobs.key import is_key
from app.blobs.multipart import OpenUploads
from app.errors import BlobMissing, StorageFull, Unavailable

if TYPE_CHECKING:
    from obstore.store import S3Store

PART_BYTES = 8 << 20  # S3 takes 10,000 parts of at least 5 MiB each
RANGE_BYTES = 4 << 20  # one request of a reader: short enough for a slow network and `timeout_seconds`
_PARTS_AT_ONCE = 2
_RETRIES = 3
_FIRST_PAUSE_SECONDS = 0.1
_LISTED_AT_ONCE = 1000
#: What S3 and its kin call a store without room.
_FULL = frozenset({"XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded", "InsufficientStorage"})
_CODE = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")
_STATUS = re.compile(r"non-2xx status code: (\d{3})")


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where the objects are. `endpoint` None means Amazon's; `region` None what AWS_REGION says, else us-east-1."""

    name: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = True

    def address(self) -> str | None:
        """The endpoint as the client wants it: with the bucket in its host name where the style asks for that."""
        if self.endpoint is None or self.path_style:
            return self.endpoint
        parts = urlsplit(self.endpoint)
        return urlunsplit(parts._replace(netloc=f"{self.name}.{parts.netloc}"))


class S3Blobs:
    """A blob store in `bucket`, reached on first use. One request ends within `timeout_seconds`.

    `own_keys` False takes any key: for objects that somebody else has named.
    """

    def __init__(
        self, bucket: Bucket, *, allow_http: bool = False, timeout_seconds: float = 20, own_keys: bool = True
    ) -> None:
        self._own_keys = own_keys
        self._timeout_seconds = timeout_seconds
        self._store = _open(bucket, allow_http=allow_http, timeout_seconds=timeout_seconds)
        self._uploads = OpenUploads(
            name=bucket.name,
            prefix=bucket.prefix,
            endpoint=bucket.address(),
            region=bucket.region,
            path_style=bucket.path_style,
            timeout_seconds=timeout_seconds,
        )

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[BlobWriter]:
        writer = _Writer(self._store, self._checked(key))
        committed = False
        try:
            yield writer
            await writer.commit()
            committed = True
        finally:
            # Also when the commit went through, and this task was cancelled meanwhile.
            if not committed:
                await _to_the_end(writer.discard())

    async def put(self, key: str, data: bytes) -> None:
        async with self.writer(key) as writer:
            await writer.write(data)

    async def read(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes]:
        self._checked(key)
        at = start
        while end is None or at < end:
            until = at + RANGE_BYTES if end is None else min(end, at + RANGE_BYTES)
            piece, size = await self._range(key, at, until)
            for offset in range(0, len(piece), BLOCK_BYTES):
                yield bytes(piece[offset : offset + BLOCK_BYTES])
            at += len(piece)
            if at >= size or not piece:
                break
        _check_whole(key, None if end is None else end - at)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return b"".join([block async for block in self.read(key, start=start, end=end)])

    async def delete(self, key: str) -> None:
        self._checked(key)
        began = time.monotonic()
        for attempt in range(_RETRIES + 1):
            try:
                with contextlib.suppress(BlobMissing), _translated(key):
                    await self._store.delete_async(key)
                return
            except _Silent:  # the client does not repeat a DELETE whose connection broke; here it is harmless
                if attempt == _RETRIES or time.monotonic() - began > self._timeout_seconds / 2:
                    raise
            await asyncio.sleep(_FIRST_PAUSE_SECONDS * 2**attempt)

    async def scan(self, prefix: str = "") -> AsyncGenerator[BlobInfo]:
        folder, _, _ = prefix.rpartition("/")  # a listing knows whole names only
        with _translated():
            async for found in self._store.list(folder or None, chunk_size=_LISTED_AT_ONCE):
                for item in found:
                    key = item["path"]
                    if key.startswith(prefix) and is_key(key):
                        yield BlobInfo(key, item["size"], item["last_modified"].timestamp())

    async def sweep_unfinished(self, *, older_than_seconds: float) -> int:
        return await self._uploads.abort(idle_seconds=older_than_seconds)

    async def check(self) -> None:
        # Not by `put`, which waits for its request when it is cancelled: `/ready` answers within seconds.
        key = f"check/{secrets.token_hex(16)}"
        data = secrets.token_bytes(16)
        with _translated():
            await self._store.put_async(key, data, use_multipart=False)
        try:
            if await self.get(key) != data:
                raise Unavailable("The blob store does not give back what was written.")
        finally:
            await self.delete(key)

    async def free_bytes(self) -> None:
        """Nobody can tell."""

    def _checked(self, key: str) -> str:
        if self._own_keys and not is_key(key):
            raise ValueError(f"not a blob key: {key!r}")
        return key

    async def _range(self, key: str, start: int, end: int) -> tuple[memoryview, int]:
        """Bytes [start, end) as far as there are any, and the size of the blob."""
        try:
            with _translated(key):
                found = await self._store.get_async(key, options={"range": (start, end)})
                return memoryview(await found.bytes_async()), found.meta["size"]
        except _Unsatisfiable:
            return memoryview(b""), start


class _Writer:
    """Gathers a blob up to PART_BYTES, and streams it once it is larger."""

    def __init__(self, store: S3Store, key: str) -> None:
        self._store = store
        self._key = key
        self._waiting = bytearray()
        self._bytes = 0
        self._stream: _Stream | None = None
        self._storing: asyncio.Future[Any] | None = None

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        # In steps: `data` may be much larger than a part.
        view = memoryview(data).cast("B")
        self._bytes += len(view)
        for start in range(0, len(view), BLOCK_BYTES):
            self._waiting += view[start : start + BLOCK_BYTES]
            if len(self._waiting) >= PART_BYTES + BLOCK_BYTES:  # so that the last part is never empty
                await self._send(PART_BYTES)

    async def commit(self) -> None:
        if self._stream is None:
            whole = bytes(self._waiting)
            self._storing = asyncio.ensure_future(self._store.put_async(self._key, whole, use_multipart=False))
        else:
            await self._send(len(self._waiting))
            self._stream.end()
        assert self._storing is not None
        try:
            with _translated():
                await asyncio.shield(self._storing)
        except Unavailable:
            # The last call of a multipart upload may have taken effect and its answer got lost: then the client asks
            # again, or aborts, and hears that there is no such upload.
            if self._stream is None or not await self._stands():
                raise

    async def _stands(self) -> bool:
        """The whole blob is there, although its writer was told otherwise."""
        with contextlib.suppress(Unavailable), _translated():
            found = await self._store.head_async(self._key)
            return found["size"] == self._bytes
        return False

    async def discard(self) -> None:
        """Leave nothing, as far as the store answers."""
        if self._storing is None:
            return
        if self._stream is not None:
            self._stream.fail()
        await asyncio.wait([self._storing])
        if self._storing.exception() is None:
            with contextlib.suppress(Unavailable, BlobMissing), _translated():
                await self._store.delete_async(self._key)

    async def _send(self, size: int) -> None:
        if self._stream is None:
            self._stream = _Stream()
            request = self._store.put_async(
                self._key, self._stream, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )
            self._storing = asyncio.ensure_future(request)
            self._storing.add_done_callback(self._stream.close)
        block = bytes(memoryview(self._waiting)[:size])
        del self._waiting[:size]
        if not await self._stream.give(block):
            assert self._storing is not None
            with _translated():
                await self._storing
            raise Unavailable("The blob store ended an upload early.")


class _Abandoned(Exception):
    """Tells the client to abort the multipart upload."""


class _Stream:
    """Blocks from a writer to the client that uploads them, one at a time: the slower of the two sets the pace."""

    def __init__(self) -> None:
        self._block: bytes | None = None
        self._ended = self._failed = self._closed = False
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    async def give(self, block: bytes) -> bool:
        """Hand over; False when the upload is over already."""
        await self._emptied.wait()
        if self._closed:
            return False
        self._block = block
        self._emptied.clear()
        self._filled.set()
        return True

    def end(self) -> None:
        """No more blocks."""
        self._ended = True
        self._filled.set()

    def fail(self) -> None:
        """No more blocks, and those given are for nothing."""
        self._failed = True
        self._filled.set()

    def close(self, _: object) -> None:
        """Nobody takes blocks any more."""
        self._closed = True
        self._emptied.set()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await self._filled.wait()
        if self._failed:
            raise _Abandoned
        block, self._block = self._block, None
        if block is None:
            raise StopAsyncIteration
        if not self._ended:
            self._filled.clear()
        self._emptied.set()
        return block


def _open(bucket: Bucket, *, allow_http: bool, timeout_seconds: float) -> S3Store:
    from obstore.store import S3Store

    config: dict[str, Any] = {
        "virtual_hosted_style_request": not bucket.path_style,
        "disable_bulk_delete": True,  # not every store has it
    }
    if bucket.region is not None:
        config["region"] = bucket.region
    if (endpoint := bucket.address()) is not None:
        config["endpoint"] = endpoint
    timeout = timedelta(seconds=timeout_seconds)
    return S3Store(
        bucket.name,
        prefix=bucket.prefix or None,
        config=config,  # type: ignore[arg-type]  # a TypedDict of what was found
        client_options={
            "allow_http": allow_http,
            "connect_timeout": timedelta(seconds=min(3.0, timeout_seconds)),
            "timeout": timeout,
        },
        retry_config={
            "max_retries": _RETRIES,
            "retry_timeout": timeout / 2,
            "backoff": {
                "init_backoff": timedelta(seconds=_FIRST_PAUSE_SECONDS),
                "max_backoff": timedelta(seconds=1),
                "base": 2,
            },
        },
    )


class _Silent(Unavailable):
    """No answer at all: refused, cut, or too late."""


class _Unsatisfiable(Exception):
    """The range begins at or behind the end of the blob."""


@contextlib.contextmanager
def _translated(key: str | None = None) -> Generator[None]:
    """The client's errors as this service's. With a `key`, its absence is BlobMissing.

    A 404 that does not name the key says something about the bucket, or comes from somewhere on the way: taking it for
    a lost blob would end a batch for nothing.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError) as exc:
        text = str(exc)
        code, status = _CODE.search(text), _STATUS.search(text)
        word = code[1] if code else ""
        if key is not None and word == "NoSuchKey":
            raise BlobMissing(f"no blob {key}") from exc
        if key is not None and status is not None and status[1] == "416":
            raise _Unsatisfiable from exc
        if word in _FULL or (status is not None and status[1] == "507"):
            raise StorageFull("There is no room left for files.") from exc
        if answer := word or (f"status {status[1]}" if status else ""):
            raise Unavailable(f"The blob store refuses: {answer}.") from exc
        raise _Silent("The blob store does not answer.") from exc


def _check_whole(key: str, missing_bytes: int | None) -> None:
    if missing_bytes is not None and missing_bytes > 0:
        raise BlobMissing(f"blob {key} ends {missing_bytes} bytes early")


async def _to_the_end(work: Awaitable[None]) -> None:
    """Wait for `work` also when this task is cancelled meanwhile; then the cancel goes on."""
    running = asyncio.ensure_future(work)
    cancelled = False
    while not running.done():
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    running.result()
