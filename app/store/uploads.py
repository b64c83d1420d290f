"""Uploads and their parts (openai-contract 1.2). An Upload past its hour is `expired` for every reader at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import RowMapping, Select, delete, func, insert, select, update

from app.domain.file import Purpose
from app.domain.upload import UPLOAD_SECONDS, Upload, UploadPart, UploadStatus
from app.store.clock import seconds
from app.store.contract_tables import upload_parts, uploads
from app.store.db import Read, Write
from app.store.tables import word

_PLAIN = (
    "id",
    "project_id",
    "filename",
    "mime_type",
    "bytes",
    "created_at",
    "expires_at",
    "file_expires_after_seconds",
    "file_id",
    "completed_with",
)
_PENDING = uploads.c.status == word(UploadStatus.PENDING)


def from_row(row: RowMapping, *, lapsed: bool = False) -> Upload:
    status = UploadStatus(row["status"])
    if lapsed and status is UploadStatus.PENDING:
        status = UploadStatus.EXPIRED
    return Upload(**{name: row[name] for name in _PLAIN}, purpose=Purpose(row["purpose"]), status=status)


async def create(
    tx: Write,
    *,
    id: str,
    project_id: str,
    filename: str,
    purpose: Purpose,
    mime_type: str,
    bytes: int,
    file_expires_after_seconds: int | None,
) -> Upload:
    """A new pending Upload, for UPLOAD_SECONDS."""
    now = int(await tx.now())
    values = {
        "id": id,
        "project_id": project_id,
        "filename": filename,
        "purpose": purpose.value,
        "mime_type": mime_type,
        "bytes": bytes,
        "status": UploadStatus.PENDING.value,
        "created_at": now,
        "expires_at": now + UPLOAD_SECONDS,
        "file_expires_after_seconds": file_expires_after_seconds,
    }
    row = await tx.conn.execute(insert(uploads).values(values).returning(*uploads.c))
    return from_row(row.mappings().one())


def _one(upload_id: str, project_id: str) -> Select[Any]:
    lapsed = (uploads.c.expires_at <= seconds()).label("lapsed")
    return select(*uploads.c, lapsed).where(uploads.c.id == upload_id, uploads.c.project_id == project_id)


async def get(tx: Read, upload_id: str, *, project_id: str) -> Upload | None:
    """None when unknown or of another project."""
    row = (await tx.conn.execute(_one(upload_id, project_id))).mappings().one_or_none()
    return None if row is None else from_row(row, lapsed=row["lapsed"])


async def hold(tx: Write, upload_id: str, *, project_id: str) -> Upload | None:
    """`get`, and until `tx` ends nobody else adds a part to the Upload, completes or cancels it."""
    row = (await tx.conn.execute(_one(upload_id, project_id).with_for_update())).mappings().one_or_none()
    return None if row is None else from_row(row, lapsed=row["lapsed"])


async def add_part(tx: Write, upload_id: str, *, part_id: str, key: str, bytes: int) -> UploadPart:
    """A part whose bytes are durable in blob `key`. The caller holds the Upload."""
    part = UploadPart(part_id, upload_id, key, bytes, created_at=int(await tx.now()))
    values = {"id": part.id, "upload_id": upload_id, "key": key, "bytes": bytes, "created_at": part.created_at}
    await tx.conn.execute(insert(upload_parts).values(values))
    return part


async def parts(tx: Read, upload_id: str) -> dict[str, UploadPart]:
    """Every part of the Upload by its id. Empty once it has ended."""
    rows = await tx.conn.execute(select(upload_parts).where(upload_parts.c.upload_id == upload_id))
    found = (UploadPart(**row) for row in rows.mappings())
    return {part.id: part for part in found}


async def held(tx: Read, upload_id: str) -> tuple[int, int]:
    """Number and bytes of the parts."""
    total = func.coalesce(func.sum(upload_parts.c.bytes), 0)
    row = await tx.conn.execute(select(func.count(), total).where(upload_parts.c.upload_id == upload_id))
    number, size = row.one()
    return int(number), int(size)


async def complete(tx: Write, upload_id: str, *, file_id: str, completed_with: str) -> tuple[Upload, list[str]] | None:
    """The Upload is the file `file_id` from now on. Its parts' rows are gone; their blob keys come with it.

    None unless the Upload is pending. One whose hour passed while its bytes were checked is still completed.
    """
    return await _end(
        tx, upload_id, to=UploadStatus.COMPLETED, values={"file_id": file_id, "completed_with": completed_with}
    )


async def cancel(tx: Write, upload_id: str) -> tuple[Upload, list[str]] | None:
    """No file will come of it. Returns it and the blob keys of its parts; None unless it is pending."""
    return await _end(tx, upload_id, to=UploadStatus.CANCELLED, values={})


async def lapsed(tx: Read, *, grace_seconds: int, limit: int) -> list[str]:
    """Pending Uploads whose hour has been over for `grace_seconds`."""
    over = select(uploads.c.id).where(_PENDING, uploads.c.expires_at + grace_seconds <= seconds())
    return list((await tx.conn.execute(over.limit(limit))).scalars())


async def expire(tx: Write, upload_id: str) -> list[str]:
    """End an Upload whose hour is over; returns the blob keys of its parts."""
    ended = await _end(tx, upload_id, to=UploadStatus.EXPIRED, values={})
    return [] if ended is None else ended[1]


async def _end(
    tx: Write, upload_id: str, *, to: UploadStatus, values: Mapping[str, Any]
) -> tuple[Upload, list[str]] | None:
    ended = update(uploads).where(uploads.c.id == upload_id, _PENDING).values(status=to.value, **values)
    row = (await tx.conn.execute(ended.returning(*uploads.c))).mappings().one_or_none()
    if row is None:
        return None
    mine = upload_parts.c.upload_id == upload_id
    dropped = await tx.conn.execute(delete(upload_parts).where(mine).returning(upload_parts.c.key))
    return from_row(row), list(dropped.scalars())
