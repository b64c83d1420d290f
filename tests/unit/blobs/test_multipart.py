from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest

from app.blobs.multipart import OpenUploads, _Keys, _signed
from app.blobs.s3 import PART_BYTES
from app.errors import Unavailable
from tests.buckets import KEYS, TestBucket
from tests.unit.blobs.stores import s3_blobs


def begin(bucket: TestBucket, name: str) -> str:
    """An upload of one part; the test server calls every upload old until it has one."""
    text = bucket.ask("POST", f"/{name}?uploads").text
    found = re.search("<UploadId>(.*?)</UploadId>", text)
    assert found is not None
    bucket.ask("PUT", f"/{name}?partNumber=1&uploadId={found[1]}", b"x" * 100)
    return found[1]


async def sweep(bucket: TestBucket, *, idle_seconds: float) -> int:
    return await s3_blobs(bucket).sweep_unfinished(older_than_seconds=idle_seconds)


@pytest.mark.usefixtures("aws_keys")
async def test_abort_takes_what_is_old_and_ours(bucket: TestBucket) -> None:
    begin(bucket, "yard/one/uploads/a")
    begin(bucket, "yard/one-more/uploads/a")
    begin(bucket, "yard/one/segments/batch_1/c.output")
    await s3_blobs(bucket).put("uploads/whole", b"1")
    assert await sweep(bucket, idle_seconds=3600) == 0
    assert len(bucket.uploads()) == 3
    assert await sweep(bucket, idle_seconds=0) == 2
    assert bucket.uploads() == ["yard/one-more/uploads/a"]
    assert bucket.objects() == ["yard/one/uploads/whole"]


@pytest.mark.usefixtures("aws_keys")
async def test_abort_spares_an_old_upload_that_still_gains_parts(bucket: TestBucket) -> None:
    """The age that counts is that of the newest part: a slow client may need longer than the grace time."""
    upload = begin(bucket, "yard/one/uploads/a")
    await asyncio.sleep(2.2)
    bucket.ask("PUT", f"/yard/one/uploads/a?partNumber=2&uploadId={upload}", b"x")
    assert await sweep(bucket, idle_seconds=2) == 0
    assert bucket.uploads() == ["yard/one/uploads/a"]


_WRITER = """
import asyncio, sys
from app.blobs.s3 import Bucket, S3Blobs, PART_BYTES

async def main():
    blobs = S3Blobs(Bucket(sys.argv[2], prefix="yard/one", endpoint=sys.argv[1]), allow_http=True)
    async with blobs.writer("uploads/a") as writer:
        for _ in range(3):
            await writer.write(bytes(PART_BYTES))
        await asyncio.sleep(1)
        print("under way", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.usefixtures("aws_keys")
async def test_what_a_killed_writer_left_is_no_blob_and_is_swept(bucket: TestBucket) -> None:
    command = [sys.executable, "-c", _WRITER, bucket.endpoint, bucket.name]
    with subprocess.Popen(command, env=os.environ | KEYS, stdout=subprocess.PIPE) as writer:  # noqa: ASYNC220 - nothing waits
        assert writer.stdout is not None
        assert await asyncio.to_thread(writer.stdout.readline) == b"under way\n"
        writer.kill()
    assert bucket.uploads() == ["yard/one/uploads/a"]
    assert [info async for info in s3_blobs(bucket).scan()] == []
    assert await sweep(bucket, idle_seconds=0) == 1
    assert bucket.uploads() == bucket.objects() == []
    assert PART_BYTES >= 5 << 20


@pytest.mark.usefixtures("aws_keys")
async def test_abort_reads_every_page() -> None:
    """Two pages, as a store sends them that holds more than a thousand."""
    asked: list[tuple[str, dict[str, list[str]]]] = []
    old = "2020-01-01T00:00:00.000Z"

    def page(key: str, *, more: bool) -> bytes:
        tail = f"<NextKeyMarker>{key}</NextKeyMarker><NextUploadIdMarker>id+1</NextUploadIdMarker>" if more else ""
        entry = f"<Upload><Key>{key}</Key><UploadId>u-{key[-1]}</UploadId><Initiated>{old}</Initiated></Upload>"
        start = '<ListMultipartUploadsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        middle = f"<IsTruncated>{str(more).lower()}</IsTruncated>{tail}{entry}"
        return f"{start}{middle}</ListMultipartUploadsResult>".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, _ = (await reader.readuntil(b"\r\n\r\n")).decode().split(" ", 2)
        query = parse_qs(urlsplit(target).query, keep_blank_values=True)
        asked.append((method, query))
        body = b"<ListPartsResult/>"
        if "uploads" in query:
            body = page("p/b", more=False) if "key-marker" in query else page("p/a", more=True)
        date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        head = f"HTTP/1.1 200 OK\r\ndate: {date}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        uploads = OpenUploads(
            name="bucket", prefix="p", endpoint=endpoint, region=None, path_style=True, timeout_seconds=5
        )
        assert await uploads.abort(idle_seconds=60) == 2
    assert [query["uploadId"] for method, query in asked if method == "DELETE"] == [["u-a"], ["u-b"]]
    assert asked[-3][1]["upload-id-marker"] == ["id+1"]


async def test_nothing_is_swept_without_static_keys(bucket: TestBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    begin(bucket, "yard/one/uploads/a")
    assert await sweep(bucket, idle_seconds=0) == 0
    assert len(bucket.uploads()) == 1


@pytest.mark.usefixtures("aws_keys")
async def test_sweep_of_a_bucket_that_is_not_there_is_unavailable(s3_endpoint: str) -> None:
    with pytest.raises(Unavailable, match="refuses"):
        await sweep(TestBucket(s3_endpoint, "no-such-bucket"), idle_seconds=0)


def test_signature_is_the_one_of_botocore() -> None:
    """Amazon's own implementation signs the same request."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    keys = _Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "session/token+1")
    url = "https://s3.lan:9000/bucket/a/b-c.output"
    query = {"uploadId": "x/y+z=", "uploads": ""}
    request = AWSRequest("DELETE", url, headers={"host": "s3.lan:9000"}, params=query)
    S3SigV4Auth(Credentials(keys.access, keys.secret, keys.token), "s3", "eu-west-1").add_auth(request)
    at = datetime.strptime(request.context["timestamp"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    ours = _signed(keys, region="eu-west-1", method="DELETE", url=url, query=query, at=at)
    assert ours["authorization"] == request.headers["Authorization"]
