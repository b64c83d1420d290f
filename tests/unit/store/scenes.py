"""Short ways to a database in the state a test starts from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from app.domain.batch import Batch
from app.domain.chunk import ChunkSpec, Claim, SealedSegment, Tally
from app.domain.file import File, Purpose
from app.domain.usage import Usage
from app.store import batches, chunks, files, finals, validations
from app.store.db import Database, Write

DAY = 86_400
LONG = 60.0  # seconds: outlasts a test
LAPSED = 0.0  # seconds: over as soon as it is given

_numbers = count()  # ids ascend as they are made, also within one millisecond


async def make_file(
    tx: Write,
    *,
    project_id: str = "team",
    purpose: Purpose = Purpose.BATCH,
    expires_after_seconds: int | None = DAY,
    segments: Sequence[tuple[str, int]] = (("blob", 100),),
) -> File:
    return await files.create(
        tx,
        id=f"file-{next(_numbers):022d}",
        project_id=project_id,
        purpose=purpose,
        filename="lines.jsonl",
        sha256=None,
        expires_after_seconds=expires_after_seconds,
        segments=segments,
    )


async def make_batch(
    tx: Write,
    *,
    project_id: str = "team",
    input_file_id: str = "file-input",
    window_seconds: int = DAY,
    output_expires_after_seconds: int | None = None,
) -> Batch:
    return await batches.create(
        tx,
        id=f"batch_{next(_numbers):032d}",
        project_id=project_id,
        endpoint="/v1/chat/completions",
        input_file_id=input_file_id,
        completion_window="24h",
        window_seconds=window_seconds,
        metadata=None,
        output_expires_after_seconds=output_expires_after_seconds,
    )


def cut(*lines: int) -> list[ChunkSpec]:
    """Chunks of so many lines, ten bytes a line."""
    specs, first = [], 0
    for position, many in enumerate(lines):
        specs.append(ChunkSpec(position, first * 10, (first + many) * 10, first + 1, many))
        first += many
    return specs


async def running(
    database: Database,
    *lines: int,
    project_id: str = "team",
    input_file_id: str = "file-input",
    window_seconds: int = DAY,
    output_expires_after_seconds: int | None = None,
) -> Batch:
    """A batch in progress with one chunk per entry of `lines`. No other batch may be waiting for its validation."""
    async with database.write() as tx:
        made = await make_batch(
            tx,
            project_id=project_id,
            input_file_id=input_file_id,
            window_seconds=window_seconds,
            output_expires_after_seconds=output_expires_after_seconds,
        )
        claim = await validations.claim(tx, lease_seconds=LONG)
        assert claim is not None
        assert claim.batch.id == made.id
        return await validations.accept(tx, claim, model=None, chunks=cut(*lines))


async def claimed(database: Database, *, lease_seconds: float = LONG) -> Claim:
    async with database.write() as tx:
        claim = await chunks.claim(tx, lease_seconds=lease_seconds)
    assert claim is not None
    return claim


def tokens(many: int) -> Usage:
    return Usage(many, 1, many * 2, 2, many * 3)


async def seal(database: Database, claim: Claim, added: Tally) -> list[str]:
    """Seal `claim` with segments that hold what its parts and `added` count; a row is ten bytes."""
    tally = sum((part.tally for part in claim.parts), added)
    failed = tally.failed + tally.unrun
    output = (
        SealedSegment(f"{claim.chunk_id}/output", tally.completed * 10, tally.completed) if tally.completed else None
    )
    error = SealedSegment(f"{claim.chunk_id}/error", failed * 10, failed) if failed else None
    async with database.write() as tx:
        return await chunks.seal(tx, claim.chunk_id, claim.token, output=output, error=error, added=added)


async def finish(database: Database, batch_id: str) -> Batch | None:
    async with database.write() as tx:
        await finals.begin(tx, batch_id)
    async with database.write() as tx:
        return await finals.finish(
            tx,
            batch_id,
            output_file_id=f"file-out-{batch_id}",
            error_file_id=f"file-err-{batch_id}",
            expires_after_seconds=30 * DAY,
        )


async def look(database: Database, batch_id: str, *, project_id: str = "team") -> Batch:
    async with database.read() as tx:
        batch = await batches.get(tx, batch_id, project_id=project_id)
    assert batch is not None
    return batch
