"""Deletes and expiry around a run: nothing that is needed goes, and in the end nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from tests.acceptance.batch import by_id, chat, create, refused, rows, wait, wait_for_progress
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server
from tests.acceptance.test_restart import PACED, check_complete, many
from tests.buckets import TestBucket

pytestmark = pytest.mark.timeout(120)

SWEEP = {"BATCHYARD_RETENTION_SWEEP_SECONDS": "0.1", "BATCHYARD_RETENTION_ORPHAN_GRACE_SECONDS": "1"}


def until(condition: Callable[[], bool], *, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


@pytest.fixture(params=["folder", "bucket"])
def kept_in(request: pytest.FixtureRequest) -> tuple[dict[str, str], Callable[[Server], list[str]]]:
    """Settings of a blob store, and what it holds; once a folder, once a bucket."""
    if request.param == "folder":
        return {}, lambda server: [str(path.relative_to(server.data_dir)) for path in server.blobs()]
    bucket: TestBucket = request.getfixturevalue("bucket")
    return dict(bucket.settings()), lambda server: [*bucket.objects(), *bucket.uploads()]


def of_kind(names: list[str], kind: str) -> int:
    return sum(f"{kind}/" in name for name in names)


def test_input_deleted_in_the_middle_is_kept_for_the_run_and_gone_after_it(
    start_server: StartServer, kept_in: tuple[dict[str, str], Callable[[Server], list[str]]]
) -> None:
    settings, held = kept_in
    server = start_server(settings=PACED | SWEEP | settings)
    with server.sdk() as client:
        batch = create(client, many())
        wait_for_progress(client, batch.id, lines=200)
        assert client.files.delete(batch.input_file_id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.content(batch.input_file_id)
        time.sleep(0.5)  # some sweeps
        assert of_kind(held(server), "uploads") == 1
        server.kill()  # whoever takes over reads the input again
    second = start_server(data_dir=server.data_dir, settings=PACED | SWEEP | settings)
    with second.sdk() as client:
        check_complete(client, wait(client, batch.id, until={"completed"}, seconds=60))
        until(lambda: held(second) != [] and of_kind(held(second), "uploads") == 0)
        until(lambda: of_kind(held(second), "parts") == 0)


def test_results_expire_or_are_deleted_with_their_bytes(
    start_server: StartServer, kept_in: tuple[dict[str, str], Callable[[Server], list[str]]]
) -> None:
    settings, held = kept_in
    server = start_server(settings=SWEEP | settings)
    with server.sdk() as client:
        lines = [chat(f"good-{number}") for number in range(50)] + [refused(f"bad-{number}") for number in range(50)]
        kept, gone = (
            wait(client, create(client, lines, extra_body={"output_expires_after": after}).id)
            for after in [{"anchor": "created_at", "seconds": 3600}] * 2
        )
        assert gone.output_file_id is not None
        assert gone.error_file_id is not None
        until(lambda: of_kind(held(server), "segments") == 4)
        client.files.delete(gone.error_file_id)
        with server.database() as database:
            moved = "UPDATE files SET expires_at = created_at - 1 WHERE id = ?"
            assert database.execute(moved, (gone.output_file_id,)).rowcount == 1
        until(lambda: of_kind(held(server), "segments") == 2)
        for file_id in (gone.output_file_id, gone.error_file_id):
            with pytest.raises(openai.NotFoundError):
                client.files.content(file_id)
        again = client.batches.retrieve(gone.id)
        assert (again.status, again.output_file_id) == ("completed", gone.output_file_id)
        assert len(by_id(rows(client, kept.output_file_id))) == len(by_id(rows(client, kept.error_file_id))) == 50
        for spent in (kept.output_file_id, kept.error_file_id, kept.input_file_id, gone.input_file_id):
            assert spent is not None
            client.files.delete(spent)
        until(lambda: held(server) == [])


def test_batch_of_a_file_that_expires_while_it_runs_ends_whole(start_server: StartServer) -> None:
    server = start_server(settings=PACED | SWEEP)
    with server.sdk() as client:
        batch = create(client, many())
        wait_for_progress(client, batch.id, lines=100)
        with server.database() as database:
            database.execute("UPDATE files SET expires_at = created_at - 1 WHERE id = ?", (batch.input_file_id,))
        check_complete(client, wait(client, batch.id, until={"completed"}, seconds=60))
        until(lambda: not any(_kind(server, path) == "uploads" for path in server.blobs()))


def _kind(server: Server, path: Path) -> str:
    return path.relative_to(server.data_dir / "blobs").parts[0]
