"""Which blob store the settings mean."""

from __future__ import annotations

from app.blobs.base import Blobs
from app.blobs.local import LocalBlobs
from app.settings import Settings


def open_blobs(settings: Settings) -> Blobs:
    """The bucket that `blobs.url` names, else the blob folder. Reached on first use."""
    chosen = settings.blobs
    if chosen.url is None:
        return LocalBlobs(settings.blob_path, min_free_bytes=chosen.min_free_bytes)
    from app.blobs.s3 import Bucket, S3Blobs

    name, _, prefix = chosen.url.removeprefix("s3://").partition("/")
    bucket = Bucket(
        name,
        prefix=prefix.strip("/"),
        endpoint=chosen.s3_endpoint,
        region=chosen.s3_region,
        path_style=chosen.s3_path_style,
    )
    return S3Blobs(bucket, allow_http=chosen.s3_allow_http, timeout_seconds=chosen.s3_timeout_seconds)
