"""A process from start to exit code, as signals and broken set-ups meet it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import httpx2
import pytest

from app.cli.process import base_url, listen
from app.errors import SettingsInvalid
from tests.databases import Postgres

ROOT = Path(__file__).resolve().parents[3]
HALF_AN_UPLOAD = (
    b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n"
    b"content-type: multipart/form-data; boundary=b\r\n\r\n"
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\nhalf'
)


class Process:
    """`python -m app …` with its log read line by line."""

    def __init__(self, *arguments: str, environ: dict[str, str] | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "app", *arguments],
            cwd=ROOT,
            env=environment | (environ or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.seen: list[str] = []

    def wait_for(self, event: str) -> dict[str, object]:
        """The next log line with this event."""
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.seen.append(line)
            record: dict[str, object] = json.loads(line)
            if record["event"] == event:
                return record
        raise AssertionError(f"no {event} in {self.seen}")

    def end(self, seconds: float = 20) -> tuple[int, list[dict[str, object]]]:
        """Exit code and the rest of the log."""
        _, rest = self.popen.communicate(timeout=seconds)
        return self.popen.returncode, [json.loads(line) for line in rest.splitlines()]


@pytest.fixture
def started() -> Generator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.popen.kill()
        process.popen.communicate()


def serving(started: list[Process], folder: Path, *flags: str) -> tuple[Process, str]:
    """An echo server that listens, and its URL without `/v1`."""
    process = Process("serve", "--engine", "echo", "--port", "0", "--data-dir", str(folder), *flags)
    started.append(process)
    return process, str(process.wait_for("listening")["base_url"]).removesuffix("/v1")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "sigint"])
def test_serve_ends_with_0_on_a_signal(number: signal.Signals, started: list[Process], tmp_path: Path) -> None:
    process, url = serving(started, tmp_path)
    assert httpx2.get(f"{url}/health").status_code == 200
    process.popen.send_signal(number)
    code, rest = process.end()
    assert code == 0
    events = [record["event"] for record in rest]
    assert events[-1] == "stopped"
    assert "worker_stopped" in events
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{url}/health")


def test_serve_answers_health_while_the_engine_loads_and_stops_at_once(started: list[Process], tmp_path: Path) -> None:
    process, url = serving(started, tmp_path, "--set", "engine.echo_load_seconds=600")
    assert httpx2.get(f"{url}/health").status_code == 200
    ready = httpx2.get(f"{url}/ready")
    assert ready.status_code == 503
    assert ready.json()["checks"]["engine"] == "loading"
    began = time.monotonic()
    process.popen.terminate()
    assert process.end()[0] == 0
    assert time.monotonic() - began < 5


def test_serve_stops_in_time_although_a_request_hangs_and_a_client_reads_nothing(
    started: list[Process], tmp_path: Path
) -> None:
    process, url = serving(started, tmp_path, "--set", "server.stop_seconds=4", "--set", "worker.poll_seconds=0.05")
    body = {"model": "echo", "messages": [{"role": "user", "content": "x"}], "echo": {"hang": True}}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    with httpx2.Client(base_url=f"{url}/v1/") as client:
        upload = client.post("files", data={"purpose": "batch"}, files={"file": ("a.jsonl", json.dumps(line).encode())})
        create = {"input_file_id": upload.json()["id"], "endpoint": line["url"], "completion_window": "24h"}
        batch = client.post("batches", json=create).json()
        deadline = time.monotonic() + 15
        while client.get(f"batches/{batch['id']}").json()["status"] != "in_progress":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as half_sent:
        half_sent.sendall(HALF_AN_UPLOAD)
        began = time.monotonic()
        process.popen.terminate()
        code, rest = process.end()
    assert code == 0
    assert time.monotonic() - began < 4.5
    assert "stopped" in [record["event"] for record in rest], rest


def test_serve_ends_at_once_on_a_second_signal(started: list[Process], tmp_path: Path) -> None:
    process, url = serving(started, tmp_path)
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as half_sent:
        half_sent.sendall(HALF_AN_UPLOAD)
        time.sleep(0.2)
        process.popen.terminate()
        process.popen.terminate()  # at once: the same wish
        process.wait_for("stopping")
        time.sleep(0.7)
        assert process.popen.poll() is None
        process.popen.terminate()
        code, rest = process.end(5)
    assert code == 1
    assert rest[-1]["event"] == "stop_forced"


def test_serve_refuses_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = Process("serve", "--engine", "echo", "--port", str(port), "--data-dir", str(tmp_path))
        _, said = process.popen.communicate(timeout=30)
    assert process.popen.returncode == 2
    assert said.splitlines()[-1].startswith(f"error: cannot listen on 127.0.0.1:{port}: Address already in use")
    assert "Traceback" not in said


def test_serve_ends_with_1_when_the_database_does_not_answer(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql+asyncpg://me:secret-word@127.0.0.1:{nobody.getsockname()[1]}/x"
        flags = ("--engine", "echo", "--port", "0", "--data-dir", str(tmp_path), "--set", f"store.url={url}")
        process = Process("serve", *flags)
        _, said = process.popen.communicate(timeout=30)
    assert process.popen.returncode == 1
    assert said.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in said
    assert "secret-word" not in said


def test_serve_prints_where_it_listens_for_people(started: list[Process], tmp_path: Path) -> None:
    process, url = serving(started, tmp_path, "--hints")
    assert process.popen.stdout is not None
    said = ""
    for line in process.popen.stdout:
        said += line
        if line == "Ready.\n":
            break
    assert said.startswith(f"base_url: {url}/v1\n")
    assert said.count(f"{url}/v1") >= 4


def one_line_batch(client: httpx2.Client) -> dict[str, object]:
    body = {"model": "echo", "messages": [{"role": "user", "content": "x"}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    upload = client.post("files", data={"purpose": "batch"}, files={"file": ("a.jsonl", json.dumps(line).encode())})
    create = {"input_file_id": upload.json()["id"], "endpoint": line["url"], "completion_window": "24h"}
    batch: dict[str, object] = client.post("batches", json=create).json()
    return batch


def wait_completed(client: httpx2.Client, batch: dict[str, object]) -> None:
    deadline = time.monotonic() + 20
    while batch["status"] != "completed":
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
        batch = client.get(f"batches/{batch['id']}").json()


def test_worker_finishes_what_the_api_took(started: list[Process], tmp_path: Path) -> None:
    _, url = serving(started, tmp_path, "--role", "api")
    with httpx2.Client(base_url=f"{url}/v1/") as client:
        batch = one_line_batch(client)
        worker = Process("worker", "--engine", "echo", "--data-dir", str(tmp_path), "--no-migrate")
        started.append(worker)
        wait_completed(client, batch)
    worker.popen.terminate()
    assert worker.end()[0] == 0


@pytest.mark.postgres
def test_api_and_workers_start_at_once_on_an_empty_postgres(
    started: list[Process], postgres_server: Postgres, tmp_path: Path
) -> None:
    postgres_server.execute("CREATE DATABASE race")
    store = ("--set", f"store.url={postgres_server.url('race')}", "--data-dir", str(tmp_path))
    workers = [Process("worker", "--engine", "echo", *store) for _ in range(2)]
    started.extend(workers)
    _, url = serving(started, tmp_path, "--role", "api", *store)
    for worker in workers:
        worker.wait_for("worker_started")
    with httpx2.Client(base_url=f"{url}/v1/") as client:
        wait_completed(client, one_line_batch(client))
    for process in started:
        process.popen.terminate()
    assert [process.end()[0] for process in started] == [0, 0, 0]


OVERDUE = """
import asyncio, os, signal, time
from app.cli.process import _stoppable, in_loop
from app import telemetry
from app.settings import LogSettings

