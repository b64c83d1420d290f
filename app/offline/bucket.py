"""GET and PUT of whole objects of an S3 bucket, through the blob store's own client (app/blobs/s3.py)."""

from __future__ import annotations

import asyncio
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from app.blobs.s3 import Bucket, S3Blobs
from app.errors import BlobMissing, InvalidRequest
from app.offline.place import Place
from app.settings import BlobSettings

_BLOCK_BYTES = 1 << 20


async def download(place: Place, file: BinaryIO, *, s3: BlobSettings) -> None:
    """Write the object to `file`. Raises InvalidRequest when there is none, Unavailable when the store is away."""
    blobs, key = _object(place, s3=s3)
    try:
        async for block in blobs.read(key):
            await asyncio.to_thread(file.write, block)
    except BlobMissing as exc:
        raise InvalidRequest(f"there is no {place.shown}") from exc


async def upload(place: Place, file: BinaryIO, *, s3: BlobSettings) -> None:
    """Store all of `file`, whole or not at all. Raises Unavailable."""
    blobs, key = _object(place, s3=s3)
    file.seek(0)
    async with blobs.writer(key) as writer:
        while block := await asyncio.to_thread(file.read, _BLOCK_BYTES):
            await writer.write(block)


def _object(place: Place, *, s3: BlobSettings) -> tuple[S3Blobs, str]:
    parts = urlsplit(place.text)
    bucket = Bucket(
        parts.netloc,
        endpoint=s3.s3_endpoint,
        region=s3.s3_region,
        path_style=s3.s3_path_style,
    )
    blobs = S3Blobs(bucket, allow_http=s3.s3_allow_http, timeout_seconds=s3.s3_timeout_seconds, own_keys=False)
    return blobs, unquote(parts.path).lstrip("/")
