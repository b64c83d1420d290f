from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from app.blobs.local import LocalBlobs
from app.domain.batch import Batch, BatchStatus
from app.domain.file import File
from app.domain.result import unanswered
from app.errors import BlobMissing, Conflict, Internal, InvalidRequest, NotFound, StateConflict
from app.service import retries as module
from app.service.batches import BatchService
from app.service.files import FileService
from app.service.retries import Changes, RetryService
from app.settings import LimitSettings, RetentionSettings
from app.store.db import Database
from app.store.tables import batches as batch_rows
from tests.unit.service.scenes import content, stored, upload

SAME = Changes()


def line(custom_id: str, *, pad: int = 0) -> bytes:
    request = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": "m", "x": "y" * pad},
    }
    return json.dumps(request).encode() + b"\n"


@pytest.fixture
def retries(sqlite_database: Database, blobs: LocalBlobs) -> RetryService:
    return RetryService(database=sqlite_database, blobs=blobs, limits=LimitSettings(), retention=RetentionSettings())


class Scene:
    """A batch that has ended, with an error file of the named lines."""

    def __init__(self, database: Database, files: FileService, batches: BatchService) -> None:
        self.database = database
        self.files = files
        self.batches = batches

    async def ended(self, data: bytes, *failed: str | None, status: BatchStatus = BatchStatus.COMPLETED) -> Batch:
        given = await upload(self.files, data)
        batch = await self.batches.create(
            "team",
            endpoint="/v1/embeddings",
            input_file_id=given.id,
            completion_window="24h",
            metadata={"a": "b"},
            output_expires_after_seconds=7200,
        )
        rows = b"".join(unanswered(custom_id, code="x", message="y").row for custom_id in failed)
        error = await upload(self.files, rows) if failed else None
        async with self.database.write() as tx:
            values = {"status": status.value, "error_file_id": None if error is None else error.id}
            await tx.conn.execute(update(batch_rows).where(batch_rows.c.id == batch.id).values(values))
        return await self.batches.get("team", batch.id)

    async def input_of(self, batch: Batch) -> tuple[File, bytes]:
        file = await self.files.get("team", batch.input_file_id)
        return file, await content(self.files, file)


@pytest.fixture
def scene(sqlite_database: Database, files: FileService, batches: BatchService) -> Scene:
    return Scene(sqlite_database, files, batches)


async def test_new_batch_has_the_failed_lines_in_their_order(scene: Scene, retries: RetryService) -> None:
    lines = {f"é{number}": line(f"é{number}", pad=number % 7 * 40_000) for number in range(60)}
    failed = [custom_id for number, custom_id in enumerate(lines) if number % 3 == 0]
    batch = await scene.ended(b"\xef\xbb\xbf" + b"\n".join(lines.values()).rstrip(b"\n"), *reversed(failed))
    made = await retries.create("team", batch.id, changes=SAME)
    assert (made.status, made.endpoint, made.completion_window) == (BatchStatus.VALIDATING, "/v1/embeddings", "24h")
    assert made.metadata == {"a": "b", "retry_of": batch.id}
    assert made.output_expires_after_seconds == 7200
    file, data = await scene.input_of(made)
    assert data == b"".join(lines[custom_id] for custom_id in failed)
    assert file.filename == f"{batch.id}_retry.jsonl"
    assert file.sha256 is not None


async def test_changes_take_the_place_of_what_the_old_batch_had(
    scene: Scene, sqlite_database: Database, blobs: LocalBlobs
) -> None:
    batch = await scene.ended(line("a"), "a")
    retries = RetryService(
        database=sqlite_database,
        blobs=blobs,
        limits=LimitSettings(completion_windows=["any"]),
        retention=RetentionSettings(),
    )
    changes = Changes(completion_window="2h", metadata={"retry_of": "mine"}, output_expires_after_seconds=3600)
    made = await retries.create("team", batch.id, changes=changes)
    assert made.expires_at == made.created_at + 7200
    assert (made.metadata, made.output_expires_after_seconds) == ({"retry_of": "mine"}, 3600)


