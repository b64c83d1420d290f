"""The product as each kind of user meets it: SDK sync and async, curl, a dashboard that polls, an operator."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.acceptance.batch import (
    BATCH_KEYS,
    CHAT,
    TERMINAL,
    answer,
    chat,
    counts,
    create,
    hanging,
    jsonl,
    refused,
    rows,
    run,
    upload,
    wait,
    wait_for_progress,
)
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server
from tests.requirement import without

PACED = {
    "BATCHYARD_ENGINE_ECHO_DELAY_SECONDS": "0.1",
    "BATCHYARD_ENGINE_ECHO_CONCURRENT": "50",
    "BATCHYARD_ENGINE_WINDOW": "50",
}
ORDER = ("validating", "in_progress", "finalizing", "completed")


def test_a_newcomer_follows_the_guide(client: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_bytes(jsonl([chat("q1", "capital of France"), refused("q2")]))
    with path.open("rb") as stream:
        file = client.files.create(file=stream, purpose="batch")
    assert file.filename == "questions.jsonl"
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"description": "first try"}
    )
    done = wait(client, batch.id)
    assert done.output_file_id is not None
    content = client.files.content(done.output_file_id)
    saved = tmp_path / "answers.jsonl"
    content.write_to_file(saved)
    assert saved.read_bytes() == content.content == content.read() == b"".join(content.iter_bytes())
    [line] = content.text.splitlines()
    assert answer(json.loads(line)) == "capital of France"
    assert [row["custom_id"] for row in rows(client, done.error_file_id)] == ["q2"]


@pytest.mark.parametrize("kind", ["path", "bytes", "tuple", "triple", "stream", "text"])
def test_every_way_to_hand_over_a_file(client: openai.OpenAI, tmp_path: Path, kind: str) -> None:
    data = jsonl([chat("a")])
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    handed: dict[str, Any] = {
        "path": path,
        "bytes": data,
        "tuple": ("a.jsonl", data),
        "triple": ("a.jsonl", data, "application/jsonl"),
        "stream": io.BytesIO(data),
        "text": ("a.jsonl", data.decode()),
    }
    file = client.files.create(file=handed[kind], purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert wait(client, batch.id).status == "completed"


async def test_async_client_end_to_end(server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0) as client:
        files = await asyncio.gather(
            *(
                client.files.create(file=("a.jsonl", jsonl([chat(f"line-{n}", f"say {n}")])), purpose="batch")
                for n in range(8)
            )
        )
        batches = await asyncio.gather(
            *(client.batches.create(input_file_id=f.id, endpoint=CHAT, completion_window="24h") for f in files)
        )
        for number, batch in enumerate(batches):
            while batch.status not in TERMINAL:
                await asyncio.sleep(0.02)
                batch = await client.batches.retrieve(batch.id)
            assert batch.output_file_id is not None
            content = await client.files.content(batch.output_file_id)
            assert answer(json.loads(content.text)) == f"say {number}"
        listed = [batch.id async for batch in client.batches.list(limit=3)]
        assert {batch.id for batch in batches} <= set(listed)
        assert len(listed) == len(set(listed))


def test_curl_end_to_end(server: Server, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        without("curl is not installed")
    path = tmp_path / "input.jsonl"
    path.write_bytes(jsonl([chat("a", "hello curl")]))

    def curl(*arguments: str) -> bytes:
        command = ["curl", "--silent", "--show-error", "--max-time", "20", "-H", f"Authorization: Bearer {server.key}"]
        return subprocess.run([*command, *arguments], check=True, capture_output=True).stdout

    # The file first, as people type it, and a file of more than 1 MiB, which curl announces with Expect: 100-continue.
    path.write_bytes(path.read_bytes() + b"\n" * (2 << 20))
    file = json.loads(curl(f"{server.url}/v1/files", "-F", f"file=@{path}", "-F", "purpose=batch"))
    assert (file["object"], file["filename"]) == ("file", "input.jsonl")
    body = json.dumps({"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"})
    batch = json.loads(curl(f"{server.url}/v1/batches", "-d", body, "-H", "Content-Type: application/json"))
    assert set(batch) == BATCH_KEYS
    deadline = time.monotonic() + 20
    while batch["status"] not in TERMINAL:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        batch = json.loads(curl(f"{server.url}/v1/batches/{batch['id']}"))
    result = json.loads(curl(f"{server.url}/v1/files/{batch['output_file_id']}/content"))
    assert answer(result) == "hello curl"
    refused_cancel = json.loads(curl("-X", "POST", f"{server.url}/v1/batches/{batch['id']}/cancel"))
    assert refused_cancel["error"]["message"] == "Cannot cancel a batch with status 'completed'."
    assert json.loads(curl("-X", "DELETE", f"{server.url}/v1/files/{file['id']}"))["deleted"] is True


def test_a_dashboard_sees_only_forward_motion(start_server: StartServer) -> None:
    server = start_server(settings=PACED)
    with server.sdk() as client, server.http() as http:
        lines = [chat(str(number)) if number % 10 else refused(str(number)) for number in range(1500)]
        batch_id = create(client, lines).id
        seen: list[dict[str, Any]] = []
        deadline = time.monotonic() + 30
        while not seen or seen[-1]["status"] not in TERMINAL:
            assert time.monotonic() < deadline
            seen.append(http.get(f"/v1/batches/{batch_id}").json())
            time.sleep(0.05)
    assert len(seen) > 20
    assert all(set(batch) == BATCH_KEYS for batch in seen)
    states = [ORDER.index(batch["status"]) for batch in seen]
    assert states == sorted(states)
    done = [batch["request_counts"]["completed"] + batch["request_counts"]["failed"] for batch in seen]
    assert done == sorted(done)
    assert len(set(done)) > 5
    assert {batch["request_counts"]["total"] for batch in seen} <= {0, 1500}
    for earlier, later in pairwise(seen):
        for name, value in earlier.items():
            if name.endswith("_at") and value is not None:
                assert later[name] == value
    for batch in seen[:-1]:
        if batch["status"] != "completed":
            assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)
    assert seen[-1]["request_counts"] == {"total": 1500, "completed": 1350, "failed": 150}


def test_a_file_deleted_while_its_batch_runs_is_read_to_the_end(start_server: StartServer) -> None:
    """[I] of contract 3.3: delete is allowed, the bytes stay until the batch has ended."""
    server = start_server(
        settings=PACED | {"BATCHYARD_RETENTION_SWEEP_SECONDS": "0.1", "BATCHYARD_WORKER_CHUNK_MAX_LINES": "50"}
    )
    with server.sdk() as client:
        file = upload(client, jsonl(chat(str(number)) for number in range(600)))
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        wait_for_progress(client, batch.id, lines=50)
        client.files.delete(file.id)
        ended = wait(client, batch.id, until={"completed"})
        assert counts(ended) == (600, 600, 0)
        for result in client.files.list(purpose="batch_output"):
            client.files.delete(result.id)
        deadline = time.monotonic() + 10
        while server.blobs():
            assert time.monotonic() < deadline, server.blobs()
            time.sleep(0.05)


def test_the_earlier_deadline_runs_first(start_server: StartServer) -> None:
    """Within a project the window goes by deadline; a batch that is due sooner overtakes a large one that runs."""
    server = start_server(settings=PACED | {"BATCHYARD_WORKER_CHUNK_MAX_LINES": "100"})
    with server.sdk() as client:
        large = create(client, [chat(str(number)) for number in range(4000)])
        wait_for_progress(client, large.id, lines=100)
        with server.database() as database:
            database.execute("UPDATE batches SET expires_at = expires_at + 10000 WHERE id = ?", (large.id,))
        run(client, [chat("urgent")], seconds=4)
        assert client.batches.cancel(large.id).status == "cancelling"
        wait(client, large.id, until={"cancelled"})


def test_an_engine_that_dies_is_built_again_and_every_line_has_an_answer(start_server: StartServer) -> None:
    """A line at which the engine dies every time ends as an error row and takes no other with it."""
    server = start_server(
        settings={"BATCHYARD_ENGINE_REBUILD_FIRST_SECONDS": "0.1"},
        expected_errors=frozenset({"engine_died", "line_killed_engine"}),
    )
    with server.sdk() as client:
        lines = [chat(str(number), echo={"delay_ms": 50}) for number in range(100)]
        lines[30] = chat("30", echo={"crash": 1})
        lines[60] = chat("60", echo={"crash": True})
        batch = run(client, lines, seconds=30)
        assert counts(batch) == (100, 99, 1)
        [poison] = rows(client, batch.error_file_id)
        assert poison["custom_id"] == "60"
        assert len(rows(client, batch.output_file_id)) == 99
    assert server.metrics()["batch_engine_deaths_total"] >= 2


def test_an_operator_stops_the_server_in_time_with_work_that_never_ends(start_server: StartServer) -> None:
    server = start_server(settings={"BATCHYARD_SERVER_STOP_SECONDS": "4"})
    with server.sdk() as client:
        batch = create(client, [chat(str(number)) for number in range(20)] + [hanging("x"), hanging("y")])
        wait_for_progress(client, batch.id, lines=20)
    start = time.monotonic()
    server.stop(within_seconds=6)
    assert time.monotonic() - start < 5
    stop_soon = {"BATCHYARD_SERVER_STOP_SECONDS": "1"}
    with start_server(data_dir=server.data_dir, settings=stop_soon).sdk() as client:
        waiting = client.batches.retrieve(batch.id)
        assert (waiting.status, counts(waiting)) == ("in_progress", (22, 20, 0))


def test_an_idle_server_stops_at_once(start_server: StartServer) -> None:
    server = start_server()
    start = time.monotonic()
    server.stop()
    assert time.monotonic() - start < 3


def test_metrics_add_up_to_the_counts(start_server: StartServer) -> None:
    server = start_server(settings={"BATCHYARD_RETENTION_SWEEP_SECONDS": "0.2"})
    with server.sdk() as client:
        first = run(client, [chat(str(number), "two words") for number in range(40)] + [refused("x"), refused("y")])
        second = create(client, [chat("a"), hanging("b"), hanging("c")])
        wait_for_progress(client, second.id, lines=1)
        assert server.metrics()["batch_inflight"] == 2
        client.batches.cancel(second.id)
        wait(client, second.id, until={"cancelled"})
        failed = run(client, [b"{}"])
        assert failed.status == "failed"
        uploads = [file.bytes for file in client.files.list(purpose="batch")]
    found = server.metrics()
    assert found["batch_lines_total{outcome=completed}"] == counts(first)[1] + 1
    assert found["batch_lines_total{outcome=failed}"] == counts(first)[2]
    assert found["batch_lines_total{outcome=unrun}"] == 2
    assert first.usage is not None
    assert found["batch_tokens_total{kind=input}"] == first.usage.input_tokens + 1
    assert found["batch_tokens_total{kind=output}"] == first.usage.output_tokens + 1
    assert found["batch_chunks_claimed_total"] == found["batch_chunks_sealed_total"] == 2
    assert found["batch_engine_up"] == 1
    assert found["batch_inflight"] == 0
    assert found["batch_http_body_bytes_total{direction=in}"] >= sum(uploads)
    assert found["batch_http_requests_total{method=POST,route=/v1/files,status=200}"] == 3
    ended = [f"batch_batches{{status={name}}}" for name in ("completed", "cancelled", "failed")]
    deadline = time.monotonic() + 5
    while [server.metrics().get(name) for name in ended] != [1, 1, 1]:  # counted by the sweep
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ready_says_loading_while_health_answers(start_server: StartServer) -> None:
    server = start_server(settings={"BATCHYARD_ENGINE_ECHO_LOAD_SECONDS": "2"}, wait="/health")
    with server.http(key="") as http, server.sdk() as client:
        reply = http.get("/ready")
        assert reply.status_code == 503
        assert "loading" in reply.text
        assert http.get("/health").status_code == 200
        batch = create(client, [chat("early")])  # the API takes work before there is an engine
        deadline = time.monotonic() + 10
        while http.get("/ready").status_code != 200:
            assert time.monotonic() < deadline
            start = time.monotonic()
            assert http.get("/health").status_code == 200
            assert time.monotonic() - start < 0.5
            time.sleep(0.05)
        assert "ready" in http.get("/ready").text
        assert wait(client, batch.id).status == "completed"


def test_a_server_without_a_key_asks_for_none(start_server: StartServer) -> None:
    server = start_server(key=None)
    with server.http(key="") as http:
        assert http.get("/v1/files").status_code == 200
    with server.sdk(api_key="anything") as client:
        assert run(client, [chat("a")]).status == "completed"


def test_a_server_without_a_key_refuses_other_addresses(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", tmp_path / "log", flags=("--engine", "echo", "--host", "0.0.0.0"), key=None)
    with pytest.raises(AssertionError, match=r"ended with [1-9]"):
        server.start()
    text = server.log()
    assert "no API key is set" in text
    assert "Traceback" not in text


def test_a_second_server_on_the_same_port_says_so(server: Server, tmp_path: Path) -> None:
    port = server.url.rpartition(":")[2]
    other = Server(tmp_path / "data", tmp_path / "log", flags=("--engine", "echo", "--port", port))
    with pytest.raises(AssertionError, match=r"ended with [1-9]"):
        other.start()
    assert port in other.log()
    assert "Traceback" not in other.log()


def test_log_lines_are_json_with_ids(start_server: StartServer) -> None:
    server = start_server(settings={"BATCHYARD_LOG_LEVEL": "debug"})
    secret = "prompt-that-no-log-may-hold"
    with server.sdk() as client, server.http() as http:
        batch = run(client, [chat("a", secret)])
        request_id = http.get("/v1/files/file-unknown").headers["x-request-id"]
        failed = run(client, [b"{}"])
    server.stop()
    events = server.events()
    assert all(event["event"] and event["level"] and event["timestamp"] for event in events)
    assert [event for event in events if event.get("request_id") == request_id]
    for batch_id in (batch.id, failed.id):
        of_batch = [event["event"] for event in events if event.get("batch_id") == batch_id]
        assert len(of_batch) >= 2, of_batch
    text = server.log(tail=1 << 30)
    assert secret not in text
    assert str(server.key) not in text


def test_health_ready_and_metrics_need_no_key(server: Server) -> None:
    with server.http(key="") as http:
        assert {path: http.get(path).status_code for path in ("/health", "/ready")} == {"/health": 200, "/ready": 200}
        assert http.get("/metrics").status_code == 200


def test_ready_says_what_is_wrong_with_the_blob_store(start_server: StartServer) -> None:
    server = start_server(settings={"BATCHYARD_BLOBS_MIN_FREE_BYTES": str(1 << 60)}, wait="/health")
    with server.http(key="") as http:
        deadline = time.monotonic() + 10
        while "loading" in http.get("/ready").text:
            assert time.monotonic() < deadline
        reply = http.get("/ready")
        assert reply.status_code == 503
        assert "free" in reply.text


def test_concurrent_users_do_not_meet(server: Server) -> None:
    """Many clients at once, each with files and a batch of its own."""

    async def one(client: openai.AsyncOpenAI, number: int) -> None:
        lines = [chat(f"{number}-{n}", f"user {number} line {n}") for n in range(20)]
        file = await client.files.create(file=("a.jsonl", jsonl(lines)), purpose="batch")
        batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        while batch.status not in TERMINAL:
            await asyncio.sleep(0.05)
            batch = await client.batches.retrieve(batch.id)
        assert batch.output_file_id is not None
        content = await client.files.content(batch.output_file_id)
        found = {row["custom_id"]: answer(row) for row in map(json.loads, content.text.splitlines())}
        assert found == {f"{number}-{n}": f"user {number} line {n}" for n in range(20)}

    async def everyone() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0) as client:
            await asyncio.gather(*(one(client, number) for number in range(20)))

    asyncio.run(everyone())
    with httpx2.Client() as plain:
        assert plain.get(f"{server.url}/health").status_code == 200
