"""kill -9 and SIGTERM amid work: after a restart nothing is lost, nothing stands twice, little is repeated."""

from __future__ import annotations

import time
from collections.abc import Mapping

import openai
import pytest
from openai.types import Batch

from tests.acceptance.batch import by_id, chat, counts, create, jsonl, rows, wait, wait_for_progress
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server

LINES = 2000
#: 500 lines a second: 2,000 take four seconds.
PACED = {
    "BATCHYARD_ENGINE_ECHO_DELAY_SECONDS": "0.1",
    "BATCHYARD_ENGINE_ECHO_CONCURRENT": "50",
    "BATCHYARD_ENGINE_WINDOW": "50",
    "BATCHYARD_WORKER_CHUNK_MAX_LINES": "300",
}
DEFAULTS = {"BATCHYARD_WORKER_LEASE_SECONDS": "15", "BATCHYARD_WORKER_HEARTBEAT_SECONDS": "3"} | {
    "BATCHYARD_WORKER_POLL_SECONDS": "0.25",
    "BATCHYARD_WORKER_PART_SECONDS": "1",
    "BATCHYARD_WORKER_CHUNK_MAX_LINES": "1000",
}

pytestmark = pytest.mark.timeout(120)


def many() -> list[dict[str, object]]:
    return [chat(f"line-{number}", f"say {number}") for number in range(LINES)]


def check_complete(client: openai.OpenAI, batch: Batch) -> None:
    assert batch.status == "completed"
    assert counts(batch) == (LINES, LINES, 0)
    assert batch.error_file_id is None
    written = rows(client, batch.output_file_id)
    found = by_id(written)
    assert list(found) == [f"line-{number}" for number in range(LINES)]
    for number in range(LINES):
        row = found[f"line-{number}"]
        assert row["response"]["body"]["choices"][0]["message"]["content"] == f"say {number}"
    assert batch.usage is not None
    spent = [row["response"]["body"]["usage"]["total_tokens"] for row in written]
    assert batch.usage.total_tokens == sum(spent)


def ran(server: Server) -> float:
    """Lines that this process has run and counted."""
    return server.metrics().get("batch_lines_total{outcome=completed}", 0)


@pytest.mark.parametrize("settings", [PACED, PACED | DEFAULTS], ids=["quick", "defaults"])
def test_kill_in_the_middle_of_two_thousand_lines(start_server: StartServer, settings: Mapping[str, str]) -> None:
    first = start_server(settings=settings)
    with first.sdk() as client:
        batch = create(client, many())
        wait_for_progress(client, batch.id, lines=700)
        first.kill()
    second = start_server(data_dir=first.data_dir, settings=settings)
    with second.sdk() as client:
        before = client.batches.retrieve(batch.id)
        assert before.status == "in_progress"
        kept = counts(before)[1]
        assert 700 <= kept < LINES
        check_complete(client, wait(client, batch.id, until={"completed"}, seconds=60))
    assert ran(second) == LINES - kept


def test_kill_again_and_again(start_server: StartServer) -> None:
    server = start_server(settings=PACED)
    with server.sdk() as client:
        batch = create(client, many())
        wait_for_progress(client, batch.id, lines=100)
    progress = 0
    for _ in range(3):
        server.kill()
        server = start_server(data_dir=server.data_dir, settings=PACED)
        with server.sdk() as client:
            progress = max(progress, counts(client.batches.retrieve(batch.id))[1])
            wait_for_progress(client, batch.id, lines=progress + 150)
    with server.sdk() as client:
        check_complete(client, wait(client, batch.id, until={"completed"}, seconds=60))


def test_kill_while_validating(start_server: StartServer) -> None:
    first = start_server()
    lines = 40_000
    data = jsonl(chat(str(number), "word " * 400) for number in range(lines))
    with first.sdk() as client:
        batch = create(client, data)
        deadline = time.monotonic() + 20
        while not _validation_leased(first):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        first.kill()
    second = start_server(data_dir=first.data_dir)
    with second.sdk() as client:
        started = wait(client, batch.id, until={"in_progress"}, seconds=60)
        assert counts(started)[0] == lines
        assert client.batches.cancel(batch.id).status == "cancelling"
        ended = wait(client, batch.id, until={"cancelled"})
        written = [row["custom_id"] for f in (ended.output_file_id, ended.error_file_id) for row in rows(client, f)]
        assert len(written) == lines
        assert len(set(written)) == lines


def _validation_leased(server: Server) -> bool:
    with server.database() as database:
        found = database.execute("SELECT status, lease_token FROM batches").fetchall()
    assert [status for status, _ in found] == ["validating"], (
        "validated before it could be killed: make the file bigger"
    )
    return found[0][1] is not None


def test_kill_while_cancelling(start_server: StartServer) -> None:
    first = start_server(settings=PACED)
    with first.sdk() as client:
        batch = create(client, many())
        wait_for_progress(client, batch.id, lines=300)
        assert client.batches.cancel(batch.id).status == "cancelling"
        first.kill()
    with start_server(data_dir=first.data_dir, settings=PACED).sdk() as client:
        ended = wait(client, batch.id, until={"cancelled"})
        total, completed, failed = counts(ended)
        assert (total, failed) == (LINES, 0)
        assert 300 <= completed < LINES
        output, errors = by_id(rows(client, ended.output_file_id)), by_id(rows(client, ended.error_file_id))
        assert len(output) == completed
        assert len(errors) == LINES - completed
        assert not output.keys() & errors.keys()
        assert {row["error"]["code"] for row in errors.values()} == {"batch_cancelled"}


def test_term_in_the_middle_loses_no_finished_line(start_server: StartServer) -> None:
    """A graceful stop makes durable what has ended, and gives its chunks back at once: no lease has to lapse."""
    long_lease = {"BATCHYARD_WORKER_LEASE_SECONDS": "600", "BATCHYARD_WORKER_HEARTBEAT_SECONDS": "60"}
    first = start_server(settings=PACED | long_lease)
    with first.sdk() as client:
        batch = create(client, many())
        wait_for_progress(client, batch.id, lines=500)
    first.stop(within_seconds=32)
    second = start_server(data_dir=first.data_dir, settings=PACED | long_lease)
    with second.sdk() as client:
        kept = counts(client.batches.retrieve(batch.id))[1]
        assert 500 <= kept < LINES
        check_complete(client, wait(client, batch.id, until={"completed"}, seconds=30))
    assert ran(second) == LINES - kept


def test_term_while_validating_starts_over(start_server: StartServer) -> None:
    long_lease = {"BATCHYARD_WORKER_LEASE_SECONDS": "600", "BATCHYARD_WORKER_HEARTBEAT_SECONDS": "60"}
    first = start_server(settings=long_lease)
    with first.sdk() as client:
        batch = create(client, jsonl(chat(str(number), "word " * 400) for number in range(20_000)))
    first.stop()
    with start_server(data_dir=first.data_dir, settings=long_lease).sdk() as client:
        ended = wait(client, batch.id, until={"completed"}, seconds=60)
        assert counts(ended) == (20_000, 20_000, 0)
