"""Processes whose clocks are an hour off, in both directions: time is the database's."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.acceptance.batch import by_id, chat, counts, create, jsonl, rows, upload, wait, wait_for_progress
from tests.acceptance.server import Server

pytestmark = pytest.mark.timeout(120)

HOUR = 3600
PACED = {
    "BATCHYARD_ENGINE_ECHO_DELAY_SECONDS": "0.1",
    "BATCHYARD_ENGINE_ECHO_CONCURRENT": "25",
    "BATCHYARD_ENGINE_WINDOW": "25",
    "BATCHYARD_WORKER_CHUNK_MAX_LINES": "50",
    "BATCHYARD_RETENTION_SWEEP_SECONDS": "0.1",
    "BATCHYARD_RETENTION_ORPHAN_GRACE_SECONDS": "1800",
}


def shifted(seconds: int) -> dict[str, str]:
    """Settings of a process whose clock is `seconds` ahead."""
    folder = Path(__file__).parent / "shifted_clock"
    return PACED | {"PYTHONPATH": str(folder), "CLOCK_SHIFT_SECONDS": str(seconds)}


@pytest.fixture
def processes(tmp_path: Path) -> Generator[list[Server]]:
    started: list[Server] = []
    yield started
    for process in started:
        process.kill()


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_clocks_an_hour_off_change_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, processes: list[Server], database: str
) -> None:
    """An API an hour behind, a worker an hour ahead and one that is right share a batch; then one is killed."""
    url = {"BATCHYARD_STORE_URL": request.getfixturevalue("empty_postgres_url")} if database == "postgres" else {}
    api_settings = shifted(-HOUR) | {"BATCHYARD_SERVER_ROLE": "api"} | url
    api = Server(tmp_path / "data", tmp_path / "api.log", settings=api_settings).start()
    processes.append(api)
    for number, settings in enumerate((shifted(HOUR), PACED)):
        worker = Server(api.data_dir, tmp_path / f"worker{number}.log", settings=settings | url)
        processes.append(worker.start_worker())
    with api.sdk() as client:
        before = int(time.time())
        batch = create(client, [chat(str(number)) for number in range(1500)])
        wait_for_progress(client, batch.id, lines=300)
        logs = [process.log() for process in processes[1:]]
        assert not any("lease_lost" in log for log in logs), "a lease was taken from a worker that lives"
        processes[2].kill()
        ended = wait(client, batch.id, until={"completed"})
        after = int(time.time())
        assert counts(ended) == (1500, 1500, 0)
        assert len(by_id(rows(client, ended.output_file_id))) == 1500
        assert ended.completed_at is not None
        assert before <= ended.created_at <= ended.completed_at <= after
        assert ended.expires_at == ended.created_at + 24 * HOUR
        made_at = int(batch.id.removeprefix("batch_")[:12], 16) / 1000
        assert made_at == pytest.approx(before - HOUR, abs=60), "the clock of the API was not moved"
        assert ended.output_file_id is not None
        output = client.files.retrieve(ended.output_file_id)
        assert before <= output.created_at <= after
        # The ids carry their makers' time, and only break ties: the listing goes by the database's.
        later = upload(client, jsonl([chat("a")]))
        assert before <= later.created_at <= int(time.time()) + 1
        time.sleep(1.1)
        last = upload(client, jsonl([chat("a")]))
        assert next(iter(client.files.list(order="desc"))).id == last.id
        assert "chunk_sealed" in processes[1].log()


def test_a_clock_an_hour_ahead_removes_no_upload_under_way(tmp_path: Path, processes: list[Server]) -> None:
    """Unfinished writes age by the clock that dates them, the file system's."""
    server = Server(tmp_path / "data", tmp_path / "server.log", settings=shifted(HOUR)).start()
    processes.append(server)
    unfinished = server.data_dir / "blobs" / ".tmp" / "0123456789abcdef0123456789abcdef"
    unfinished.parent.mkdir(exist_ok=True)
    unfinished.write_bytes(b"half")
    time.sleep(1)
    assert unfinished.exists()
