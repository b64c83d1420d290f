"""Disks that are full, read-only or lose files: the server waits and says why, and goes on by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from tests.acceptance.batch import chat, counts, create, jsonl, rows, run, upload, wait, wait_for_progress
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server
from tests.acceptance.test_restart import LINES, PACED, check_complete, many, ran
from tests.acceptance.wire import refusal

pytestmark = pytest.mark.timeout(150)

SWEEP = {"BATCHYARD_RETENTION_SWEEP_SECONDS": "0.3", "BATCHYARD_RETENTION_ORPHAN_GRACE_SECONDS": "2"}
#: Everything is in parts until the end.
ONE_CHUNK = PACED | {"BATCHYARD_WORKER_CHUNK_MAX_LINES": "2000"}
SET_ASIDE = frozenset({"chunk_set_aside"})
HASTY = {"BATCHYARD_WORKER_LOST_AFTER_SECONDS": "0.6", "BATCHYARD_WORKER_GONE_AFTER_SECONDS": "1.2"}
LOST = SET_ASIDE | {"blob_lost", "blobs_missing", "input_missing", "input_lost", "parts_lost"}


def until(condition: Callable[[], bool], *, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


@dataclass(frozen=True)
class Disk:
    """A file system of its own, small enough to be filled."""

    path: Path

    def fill(self) -> None:
        """Leave no room at all."""
        with (self.path / "filler").open("wb", buffering=0) as file:
            for block in (1 << 16, 1 << 9, 1):
                try:
                    while True:
                        file.write(bytes(block))
                except OSError:
                    continue

    def free(self) -> None:
        (self.path / "filler").unlink()

    def remount(self, mode: str) -> None:
        """`ro` or `rw`; for a moment somebody may be writing."""
        deadline = time.monotonic() + 10
        while _run("mount", "-o", f"remount,{mode}", str(self.path)).returncode:
            assert time.monotonic() < deadline, "it cannot be remounted"
            time.sleep(0.01)


def _run(*command: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, check=False)


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Disk]:
    """12 MiB in memory; mounting takes root."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small file system is mounted for this, which only root may do")
    path = tmp_path / "disk"
    path.mkdir()
    mounted = _run("mount", "-t", "tmpfs", "-o", "size=12m,mode=0700", "tmpfs", str(path))
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield Disk(path)
    _run("umount", "-l", str(path))


def place(disk: Disk, kind: str) -> dict[str, str]:
    """Settings that put the blobs, the database or both on `disk`."""
    settings = {"BATCHYARD_BLOBS_MIN_FREE_BYTES": "65536"}
    if kind != "database":
        settings["BATCHYARD_BLOBS_PATH"] = str(disk.path / "blobs")
    if kind != "blobs":
        settings["BATCHYARD_STORE_URL"] = f"sqlite+aiosqlite:///{disk.path}/batchyard.db"
    return settings


def check_refused(server: Server, status: int = 503) -> None:
    with server.http() as http:
        reply = http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", jsonl([chat("a")] * 500))})
        refusal(reply, status, type="server_error")
        assert 1 <= int(reply.headers["retry-after"]) <= 120


@pytest.mark.parametrize("kind", ["blobs", "database", "both"])
def test_full_disk_holds_the_batch_up_and_freeing_it_lets_it_go_on(
    start_server: StartServer, disk: Disk, kind: str
) -> None:
    server = start_server(settings=PACED | place(disk, kind))
    with server.sdk() as client, server.http() as http:
        batch = create(client, many())
        wait_for_progress(client, batch.id, lines=300)
        disk.fill()
        check_refused(server)
        until(lambda: any(event["event"] == "waiting_for_storage" for event in server.events()))
        reasons = {event["reason"] for event in server.events() if event["event"] == "waiting_for_storage"}
        assert any("no room left" in reason for reason in reasons), reasons
        if kind != "database":
            until(lambda: http.get("/ready").status_code == 503)
            assert "room" in http.get("/ready").json()["checks"]["blobs"]
        assert http.get("/health").status_code == 200
        time.sleep(2)
        held = client.batches.retrieve(batch.id)
        assert held.status == "in_progress"
        assert counts(held)[1] < LINES
        disk.free()
        check_complete(client, wait(client, batch.id, until={"completed"}, seconds=60))
        until(lambda: http.get("/ready").status_code == 200)
        assert ran(server) == LINES, "what waited in memory was saved, not run again"
        assert run(client, [chat("after")]).status == "completed"


