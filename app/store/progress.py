"""How far a batch that runs has come, as rows that can be read already."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from sqlalchemy import select

from app.domain.chunk import ChunkState, Part
from app.domain.file import Segment
from app.store.chunks import part_from_row
from app.store.db import Read
from app.store.tables import chunks, parts, word

Kind = Literal["output", "error"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The sealed `segments` in front of the first chunk that is not sealed, in input order; and that chunk's `parts`.

    The bytes of the segments are the beginning of the file that the batch will end with.
    """

    segments: list[Segment]
    parts: list[Part]


async def of_batch(tx: Read, batch_id: str, *, kind: Kind) -> Progress:
    """Where the batch stands. Nothing for one without chunks: not validated yet, or ended."""
    mine = chunks.c.batch_id == batch_id
    open_ = select(chunks.c.id, chunks.c.position).where(mine, chunks.c.state != word(ChunkState.SEALED))
    first_open = (await tx.conn.execute(open_.order_by(chunks.c.position).limit(1))).one_or_none()
    key, size = chunks.c[f"{kind}_key"], chunks.c[f"{kind}_bytes"]
    rows = select(key, size).where(mine, key.is_not(None)).order_by(chunks.c.position)
    if first_open is not None:
        rows = rows.where(chunks.c.position < first_open.position)
    found = (await tx.conn.execute(rows)).all()
    starts = accumulate((size for _, size in found), initial=0)
    segments = [Segment(key, start, size) for (key, size), start in zip(found, starts, strict=False)]
    if first_open is None:
        return Progress(segments, [])
    its = select(parts).where(parts.c.chunk_id == first_open.id).order_by(parts.c.sequence)
    return Progress(segments, [part_from_row(row) for row in (await tx.conn.execute(its)).mappings()])
