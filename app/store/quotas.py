"""What a project uses, counted inside the transaction that is about to use more."""

from __future__ import annotations

from sqlalchemy import BigInteger, cast, func, select

from app.domain.batch import TERMINAL, BatchStatus
from app.domain.quota import Use
from app.domain.upload import UploadStatus
from app.store import files
from app.store.contract_tables import uploads
from app.store.db import Read, Write
from app.store.tables import batches, word, words

_OPEN = batches.c.status.in_(words(set(BatchStatus) - TERMINAL))


async def lock(tx: Write, project_id: str) -> None:
    """Until this transaction ends, nobody else counts for this project: what is counted stays true.

    SQLite has one writer at a time anyway.
    """
    if tx.conn.dialect.name == "postgresql":
        await tx.conn.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(project_id, 0))))


async def use(tx: Read, project_id: str, *, stored: bool = True) -> Use:
    """Everything but the calls of the API. What pending Uploads have declared counts as stored.

    `stored` False leaves the bytes uncounted, because a project may have many files.
    """
    waiting = batches.c.total - batches.c.completed - batches.c.failed
    sums = (
        func.count(),
        cast(func.coalesce(func.sum(waiting), 0), BigInteger),
        cast(func.coalesce(func.sum(batches.c.enqueued_tokens), 0), BigInteger),
    )
    found = await tx.conn.execute(select(*sums).where(_OPEN, batches.c.project_id == project_id))
    open_batches, queued_requests, enqueued_tokens = (int(number) for number in found.one())
    stored_bytes = 0
    if stored:
        held = select(func.coalesce(func.sum(uploads.c.bytes), 0))
        held = held.where(uploads.c.project_id == project_id, uploads.c.status == word(UploadStatus.PENDING))
        stored_bytes = await files.stored_bytes(tx, project_id=project_id) + (await tx.conn.execute(held)).scalar_one()
    return Use(
        open_batches=open_batches,
        queued_requests=queued_requests,
        enqueued_tokens=enqueued_tokens,
        stored_bytes=int(stored_bytes),
    )
