"""A database that is away for a while, or whose writer froze: the API says so, the worker waits, nothing is lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

import httpx2
import pytest

from tests.acceptance.batch import by_id, chat, counts, create, jsonl, rows, upload, wait, wait_for_progress
from tests.acceptance.server import Server
from tests.acceptance.wire import refusal
from tests.chaos.storage import PrivatePostgres, private_postgres
from tests.databases import programs

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

AWAY_SECONDS = 12.0
PACED = {
    "BATCHYARD_ENGINE_ECHO_DELAY_SECONDS": "0.1",
    "BATCHYARD_ENGINE_ECHO_CONCURRENT": "20",
    "BATCHYARD_ENGINE_WINDOW": "20",
    "BATCHYARD_WORKER_CHUNK_MAX_LINES": "100",
}


@pytest.fixture
def processes() -> Generator[list[Server]]:
    started: list[Server] = []
    yield started
    for process in started:
        process.kill()


@pytest.fixture
def postgres() -> Generator[PrivatePostgres]:
    programs()
    with private_postgres() as server:
        server.execute("CREATE DATABASE away")
        yield server


def until(condition: Callable[[], bool], *, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def check_unavailable(reply: httpx2.Response) -> None:
    refusal(reply, 503, type="server_error")
    assert 1 <= int(reply.headers["retry-after"]) <= 120


@pytest.mark.postgres
def test_postgres_away_longer_than_a_lease(tmp_path: Path, processes: list[Server], postgres: PrivatePostgres) -> None:
    """One worker: what it had finished waits in memory, and no line runs twice."""
    journal = tmp_path / "journal"
    settings = PACED | {"BATCHYARD_STORE_URL": postgres.url("away"), "BATCHYARD_ENGINE_ECHO_JOURNAL": str(journal)}
    server = Server(tmp_path / "data", tmp_path / "server.log", settings=settings).start()
    processes.append(server)
    with server.sdk(max_retries=5) as client, server.http() as http:
        file = upload(client, jsonl([chat("a")]))
        batch = create(client, [chat(str(number), f"say {number}") for number in range(1000)])
        wait_for_progress(client, batch.id, lines=200)
        postgres.stop(mode="immediate")
        body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        check_unavailable(http.post("/v1/batches", json=body))
        check_unavailable(http.get(f"/v1/batches/{batch.id}"))
        check_unavailable(http.post(f"/v1/batches/{batch.id}/cancel"))
        assert http.get("/health").status_code == 200
        until(lambda: http.get("/ready").status_code == 503)
        time.sleep(AWAY_SECONDS)
        begun = len(journal.read_bytes().splitlines())
        time.sleep(0.5)
        assert len(journal.read_bytes().splitlines()) == begun, "lines are dealt although leases are in doubt"
        postgres.start()
        until(lambda: http.get("/ready").status_code == 200)
        ended = wait(client, batch.id, until={"completed"})
        assert counts(ended) == (1000, 1000, 0)
        assert set(by_id(rows(client, ended.output_file_id))) == {str(number) for number in range(1000)}
    runs = Counter(line.split()[2] for line in journal.read_bytes().splitlines())
    assert set(runs.values()) == {1}
    server.stop()


def frozen(server: Server) -> bool:
    return Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def run_beside_a_frozen_writer(processes: list[Server], tmp_path: Path, url: dict[str, str]) -> tuple[Server, str]:
    """A worker that froze with a part written and not committed, and a server beside it; the batch they share."""
    settings = PACED | url | {"BATCHYARD_STORE_BUSY_TIMEOUT_SECONDS": "2"}
    server = Server(tmp_path / "data", tmp_path / "server.log", settings=settings | {"BATCHYARD_SERVER_ROLE": "api"})
    processes.append(server.start())
    worker = Server(server.data_dir, tmp_path / "worker.log", settings=settings)
    worker.settings = settings | {"BATCHYARD_DEBUG_FAILPOINT": "part_recorded=freeze@3"}
    processes.append(worker.start_worker())
    with server.sdk() as client:
        batch = create(client, [chat(str(number)) for number in range(400)])
    until(lambda: frozen(worker), seconds=40)
    other = Server(server.data_dir, tmp_path / "other.log", settings=settings)
    processes.append(other.start_worker())
    return server, batch.id


def check_completes(server: Server, batch_id: str) -> None:
    with server.sdk(max_retries=5) as client:
        batch = wait(client, batch_id, until={"completed"}, seconds=60)
        assert counts(batch) == (400, 400, 0)
        assert len(by_id(rows(client, batch.output_file_id))) == 400


def test_a_frozen_writer_on_sqlite_blocks_writes_until_it_is_killed(tmp_path: Path, processes: list[Server]) -> None:
    """SQLite has one writer, and nobody can take its lock away; reads go on, and so does everything once it is gone."""
    server, batch_id = run_beside_a_frozen_writer(processes, tmp_path, {})
    with server.http() as http:
        check_unavailable(http.post(f"/v1/batches/{batch_id}/cancel"))
        assert http.get(f"/v1/batches/{batch_id}").json()["status"] == "in_progress"
    processes[1].kill()
    check_completes(server, batch_id)


@pytest.mark.postgres
def test_a_frozen_writer_on_postgres_loses_its_transaction(
    tmp_path: Path, processes: list[Server], postgres: PrivatePostgres
) -> None:
    """It never wakes up; the others get its locks, and its chunk."""
    url = {"BATCHYARD_STORE_URL": postgres.url("away")}
    server, batch_id = run_beside_a_frozen_writer(processes, tmp_path, url)
    check_completes(server, batch_id)
    assert frozen(processes[1])
