"""Uploads in parts and results so far, with everything in a bucket."""

from __future__ import annotations

from tests.acceptance.batch import CHAT, chat, counts, jsonl, slow, wait
from tests.acceptance.conftest import StartServer
from tests.acceptance.test_extensions import final, follow
from tests.buckets import TestBucket


def test_chunked_upload_becomes_a_batch_whose_results_are_read_as_they_come(
    start_server: StartServer, bucket: TestBucket
) -> None:
    settings = {"BATCHYARD_ENGINE_WINDOW": "8", "BATCHYARD_WORKER_CHUNK_MAX_LINES": "30"}
    server = start_server(settings=settings | bucket.settings())
    data = jsonl([chat("bad", n=0), *(slow(f"r{number}", delay_ms=20) for number in range(100))])
    with server.sdk() as client, server.http() as http:
        chunked = client.uploads.upload_file_chunked(
            file=data,
            filename="in.jsonl",
            bytes=len(data),
            mime_type="application/jsonl",
            purpose="batch",
            part_size=len(data) // 3,
        )
        assert chunked.file is not None
        assert len(bucket.objects()) == 4
        part = http.get(f"/v1/files/{chunked.file.id}/content", headers={"range": f"bytes={len(data) // 3 - 9}-"})
        assert part.content == data[len(data) // 3 - 9 :]
        batch = client.batches.create(input_file_id=chunked.file.id, endpoint=CHAT, completion_window="24h")
        output = follow(http, batch.id)
        error = follow(http, batch.id, kind="error")
        batch = wait(client, batch.id)
        assert counts(batch) == (101, 100, 1)
        assert b"".join(output) == final(client, batch.output_file_id)
        assert b"".join(error) == final(client, batch.error_file_id)
    assert bucket.uploads() == []
    assert not (server.data_dir / "blobs").exists()