async def life():
    with _stoppable(1.0) as stop:
        {set}
        await stop.wait()
        await asyncio.sleep(0.05)
        time.sleep(30)  # the event loop hangs
    return 5

telemetry.configure(LogSettings())
raise SystemExit(in_loop(life()))
"""


@pytest.mark.parametrize(
    ("how", "code"),
    [("os.kill(os.getpid(), signal.SIGTERM)", 0), ("stop.set()", 1)],
    ids=["asked", "after-a-death"],
)
def test_process_ends_itself_in_time_although_its_event_loop_hangs(how: str, code: int) -> None:
    began = time.monotonic()
    script = OVERDUE.replace("{set}", how)
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == code
    assert time.monotonic() - began < 10
    assert json.loads(ended.stderr.splitlines()[-1])["event"] == "stop_overdue"


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:{}/v1"), ("0.0.0.0", "http://127.0.0.1:{}/v1"), ("::1", "http://[::1]:{}/v1")],
    ids=["v4", "any", "v6"],
)
def test_base_url_is_one_that_a_client_can_use(host: str, url: str) -> None:
    with listen(host, 0) as listener:
        assert base_url(listener) == url.format(listener.getsockname()[1])


def test_listen_refuses_a_name_that_is_no_address() -> None:
    with pytest.raises(SettingsInvalid, match=r"server\.host no\.such\.host\.invalid is not an address"):
        listen("no.such.host.invalid", 0)


def test_worker_tells_those_who_watch_it_how_it_is(started: list[Process], tmp_path: Path) -> None:
    process = Process("worker", "--engine", "echo", "--data-dir", str(tmp_path), "--port", "0")
    started.append(process)
    url = str(process.wait_for("listening")["base_url"])
    while (ready := httpx2.get(f"{url}/ready")).status_code == 503:
        time.sleep(0.02)
    assert ready.json() == {"ready": True, "checks": {"engine": "ready", "database": "ok", "blobs": "ok"}}
    assert httpx2.get(f"{url}/health").status_code == 200
    assert "\nbatch_engine_up 1.0" in httpx2.get(f"{url}/metrics").text
    for path in ("/v1/batches", "/v1/chat/completions", "/openapi.json"):
        refusal = httpx2.get(url + path)
        assert (refusal.status_code, refusal.json()["error"]["type"]) == (404, "invalid_request_error")
    process.popen.send_signal(signal.SIGTERM)
    assert process.end()[0] == 0


def test_worker_whose_port_is_taken_says_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process = Process("worker", "--engine", "echo", "--data-dir", str(tmp_path), "--port", port)
        _, log = process.popen.communicate(timeout=20)
    assert process.popen.returncode == 2
    assert log.splitlines()[-1].startswith(f"error: cannot listen on 127.0.0.1:{port}: ")
