"""API and workers in processes of their own, on SQLite and on Postgres: only database and blobs connect them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import openai
import pytest

from tests.acceptance.batch import (
    by_id,
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

PACED = {
    "BATCHYARD_ENGINE_ECHO_DELAY_SECONDS": "0.1",
    "BATCHYARD_ENGINE_ECHO_CONCURRENT": "50",
    "BATCHYARD_ENGINE_WINDOW": "50",
    "BATCHYARD_WORKER_CHUNK_MAX_LINES": "100",
}
API = {"BATCHYARD_SERVER_ROLE": "api"}


@pytest.fixture
def workers(tmp_path: Path) -> Generator[list[Server]]:
    """Put workers in here: each is stopped at the end, and must end well, unless the test has killed it."""
    started: list[Server] = []
    yield started
    for worker in started:
        if worker.process.poll() is None:
            try:
                worker.stop()
            finally:
                worker.kill()


def check_all(client: openai.OpenAI, batch_id: str, lines: int) -> None:
    batch = wait(client, batch_id, until={"completed"})
    assert counts(batch) == (lines, lines, 0)
    assert set(by_id(rows(client, batch.output_file_id))) == {str(number) for number in range(lines)}


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_an_api_and_two_workers_of_which_one_is_killed(
    request: pytest.FixtureRequest, start_server: StartServer, workers: list[Server], tmp_path: Path, database: str
) -> None:
    """The API alone validates nothing and runs nothing; its cancel reaches the worker."""
    url = {"BATCHYARD_STORE_URL": request.getfixturevalue("empty_postgres_url")} if database == "postgres" else {}
    api = start_server(settings=API | url)
    with api.sdk() as client:
        batch = create(client, [chat(str(number)) for number in range(1500)])
        time.sleep(0.3)
        assert client.batches.retrieve(batch.id).status == "validating"
        for number in range(2):
            worker = Server(api.data_dir, tmp_path / f"worker{number}.log", settings=PACED | url)
            workers.append(worker.start_worker())
        wait_for_progress(client, batch.id, lines=300)
        workers[0].kill()
        check_all(client, batch.id, 1500)
        stuck = create(client, [chat("a"), hanging("b")])
        wait_for_progress(client, stuck.id, lines=1)
        start = time.monotonic()
        client.batches.cancel(stuck.id)
        assert counts(wait(client, stuck.id, until={"cancelled"})) == (2, 1, 0)
        assert time.monotonic() - start < 2


@pytest.mark.postgres
def test_the_whole_service_on_postgres(start_server: StartServer, empty_postgres_url: str) -> None:
    server = start_server(settings={"BATCHYARD_STORE_URL": empty_postgres_url})
    with server.sdk() as client:
        names = ["grüße-日本.jsonl", "b.jsonl", "c.jsonl"]
        files = [upload(client, jsonl([chat("a")]), name=name) for name in names]
        assert [file.filename for file in client.files.list(limit=1, order="asc")] == names
        metadata = {"ünï": "🚀" * 512}
        batch = run(client, [chat("good"), refused("bad")], metadata=metadata)
        assert (batch.status, counts(batch), batch.metadata) == ("completed", (2, 1, 1), metadata)
        failed = run(client, [chat("a"), b"{", chat("a", "\u0000")])
        assert [item.code for item in (failed.errors and failed.errors.data) or []] == [
            "invalid_json_line",
            "duplicate_custom_id",
        ]
        assert client.files.delete(files[0].id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(files[0].id)
        with pytest.raises(openai.BadRequestError):
            create(client, [chat("a")], metadata={"a": "\x00"})
        with ThreadPoolExecutor(8) as pool:
            ended = list(pool.map(lambda n: run(client, [chat(f"{n}-{i}") for i in range(50)]), range(24)))
        assert [counts(batch) for batch in ended] == [(50, 50, 0)] * 24
        assert len({batch.id for batch in client.batches.list(limit=7)}) == 26
    server.kill()
    with start_server(data_dir=server.data_dir, settings=server.settings).sdk() as client:
        assert client.batches.retrieve(batch.id) == batch


@pytest.mark.postgres
def test_postgres_that_drops_every_connection_is_outlived(start_server: StartServer, empty_postgres_url: str) -> None:
    server = start_server(settings=PACED | {"BATCHYARD_STORE_URL": empty_postgres_url})
    with server.sdk(max_retries=4) as client:
        batch = create(client, [chat(str(number)) for number in range(1000)])
        for lines in (100, 300, 500):
            wait_for_progress(client, batch.id, lines=lines)
            asyncio.run(_drop_connections(empty_postgres_url))
        check_all(client, batch.id, 1000)


async def _drop_connections(url: str) -> None:
    connection = await asyncpg.connect(url.replace("postgresql+asyncpg", "postgresql"))
    try:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = $1"
        await connection.execute(others.replace("$1", "current_database()"))
    finally:
        await connection.close()
