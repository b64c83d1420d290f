"""The blob stores that the suite runs on, each with a way to see all that it holds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from app.blobs.base import BLOCK_BYTES, Blobs
from app.blobs.s3 import Bucket, S3Blobs
from tests.buckets import TestBucket


@dataclass(frozen=True)
class Store:
    """`left` names everything in it, unfinished writes included."""

    blobs: Blobs
    left: Callable[[], list[str]]


def files(root: Path) -> list[str]:
    """Every file below `root`."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def s3_blobs(bucket: TestBucket, *, endpoint: str | None = None, timeout_seconds: float = 10) -> S3Blobs:
    """Blobs below `yard/one` in `bucket`, perhaps through a proxy."""
    place = Bucket(bucket.name, prefix="yard/one", endpoint=endpoint or bucket.endpoint)
    return S3Blobs(place, allow_http=True, timeout_seconds=timeout_seconds)


async def read(blobs: Blobs, key: str, *, start: int = 0, end: int | None = None) -> bytes:
    """What `read` yields, joined; each block must be within its limit."""
    pieces = []
    async with aclosing(blobs.read(key, start=start, end=end)) as blocks:
        async for block in blocks:
            assert 0 < len(block) <= BLOCK_BYTES
            pieces.append(block)
    return b"".join(pieces)
