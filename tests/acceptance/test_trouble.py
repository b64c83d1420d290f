"""Trouble around the server: frozen and doubled processes, a locked database, lost blobs, an engine that balks."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import time
from collections.abc import Callable

import openai
import pytest

from tests.acceptance.batch import (
    by_id,
    chat,
    counts,
    create,
    hanging,
    jsonl,
    rows,
    run,
    upload,
    wait,
    wait_for_progress,
)
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server
from tests.acceptance.wire import connect, head, refusal

PACED = {
    "BATCHYARD_ENGINE_ECHO_DELAY_SECONDS": "0.1",
    "BATCHYARD_ENGINE_ECHO_CONCURRENT": "50",
    "BATCHYARD_ENGINE_WINDOW": "50",
    "BATCHYARD_WORKER_CHUNK_MAX_LINES": "100",
}


def until(condition: Callable[[], bool], *, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.03)


def ran(server: Server) -> float:
    return server.metrics().get("batch_lines_total{outcome=completed}", 0)


#: uvicorn's word, at level error, when answers outlast their share of the stop.
CUT_SHORT = {"settings": {"BATCHYARD_SERVER_STOP_SECONDS": "3"}, "expected_errors": frozenset({"foreign_log"})}


def freeze(server: Server) -> None:
    """SIGSTOP at a moment when it holds no lock on the database, which would freeze everybody else too."""
    while True:
        os.kill(server.process.pid, signal.SIGSTOP)
        lock = sqlite3.connect(server.data_dir / "batchyard.db", timeout=0.2, isolation_level=None)
        try:
            lock.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            os.kill(server.process.pid, signal.SIGCONT)
            time.sleep(0.01)
        else:
            lock.rollback()
            return
        finally:
            lock.close()


def check_all(client: openai.OpenAI, batch_id: str, lines: int) -> None:
    batch = wait(client, batch_id, until={"completed"})
    assert counts(batch) == (lines, lines, 0)
    assert set(by_id(rows(client, batch.output_file_id))) == {str(number) for number in range(lines)}


def test_two_servers_share_the_work_and_one_is_killed(start_server: StartServer) -> None:
    first = start_server(settings=PACED)
    second = start_server(settings=PACED, data_dir=first.data_dir)
    with second.sdk() as client:
        batch = create(client, [chat(str(number)) for number in range(2000)])
        until(lambda: ran(first) > 100 and ran(second) > 100)
        first.kill()
        check_all(client, batch.id, 2000)


def test_a_frozen_server_comes_back_and_repeats_nothing(start_server: StartServer) -> None:
    """Its leases lapsed meanwhile, and others hold its chunks: whatever it still commits or seals is fenced off."""
    frozen = start_server(settings=PACED)
    with frozen.sdk() as client:
        batch = create(client, [chat(str(number)) for number in range(1500)])
        wait_for_progress(client, batch.id, lines=200)
    freeze(frozen)
    try:
        second = start_server(settings=PACED, data_dir=frozen.data_dir)
        with second.sdk() as client:
            until(lambda: ran(second) > 400)
            os.kill(frozen.process.pid, signal.SIGCONT)
            check_all(client, batch.id, 1500)
    finally:
        os.kill(frozen.process.pid, signal.SIGCONT)
    assert frozen.metrics()["batch_leases_lost_total"] >= 1
    with frozen.sdk() as client:
        check_all(client, batch.id, 1500)


def test_a_locked_database_gives_503_and_heals(start_server: StartServer) -> None:
    server = start_server(settings=PACED | {"BATCHYARD_STORE_BUSY_TIMEOUT_SECONDS": "0.3"})
    with server.sdk() as client, server.http() as http:
        running = create(client, [chat(str(number)) for number in range(500)])
        file = upload(client, jsonl([chat("a")]))
        wait_for_progress(client, running.id, lines=50)
        blobs = server.blobs()
        lock = sqlite3.connect(server.data_dir / "batchyard.db", timeout=15, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        reply = http.post("/v1/batches", json=body)
        refusal(reply, 503, type="server_error")
        assert 1 <= int(reply.headers["retry-after"]) <= 120
        with pytest.raises(openai.InternalServerError):
            upload(client, jsonl([chat("b")]))
        refusal(http.post(f"/v1/batches/{running.id}/cancel"), 503)
        refusal(http.delete(f"/v1/files/{file.id}"), 503)
        assert http.get(f"/v1/batches/{running.id}").status_code == 200
        assert http.get("/health").status_code == 200
        lock.rollback()
        lock.close()
        check_all(client, running.id, 500)
        until(lambda: not any(path.parent.name == "uploads" for path in server.blobs() - blobs))
        assert run(client, [chat("after")]).status == "completed"


def test_a_lost_blob_folder_gives_503_and_heals(start_server: StartServer) -> None:
    server = start_server()
    blobs, aside = server.data_dir / "blobs", server.data_dir / "aside"
    with server.sdk() as client, server.http() as http:
        file = upload(client, jsonl([chat(str(number)) for number in range(50)]))
        blobs.rename(aside)
        blobs.write_text("in the way")
        with pytest.raises(openai.InternalServerError) as caught:
            upload(client, jsonl([chat("b")]))
        assert caught.value.status_code == 503
        until(lambda: http.get("/ready").status_code == 503)
        assert http.get("/health").status_code == 200
        blobs.unlink()
        aside.rename(blobs)
        until(lambda: http.get("/ready").status_code == 200)
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        check_all(client, batch.id, 50)


def test_a_line_without_an_answer_in_time_is_request_timeout(start_server: StartServer) -> None:
    server = start_server(settings={"BATCHYARD_ENGINE_REQUEST_TIMEOUT_SECONDS": "1"})
    with server.sdk() as client:
        batch = run(client, [chat("a"), hanging("b"), chat("c")])
        assert batch.status == "completed"
        assert counts(batch) == (3, 2, 1)
        [row] = rows(client, batch.error_file_id)
        assert (row["custom_id"], row["response"], row["error"]["code"]) == ("b", None, "request_timeout")


def test_an_engine_that_refuses_admission_is_asked_again(client: openai.OpenAI) -> None:
    batch = run(client, [chat(str(number), echo={"busy": number % 4}) for number in range(40)])
    assert counts(batch) == (40, 40, 0)


def test_a_hanging_line_does_not_hold_up_the_others(client: openai.OpenAI) -> None:
    stuck = create(client, [chat("a"), hanging("b")])
    assert run(client, [chat(str(number)) for number in range(100)], seconds=10).status == "completed"
    client.batches.cancel(stuck.id)
    wait(client, stuck.id, until={"cancelled"})


def test_a_reader_that_is_slow_does_not_keep_the_server_from_stopping(start_server: StartServer) -> None:
    server = start_server(**CUT_SHORT)
    with server.sdk() as client:
        file = client.files.create(file=("a.jsonl", b"x" * (30 << 20)), purpose="fine-tune")
    with connect(server.url) as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.sendall(head("GET", f"/v1/files/{file.id}/content", Authorization=f"Bearer {server.key}"))
        assert stream.recv(1000).startswith(b"HTTP/1.1 200")
        start = time.monotonic()
        server.stop(within_seconds=6)
        assert time.monotonic() - start < 5


def test_a_client_that_leaves_in_the_middle_of_a_download_is_no_fault(server: Server, client: openai.OpenAI) -> None:
    file = client.files.create(file=("a.jsonl", b"x" * (30 << 20)), purpose="fine-tune")
    for _ in range(5):
        with connect(server.url) as stream:
            stream.sendall(head("GET", f"/v1/files/{file.id}/content", Authorization=f"Bearer {server.key}"))
            assert stream.recv(1000).startswith(b"HTTP/1.1 200")
    assert client.files.delete(file.id).deleted


def test_a_stop_in_the_middle_of_an_upload_leaves_nothing(start_server: StartServer) -> None:
    server = start_server(**CUT_SHORT)
    fields = {"Authorization": f"Bearer {server.key}", "Content_Type": "multipart/form-data; boundary=ab"}
    begin = b'--ab\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{}\n'
    with connect(server.url) as stream:
        stream.sendall(head("POST", "/v1/files", Content_Length=str(50 << 20), **fields) + begin + b"\n" * (5 << 20))
        until(lambda: bool(server.blobs()))
        server.stop(within_seconds=6)
    assert not server.blobs()


def test_what_a_killed_upload_left_behind_is_swept(start_server: StartServer) -> None:
    server = start_server()
    fields = {"Authorization": f"Bearer {server.key}", "Content_Type": "multipart/form-data; boundary=ab"}
    begin = b'--ab\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{}\n'
    with connect(server.url) as stream:
        stream.sendall(head("POST", "/v1/files", Content_Length=str(50 << 20), **fields) + begin + b"\n" * (5 << 20))
        until(lambda: bool(server.blobs()))
        server.kill()
    assert server.blobs()
    sweep = {"BATCHYARD_RETENTION_SWEEP_SECONDS": "0.2", "BATCHYARD_RETENTION_ORPHAN_GRACE_SECONDS": "1"}
    second = start_server(data_dir=server.data_dir, settings=sweep)
    until(lambda: not second.blobs())