async def test_lines_whose_names_are_lost_are_not_retried(scene: Scene, retries: RetryService) -> None:
    batch = await scene.ended(line("a"), "a", None)
    with pytest.raises(Conflict, match="lost"):
        await retries.create("team", batch.id, changes=SAME)


@pytest.mark.parametrize("status", list(BatchStatus))
async def test_only_a_batch_that_ran_to_an_end_is_retried(
    scene: Scene, retries: RetryService, status: BatchStatus
) -> None:
    batch = await scene.ended(line("a"), "a", status=status)
    if status in (BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED):
        assert (await retries.create("team", batch.id, changes=SAME)).id != batch.id
        return
    with pytest.raises(StateConflict, match=f"with status '{status}'"):
        await retries.create("team", batch.id, changes=SAME)


async def test_batch_without_failed_lines_or_of_another_project(scene: Scene, retries: RetryService) -> None:
    batch = await scene.ended(line("a"))
    with pytest.raises(InvalidRequest, match="nothing to retry"):
        await retries.create("team", batch.id, changes=SAME)
    for project_id, batch_id in (("other", batch.id), ("team", "batch_unknown"), ("team", "ü")):
        with pytest.raises(NotFound):
            await retries.create(project_id, batch_id, changes=SAME)


@pytest.mark.parametrize("which", ["input_file_id", "error_file_id"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_file_that_is_deleted(
    scene: Scene,
    retries: RetryService,
    blobs: LocalBlobs,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    which: str,
    when: str,
) -> None:
    batch = await scene.ended(line("a"), "a")
    if when == "before":
        await scene.files.delete("team", getattr(batch, which))
    else:

        async def gone(key: str, **span: Any) -> Any:
            await scene.files.delete("team", getattr(batch, which))
            if key:
                raise BlobMissing("no blob")
            yield b""

        monkeypatch.setattr(blobs, "read", gone)
    with pytest.raises(Conflict) as caught:
        await retries.create("team", batch.id, changes=SAME)
    assert caught.value.code == "file_gone"
    assert len(stored(root)) == 2


async def test_bytes_that_are_lost_are_our_fault(scene: Scene, retries: RetryService, root: Path) -> None:
    batch = await scene.ended(line("a"), "a")
    for path in stored(root):
        path.unlink()
    with pytest.raises(BlobMissing):
        await retries.create("team", batch.id, changes=SAME)


async def test_error_row_without_its_line_leaves_nothing(scene: Scene, retries: RetryService, root: Path) -> None:
    batch = await scene.ended(line("a"), "a", "b")
    before = stored(root)
    with pytest.raises(Internal):
        await retries.create("team", batch.id, changes=SAME)
    assert stored(root) == before


async def test_retries_at_once_with_one_key_make_one_batch(scene: Scene, retries: RetryService, root: Path) -> None:
    batch = await scene.ended(line("a"), "a")
    before = len(stored(root))
    made = await asyncio.gather(
        *(retries.create("team", batch.id, changes=SAME, idempotency_key="k") for _ in range(6))
    )
    assert len({one.id for one in made}) == 1
    assert len(stored(root)) == before + 1
    with pytest.raises(Conflict):
        await retries.create("team", batch.id, changes=Changes(metadata={}), idempotency_key="k")


async def test_lines_are_looked_at_off_the_loop(
    scene: Scene, retries: RetryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await scene.ended(line("a", pad=1000) + line("b") * 1, "a")
    threads: set[int] = set()
    original = module._digest

    def recorded(custom_id: str) -> bytes:
        threads.add(threading.get_ident())
        return original(custom_id)

    monkeypatch.setattr(module, "_digest", recorded)
    await retries.create("team", batch.id, changes=SAME)
    assert threads
    assert threading.get_ident() not in threads
