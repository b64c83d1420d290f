"""Files and their manifests. A deleted or expired file is gone for every reader at once; its bytes go in the sweep."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from sqlalchemy import ColumnElement, RowMapping, and_, func, insert, or_, select, update

from app.domain.batch import Batch
from app.domain.file import File, Purpose, Segment
from app.store.clock import seconds
from app.store.db import Read, Write
from app.store.page import Page, keyset
from app.store.tables import files
from app.store.tables import segments as manifest


def from_row(row: RowMapping) -> File:
    return File(
        id=row["id"],
        project_id=row["project_id"],
        purpose=Purpose(row["purpose"]),
        filename=row["filename"],
        bytes=row["bytes"],
        sha256=row["sha256"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )


def alive() -> ColumnElement[bool]:
    """Neither deleted nor expired at this moment."""
    return and_(files.c.deleted_at.is_(None), or_(files.c.expires_at.is_(None), files.c.expires_at > seconds()))


async def create(
    tx: Write,
    *,
    id: str,
    project_id: str,
    purpose: Purpose,
    filename: str,
    sha256: str | None,
    expires_after_seconds: int | None,
    segments: Sequence[tuple[str, int]],
) -> File:
    """A new file made of `segments` (blob key, bytes) in this order; they are durable already (`app.blobs.base`)."""
    now = int(await tx.now())
    file = File(
        id=id,
        project_id=project_id,
        purpose=purpose,
        filename=filename,
        bytes=sum(size for _, size in segments),
        sha256=sha256,
        created_at=now,
        expires_at=None if expires_after_seconds is None else now + expires_after_seconds,
    )
    await insert_file(tx, file)
    if segments:
        starts = accumulate((size for _, size in segments), initial=0)
        rows = [
            {"file_id": id, "position": position, "key": key, "start": start, "bytes": size}
            for position, ((key, size), start) in enumerate(zip(segments, starts, strict=False))
        ]
        await tx.conn.execute(insert(manifest), rows)
    return file


async def insert_file(tx: Write, file: File) -> None:
    """The row alone, without a manifest."""
    await tx.conn.execute(
        insert(files).values(
            id=file.id,
            project_id=file.project_id,
            purpose=file.purpose.value,
            filename=file.filename,
            bytes=file.bytes,
            sha256=file.sha256,
            created_at=file.created_at,
            expires_at=file.expires_at,
        )
    )


async def get(tx: Read, file_id: str, *, project_id: str) -> File | None:
    """None when unknown, deleted, expired, or of another project: nobody can tell which."""
    found = select(files).where(files.c.id == file_id, files.c.project_id == project_id, alive())
    row = (await tx.conn.execute(found)).mappings().one_or_none()
    return None if row is None else from_row(row)


async def input_of(tx: Read, batch: Batch) -> File | None:
    """The input of a batch that is not over: seen when the batch was created, and whatever became of it since."""
    if not batch.input_found:
        return None
    mine = (files.c.id == batch.input_file_id, files.c.project_id == batch.project_id, files.c.purged_at.is_(None))
    row = (await tx.conn.execute(select(files).where(*mine))).mappings().one_or_none()
    return None if row is None else from_row(row)


async def page(
    tx: Read, *, project_id: str, purpose: Purpose | None, after: str | None, limit: int, descending: bool
) -> Page[File]:
    """A project's files by creation. `after` may name a hidden file, while it has a row. Raises InvalidRequest."""
    rows = await keyset(tx.conn, files, project_id=project_id, after=after, limit=limit, descending=descending)
    rows = rows.where(alive())
    if purpose is not None:
        rows = rows.where(files.c.purpose == purpose.value)
    found = (await tx.conn.execute(rows)).mappings().all()
    return Page([from_row(row) for row in found[:limit]], has_more=len(found) > limit)


async def delete(tx: Write, file_id: str, *, project_id: str) -> bool:
    """Hide the file from now on. False when there was nothing to see."""
    mine = (files.c.id == file_id, files.c.project_id == project_id, alive())
    gone = update(files).where(*mine).values(deleted_at=seconds()).returning(files.c.id)
    return (await tx.conn.execute(gone)).one_or_none() is not None


async def segments(tx: Read, file_id: str) -> list[Segment]:
    """The manifest, also of a file that is hidden: a running batch reads its input to the end. Empty once purged."""
    rows = select(manifest.c.key, manifest.c.start, manifest.c.bytes).where(manifest.c.file_id == file_id)
    found = await tx.conn.execute(rows.order_by(manifest.c.position))
    return [Segment(key, start, size) for key, start, size in found]


async def stored_bytes(tx: Read, *, project_id: str) -> int:
    """The size of all files that the project can see."""
    total = select(func.coalesce(func.sum(files.c.bytes), 0)).where(files.c.project_id == project_id, alive())
    return int((await tx.conn.execute(total)).scalar_one())
