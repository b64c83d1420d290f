"""The server with its blobs in a bucket: one job from upload to download, kill -9, and a store that misbehaves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance.batch import by_id, chat, counts, create, jsonl, rows, run, upload, wait, wait_for_progress
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import ROOT, Server
from tests.acceptance.test_restart import LINES, PACED, check_complete, many, ran
from tests.acceptance.wire import BOUNDARY, connect, head, refusal
from tests.buckets import KEYS, TestBucket
from tests.faults import Fault, FaultyProxy

pytestmark = pytest.mark.timeout(180)

SWEEP = {"BATCHYARD_RETENTION_SWEEP_SECONDS": "0.3", "BATCHYARD_RETENTION_ORPHAN_GRACE_SECONDS": "2"}
HASTY = {"BATCHYARD_BLOBS_S3_TIMEOUT_SECONDS": "2"}


def until(condition: Callable[[], bool], *, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def kinds(bucket: TestBucket) -> dict[str, int]:
    """How many objects of each kind: uploads, parts, segments."""
    found: dict[str, int] = {}
    for name in bucket.objects():
        kind = name.removeprefix("yard/one/").partition("/")[0]
        found[kind] = found.get(kind, 0) + 1
    return found


def check_secrets(server: Server) -> None:
    log = server.log(since=0, tail=1 << 30)
    assert not any(secret in log for secret in KEYS.values())


def test_kill_in_the_middle_with_everything_in_a_bucket(start_server: StartServer, bucket: TestBucket) -> None:
    settings = PACED | SWEEP | bucket.settings()
    first = start_server(settings=settings)
    with first.sdk() as client:
        batch = create(client, many())
        wait_for_progress(client, batch.id, lines=700)
        first.kill()
    assert not (first.data_dir / "blobs").exists()
    assert kinds(bucket)["parts"] >= 1
    second = start_server(data_dir=first.data_dir, settings=settings)
    with second.sdk() as client:
        kept = counts(client.batches.retrieve(batch.id))[1]
        assert 700 <= kept < LINES
        ended = wait(client, batch.id, until={"completed"}, seconds=90)
        check_complete(client, ended)
        assert ran(second) == LINES - kept
        # What the killed process had written and not yet named goes; then parts are gone and segments are all owned.
        until(lambda: "parts" not in kinds(bucket))
        chunks = -(-LINES // 300)
        until(lambda: kinds(bucket) == {"uploads": 1, "segments": chunks})
        for file_id in (ended.input_file_id, ended.output_file_id):
            assert file_id is not None
            client.files.delete(file_id)
        until(lambda: bucket.objects() == [])
    check_secrets(second)


def test_large_files_pass_through_whole(start_server: StartServer, bucket: TestBucket) -> None:
    """An upload and results of several multipart pieces and reading ranges."""
    server = start_server(settings=bucket.settings() | {"BATCHYARD_WORKER_CHUNK_MAX_BYTES": str(64 << 20)})
    lines = [chat(str(number), f"{number} " * 8000) for number in range(700)]
    data = jsonl(lines)
    assert len(data) > 18 << 20
    with server.sdk() as client, server.http() as http:
        file = upload(client, data)
        assert client.files.content(file.id).content == data
        part = http.get(f"/v1/files/{file.id}/content", headers={"range": "bytes=9000000-9000099"})
        if part.status_code == 206:
            assert part.content == data[9_000_000:9_000_100]
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        ended = wait(client, batch.id, until={"completed"}, seconds=90)
        found = by_id(rows(client, ended.output_file_id))
        assert len(found) == 700
    assert bucket.uploads() == []


def test_what_a_killed_upload_left_behind_is_swept(start_server: StartServer, bucket: TestBucket) -> None:
    server = start_server(settings=bucket.settings())
    fields = {"Authorization": f"Bearer {server.key}", "Content_Type": f"multipart/form-data; boundary={BOUNDARY}"}
    begin = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'.encode()
    with connect(server.url) as stream:
        stream.sendall(head("POST", "/v1/files", Content_Length=str(80 << 20), **fields) + begin + b"{}\n" * (10 << 20))
        until(lambda: bool(bucket.uploads()))
        server.kill()
    assert bucket.objects() == []
    second = start_server(data_dir=server.data_dir, settings=bucket.settings() | SWEEP)
    until(lambda: bucket.uploads() == [])
    second.stop()
    assert [event["unfinished"] for event in second.events() if event["event"] == "orphans_removed"] == [1]


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.CUT, Fault.HANG, Fault.FULL], ids=lambda fault: fault.name)
def test_store_that_fails_for_a_while_loses_nothing(
    start_server: StartServer, bucket: TestBucket, faulty_s3: FaultyProxy, fault: Fault
) -> None:
    settings = PACED | HASTY | bucket.settings(endpoint=faulty_s3.endpoint)
    server = start_server(settings=settings)
    with server.sdk() as client, server.http() as http:
        batch = create(client, many())
        wait_for_progress(client, batch.id, lines=300)
        faulty_s3.always(fault)
        until(lambda: http.get("/ready").status_code == 503)
        reason = http.get("/ready").json()["checks"]["blobs"]
        assert "blob store" in reason or "room" in reason
        assert http.get("/health").status_code == 200
        reply = http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", jsonl([chat("a")]))})
        refusal(reply, 503, type="server_error")
        assert 1 <= int(reply.headers["retry-after"]) <= 120
        time.sleep(3)
        held = client.batches.retrieve(batch.id)
        assert held.status == "in_progress"
        faulty_s3.always(None)
        check_complete(client, wait(client, batch.id, until={"completed"}, seconds=90))
        until(lambda: http.get("/ready").status_code == 200)
        assert ran(server) == LINES, "no line ran twice"
    check_secrets(server)


def test_store_that_fails_now_and_then_and_is_slow_loses_nothing(
    start_server: StartServer, bucket: TestBucket, faulty_s3: FaultyProxy
) -> None:
    asked = 0
    order = [None, Fault.REFUSE, None, Fault.LOSE_ANSWER, None, Fault.DAWDLE, Fault.CUT, Fault.HALF]

    def choose(_method: str, _path: str) -> Fault | None:
        nonlocal asked
        asked += 1
        return order[asked % len(order)]

    settings = PACED | HASTY | SWEEP | bucket.settings(endpoint=faulty_s3.endpoint)
    server = start_server(settings=settings)
    faulty_s3.choose = choose
    with server.sdk(max_retries=5) as client:
        batch = create(client, many())
        ended = wait(client, batch.id, until={"completed"}, seconds=120)
        faulty_s3.always(None)
        check_complete(client, ended)
        assert ran(server) == LINES
        until(lambda: "parts" not in kinds(bucket))
        until(lambda: kinds(bucket)["segments"] == -(-LINES // 300), seconds=30)
    assert all(faulty_s3.met[fault] > 5 for fault in order if fault is not None)


def test_emptied_bucket_ends_the_batch_with_rows_that_say_so(start_server: StartServer, bucket: TestBucket) -> None:
    settings = PACED | bucket.settings()
    first = start_server(settings=settings)
    with first.sdk() as client:
        batch = create(client, [chat(str(number)) for number in range(400)])
        wait_for_progress(client, batch.id, lines=100)
        first.kill()
    for name in bucket.objects():
        bucket.ask("DELETE", f"/{name}")
    hasty = {"BATCHYARD_WORKER_LOST_AFTER_SECONDS": "0.6", "BATCHYARD_WORKER_GONE_AFTER_SECONDS": "1.2"}
    events = {"chunk_set_aside", "blob_lost", "blobs_missing", "input_lost", "parts_lost"}
    events |= {"segment_missing", "chunk_reopened"}
    second = start_server(data_dir=first.data_dir, settings=settings | hasty, expected_errors=frozenset(events))
    with second.sdk() as client:
        ended = wait(client, batch.id, until={"completed"}, seconds=90)
        assert counts(ended) == (400, 0, 400)
        assert ended.output_file_id is None
        found = {(row["custom_id"], row["error"]["code"]) for row in rows(client, ended.error_file_id)}
        assert found == {(None, "input_lost")}


def test_object_that_vanished_is_told_and_waited_for(start_server: StartServer, bucket: TestBucket) -> None:
    """A part removed behind our back: the batch waits for it, loudly, and ends when it comes back."""
    settings = PACED | {"BATCHYARD_WORKER_CHUNK_MAX_LINES": "2000"} | bucket.settings()
    server = start_server(settings=settings, expected_errors=frozenset({"chunk_set_aside"}))
    with server.sdk() as client:
        batch = create(client, many())
        wait_for_progress(client, batch.id, lines=900)
        server.kill()
    parts = [name for name in bucket.objects() if "/parts/" in name]
    assert parts
    kept = {name: bucket.ask("GET", f"/{name}").content for name in parts}
    for name in parts:
        bucket.ask("DELETE", f"/{name}")
    second = start_server(data_dir=server.data_dir, settings=settings, expected_errors=frozenset({"chunk_set_aside"}))
    with second.sdk() as client:
        until(lambda: any(event["event"] == "chunk_set_aside" for event in second.events()))
        reasons = [event["reason"] for event in second.events() if event["event"] == "chunk_set_aside"]
        assert all("no blob parts/" in reason for reason in reasons)
        assert client.batches.retrieve(batch.id).status == "in_progress"
        assert run(client, [chat("other")]).status == "completed", "other batches go on"
        for name, content in kept.items():
            bucket.ask("PUT", f"/{name}", content)
        check_complete(client, wait(client, batch.id, until={"completed"}, seconds=100))


def test_settings_and_doctor_name_the_bucket_and_no_key(tmp_path: Path, bucket: TestBucket) -> None:
    def say(*command: str, **more: str) -> tuple[int, str]:
        environment = os.environ | bucket.settings() | {"BATCHYARD_DATA_DIR": str(tmp_path)} | more
        ended = subprocess.run(
            [sys.executable, "-m", "app", *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        text = ended.stdout + ended.stderr
        assert not any(secret in text for secret in KEYS.values())
        return ended.returncode, text

    code, text = say("settings")
    assert code == 0
    assert f"s3://{bucket.name}/yard/one" in text
    code, text = say("doctor", "--engine", "echo", "--port", "0")
    assert code == 0, text
    assert f"bucket: s3://{bucket.name}/yard/one takes and gives bytes" in text
    assert bucket.objects() == []
    code, text = say("doctor", "--engine", "echo", "--port", "0", BATCHYARD_BLOBS_URL="s3://no-such-bucket")
    assert code == 1
    assert "NoSuchBucket" in text
    code, text = say("settings", BATCHYARD_BLOBS_URL="s3://AKIA:verysecret@bucket")
    assert code == 2
    assert "verysecret" not in text


def test_end_a_command_right_after_the_bucket_answered(tmp_path: Path, bucket: TestBucket) -> None:
    # The client's threads may still hold the answer then; taking the interpreter down under them aborted one in six.
    environment = os.environ | bucket.settings() | {"BATCHYARD_DATA_DIR": str(tmp_path)}
    environment["BATCHYARD_BLOBS_URL"] = "s3://no-such-bucket"
    command = [sys.executable, "-m", "app", "doctor", "--engine", "echo", "--port", "0"]

    def code(_: int) -> int:
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False).returncode

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(code, range(18))) == {1}
