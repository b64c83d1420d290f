"""Results to a path, a pipe, a URL and a bucket."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.errors import InvalidRequest, SettingsInvalid, Unavailable
from app.offline.place import place_of
from app.offline.target import Target
from app.settings import BlobSettings
from tests.buckets import KEYS, TestBucket
from tests.unit.offline.test_web import reply, serving

S3 = BlobSettings()


def target(text: str | Path, *, s3: BlobSettings = S3) -> Target:
    return Target(place_of(str(text)), s3=s3)


async def delivered(to: Target, folder: Path, content: bytes = b"abc\n") -> Path:
    draft = to.draft(folder / "run")
    draft.write_bytes(content)
    await to.deliver(draft)
    return draft


async def test_local_file_replaces_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"old")
    draft = await delivered(target(tmp_path / "out"), Path("/nonexistent"))
    assert (tmp_path / "out").read_bytes() == b"abc\n"
    assert (draft.parent, draft.exists()) == (tmp_path, False)


async def test_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    await delivered(target("/dev/null"), tmp_path)
    assert not Path("/dev/null").is_file()


async def test_device_that_is_full_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No space left"):
        await delivered(target("/dev/full"), tmp_path)


async def test_standard_output_gets_the_bytes(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    await delivered(target("-"), tmp_path)
    assert capfdbinary.readouterr().out == b"abc\n"


async def test_url_gets_a_put(tmp_path: Path) -> None:
    async with serving(reply("200 OK")) as served:
        await delivered(target(served.url), tmp_path)
    assert served.bodies == [b"abc\n"]


async def test_url_that_refuses_leaves_the_draft(tmp_path: Path) -> None:
    async with serving(reply("403 No")) as served:
        to = target(served.url)
        with pytest.raises(InvalidRequest):
            await delivered(to, tmp_path)
    assert to.draft(tmp_path / "run").exists()


async def test_bucket_gets_an_object(tmp_path: Path, bucket: TestBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    s3 = BlobSettings(s3_endpoint=bucket.endpoint, s3_allow_http=True, s3_timeout_seconds=5)
    await delivered(target(f"s3://{bucket.name}/deep/out.jsonl", s3=s3), tmp_path, b"x" * (20 << 20))
    assert bucket.objects() == ["deep/out.jsonl"]
    assert bucket.ask("GET", "/deep/out.jsonl").content == b"x" * (20 << 20)


def test_folder_that_is_missing_or_read_only_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="does not exist"):
        target(tmp_path / "no" / "out")
    with pytest.raises(SettingsInvalid, match="is a folder"):
        target(tmp_path)
    if os.geteuid():
        tmp_path.chmod(0o500)
        with pytest.raises(SettingsInvalid, match="is not writable"):
            target(tmp_path / "out")


def test_links_to_one_file_are_seen(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    os.link(tmp_path / "a", tmp_path / "hard")
    (tmp_path / "soft").symlink_to("a")
    for name in ("a", "hard", "soft"):
        assert target(tmp_path / name).is_same_file(place_of(str(tmp_path / "a")))
    assert not target(tmp_path / "b").is_same_file(place_of(str(tmp_path / "a")))
    assert not target("-").is_same_file(place_of("-"))
