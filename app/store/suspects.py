"""What is known against lines that were in flight when an engine or a process died; it outlives the worker."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, func, insert, select, update

from app.domain.chunk import ChunkState
from app.domain.suspicion import GUILTY_AFTER_STRIKES, Doubt
from app.errors import LeaseLost
from app.store.db import Read, Write
from app.store.tables import chunks, suspects

_LINES_A_STATEMENT = 500


async def of_chunk(tx: Read, chunk_id: str) -> dict[int, Doubt]:
    """Lines of the chunk, by their index in it, of which something is known. Some may have ended since."""
    asked = select(suspects.c.line, suspects.c.deaths, suspects.c.strikes).where(suspects.c.chunk_id == chunk_id)
    return {line: Doubt(deaths, strikes) for line, deaths, strikes in await tx.conn.execute(asked)}


async def guilty(tx: Read, batch_id: str) -> int:
    """The number of the batch's lines that were found to kill the engine."""
    # From the suspects, which are few, to their chunks.
    mine = select(1).where(chunks.c.id == suspects.c.chunk_id, chunks.c.batch_id == batch_id).exists()
    found = select(func.count()).select_from(suspects).where(suspects.c.strikes >= GUILTY_AFTER_STRIKES, mine)
    return int((await tx.conn.execute(found)).scalar_one())


async def record(tx: Write, chunk_id: str, token: str, doubts: Mapping[int, Doubt]) -> None:
    """Replace what is known of these lines. Raises LeaseLost."""
    held = (chunks.c.id == chunk_id, chunks.c.lease_token == token, chunks.c.state == ChunkState.LEASED.value)
    # The token is set to itself, which takes the row's lock: a claim waits until this is committed.
    taken = update(chunks).where(*held).values(lease_token=token).returning(chunks.c.id)
    if (await tx.conn.execute(taken)).scalar_one_or_none() is None:
        raise LeaseLost(f"The lease of {chunk_id} was lost.")
    lines = sorted(doubts)
    for start in range(0, len(lines), _LINES_A_STATEMENT):
        some = lines[start : start + _LINES_A_STATEMENT]
        await tx.conn.execute(delete(suspects).where(suspects.c.chunk_id == chunk_id, suspects.c.line.in_(some)))
        rows = [
            {"chunk_id": chunk_id, "line": line, "deaths": doubts[line].deaths, "strikes": doubts[line].strikes}
            for line in some
        ]
        await tx.conn.execute(insert(suspects), rows)
