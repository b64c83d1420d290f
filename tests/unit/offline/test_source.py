"""Inputs from a pipe, a URL and a bucket: copied to disk once, refused when they cannot be had."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from app.errors import SettingsInvalid
from app.offline import web
from app.offline.place import place_of
from app.offline.source import bring
from app.settings import BlobSettings
from tests.buckets import KEYS, TestBucket
from tests.unit.offline.test_web import reply, serving

S3 = BlobSettings()


async def brought(text: str, folder: Path, *, s3: BlobSettings = S3) -> bytes:
    with await bring(place_of(text), folder=folder, s3=s3) as file:
        file.seek(0)
        return file.read()


async def test_local_file_is_used_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"abc")
    assert await brought(str(tmp_path / "in"), Path("/nonexistent")) == b"abc"


async def test_named_pipe_is_copied_and_leaves_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writing = asyncio.create_task(asyncio.to_thread((tmp_path / "pipe").write_bytes, b"a\nb\n" * 50_000))
    assert await brought(str(tmp_path / "pipe"), tmp_path) == b"a\nb\n" * 50_000
    await writing
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


async def test_url_is_copied(tmp_path: Path) -> None:
    async with serving(reply("200 OK", b"abc")) as served:
        assert await brought(served.url, tmp_path) == b"abc"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("status", ["404 Not Found", "503 Busy"])
async def test_url_that_answers_an_error_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(web, "FIRST_PAUSE_SECONDS", 0.01)
    async with serving(reply(status)) as served:
        with pytest.raises(SettingsInvalid, match=f"cannot be had: GET .*{status}"):
            await brought(served.url, tmp_path)


async def test_folder_that_takes_no_copy_is_refused(tmp_path: Path) -> None:
    async with serving(reply("200 OK", b"abc")) as served:
        with pytest.raises(SettingsInvalid, match="cannot take a copy"):
            await brought(served.url, tmp_path / "missing")


@pytest.fixture
def s3(bucket: TestBucket, monkeypatch: pytest.MonkeyPatch) -> BlobSettings:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return BlobSettings(s3_endpoint=bucket.endpoint, s3_allow_http=True, s3_timeout_seconds=5)


async def test_object_is_copied(tmp_path: Path, bucket: TestBucket, s3: BlobSettings) -> None:
    bucket.ask("PUT", "/some%20folder/in.jsonl", b"abc\n")
    assert await brought(f"s3://{bucket.name}/some folder/in.jsonl", tmp_path, s3=s3) == b"abc\n"


async def test_object_that_is_missing_is_refused(tmp_path: Path, bucket: TestBucket, s3: BlobSettings) -> None:
    with pytest.raises(SettingsInvalid, match="there is no s3://"):
        await brought(f"s3://{bucket.name}/missing", tmp_path, s3=s3)