def test_kill_on_a_full_disk_loses_nothing(start_server: StartServer, disk: Disk) -> None:
    settings = PACED | place(disk, "both")
    first = start_server(settings=settings)
    with first.sdk() as client:
        batch = create(client, many())
        wait_for_progress(client, batch.id, lines=300)
        disk.fill()
        until(lambda: any(event["event"] == "waiting_for_storage" for event in first.events()))
        kept = counts(client.batches.retrieve(batch.id))[1]
        first.kill()
    disk.free()
    second = start_server(data_dir=first.data_dir, settings=settings | SWEEP)
    with second.sdk() as client:
        assert counts(client.batches.retrieve(batch.id))[1] >= kept
        check_complete(client, wait(client, batch.id, until={"completed"}, seconds=60))
        chunks = -(-LINES // 300)
        until(lambda: sum(path.is_file() for path in (disk.path / "blobs").rglob("*")) == 1 + chunks)


def test_room_is_made_by_deleting_files_over_the_api(start_server: StartServer, disk: Disk) -> None:
    """The blobs' disk is full; the database has room."""
    server = start_server(settings=PACED | SWEEP | place(disk, "blobs"))
    with server.sdk() as client:
        old = upload(client, b"{}\n" * (2 << 20))
        batch = create(client, many())
        wait_for_progress(client, batch.id, lines=300)
        disk.fill()
        until(lambda: any(event["event"] == "waiting_for_storage" for event in server.events()))
        client.files.delete(old.id)
        check_complete(client, wait(client, batch.id, until={"completed"}, seconds=60))


def test_read_only_disk_holds_the_batch_up(start_server: StartServer, disk: Disk) -> None:
    server = start_server(settings=PACED | place(disk, "blobs"))
    with server.sdk() as client, server.http() as http:
        batch = create(client, many())
        wait_for_progress(client, batch.id, lines=300)
        disk.remount("ro")
        until(lambda: http.get("/ready").status_code == 503)
        assert "not usable" in http.get("/ready").json()["checks"]["blobs"]
        check_refused(server)
        assert client.files.content(batch.input_file_id).content == jsonl(many()), "what stands can be read"
        time.sleep(1)
        assert client.batches.retrieve(batch.id).status == "in_progress"
        disk.remount("rw")
        check_complete(client, wait(client, batch.id, until={"completed"}, seconds=60))
        assert ran(server) == LINES


def files_of(server: Server, kind: str) -> list[Path]:
    return [path for path in server.blobs() if path.relative_to(server.data_dir / "blobs").parts[0] == kind]


@pytest.mark.parametrize("kind", ["parts", "uploads"])
def test_file_removed_under_a_running_batch_is_told_and_waited_for(
    start_server: StartServer, tmp_path: Path, kind: str
) -> None:
    first = start_server(settings=ONE_CHUNK)
    with first.sdk() as client:
        batch = create(client, many())
        wait_for_progress(client, batch.id, lines=900)
    first.kill()
    aside = tmp_path / "aside"
    lost = files_of(first, kind)
    assert lost
    for path in lost:
        kept = aside / path.relative_to(first.data_dir)
        kept.parent.mkdir(parents=True, exist_ok=True)
        path.rename(kept)
    second = start_server(data_dir=first.data_dir, settings=ONE_CHUNK, expected_errors=SET_ASIDE)
    with second.sdk() as client:
        until(lambda: any(event["event"] == "chunk_set_aside" for event in second.events()))
        [reason, *_] = [event["reason"] for event in second.events() if event["event"] == "chunk_set_aside"]
        assert f"no blob {kind}/" in reason
        assert client.batches.retrieve(batch.id).status == "in_progress"
        assert run(client, [chat("other")]).status == "completed", "other batches go on"
        shutil.copytree(aside, second.data_dir, dirs_exist_ok=True)
        check_complete(client, wait(client, batch.id, until={"completed"}, seconds=100))


@pytest.mark.parametrize("kind", ["parts", "uploads"])
def test_file_lost_for_good_does_not_keep_its_batch_waiting(start_server: StartServer, kind: str) -> None:
    """Lines whose answers are lost run again; without their input they end with a row that says so."""
    lines = [chat(str(number), f"say {number}") for number in range(400)]
    first = start_server(settings=ONE_CHUNK)
    with first.sdk() as client:
        batch = create(client, lines)
        wait_for_progress(client, batch.id, lines=150)
        first.kill()
    kept = sum(path.read_bytes().count(b'"status_code":200') for path in files_of(first, "parts"))
    for path in files_of(first, kind):
        path.unlink()
    second = start_server(data_dir=first.data_dir, settings=ONE_CHUNK | HASTY, expected_errors=LOST)
    with second.sdk() as client:
        ended = wait(client, batch.id, until={"completed"}, seconds=60)
        answered, failed = rows(client, ended.output_file_id), rows(client, ended.error_file_id)
        assert counts(ended) == (400, len(answered), len(failed))
        if kind == "parts":
            assert len(answered) == 400
        else:
            assert 150 <= len(answered) <= kept
            assert {(row["custom_id"], row["error"]["code"]) for row in failed} == {(None, "input_lost")}
        assert len({row["custom_id"] for row in answered}) == len(answered)
        assert run(client, [chat("after")]).status == "completed"


def test_input_removed_before_validation_fails_the_batch_with_a_reason(start_server: StartServer) -> None:
    server = start_server(settings=HASTY, expected_errors=LOST)
    with server.sdk() as client:
        file = upload(client, jsonl([chat("a")]))
        for path in files_of(server, "uploads"):
            path.unlink()
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        ended = wait(client, batch.id, until={"failed"})
        assert ended.errors is not None
        assert ended.errors.data is not None
        assert "not available" in (ended.errors.data[0].message or "")


@pytest.mark.parametrize(
    ("which", "error"), [("first", openai.InternalServerError), ("last", openai.APIConnectionError)]
)
def test_segment_removed_is_an_error_of_the_download_and_not_a_short_file(
    start_server: StartServer, which: str, error: type[openai.APIError]
) -> None:
    server = start_server(settings={"BATCHYARD_WORKER_CHUNK_MAX_LINES": "50"})
    with server.sdk() as client:
        batch = run(client, [chat(str(number), "word " * 20_000) for number in range(100)])
        assert batch.output_file_id is not None
        whole = client.files.content(batch.output_file_id).content
        [first] = [path for path in files_of(server, "segments") if whole.startswith(path.read_bytes())]
        [last] = [path for path in files_of(server, "segments") if path != first]
        (first if which == "first" else last).unlink()
        with pytest.raises(error):
            client.files.content(batch.output_file_id)
        assert run(client, [chat("after")]).status == "completed"
    assert "no blob segments/" in server.log()
    server.kill()  # its log holds what this test provoked
