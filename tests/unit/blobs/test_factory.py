from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.blobs.factory import open_blobs
from app.blobs.local import LocalBlobs
from app.blobs.s3 import S3Blobs
from app.errors import SettingsInvalid
from app.settings import Settings, load
from tests.buckets import TestBucket


def settings(folder: Path, **named: Any) -> Settings:
    flags = {"data_dir": folder} | {f"blobs.{name}": value for name, value in named.items()}
    return load(flags, environ={}).settings


async def test_folder_by_default(tmp_path: Path) -> None:
    blobs = open_blobs(settings(tmp_path))
    assert isinstance(blobs, LocalBlobs)
    await blobs.put("uploads/a", b"1")
    assert (tmp_path / "blobs" / "uploads" / "a").read_bytes() == b"1"


@pytest.mark.usefixtures("aws_keys")
@pytest.mark.parametrize(("path", "prefix"), [("", ""), ("/", ""), ("/a", "a/"), ("/a/b/", "a/b/")])
async def test_bucket_by_url(tmp_path: Path, bucket: TestBucket, path: str, prefix: str) -> None:
    place = {"url": f"s3://{bucket.name}{path}", "s3_endpoint": bucket.endpoint, "s3_allow_http": True}
    blobs = open_blobs(settings(tmp_path, **place))
    assert isinstance(blobs, S3Blobs)
    await blobs.put("uploads/a", b"1")
    assert bucket.objects() == [f"{prefix}uploads/a"]
    assert await blobs.get("uploads/a") == b"1"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "named",
    [
        {"url": "s3://"},
        {"url": "s3://Bucket"},
        {"url": "s3://bucket?region=x"},
        {"url": "https://bucket.s3.amazonaws.com/"},
        {"url": "/var/blobs"},
        {"url": "s3://bucket", "path": "/var/blobs"},
        {"url": "s3://bucket", "s3_endpoint": "http://minio:9000"},
        {"url": "s3://bucket", "s3_endpoint": "minio:9000"},
        {"url": "s3://bucket", "s3_endpoint": "https://minio:9000/bucket"},
    ],
)
def test_wrong_place_is_refused(tmp_path: Path, named: dict[str, Any]) -> None:
    with pytest.raises(SettingsInvalid, match="blobs"):
        settings(tmp_path, **named)


@pytest.mark.parametrize("named", [{"url": "s3://AKIA:hush@bucket"}, {"s3_endpoint": "https://AKIA:hush@minio:9000"}])
def test_keys_in_an_address_are_refused_and_not_shown(tmp_path: Path, named: dict[str, Any]) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        settings(tmp_path, **named)
    assert "hush" not in caught.value.message
