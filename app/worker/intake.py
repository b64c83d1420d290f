"""Taking a claimed chunk in: its lines from the input file, and from its parts what has ended already."""

from __future__ import annotations

import asyncio

import structlog

from app.blobs.base import Blobs
from app.domain.chunk import Claim
from app.domain.file import overlapping
from app.domain.lines import LineCutter
from app.domain.part import PartDamaged
from app.domain.suspicion import CAUTIOUS_AFTER_TAKEOVERS, SUSPECT, Doubt
from app.errors import Internal
from app.store import files, suspects
from app.store.db import Database
from app.worker.doubts import Doubts
from app.worker.ledger import Backlog, Ledger
from app.worker.order import dispatch_order
from app.worker.parts import Parts

log = structlog.get_logger()


class Intake:
    """Makes ledgers of claims."""

    def __init__(
        self,
        *,
        database: Database,
        blobs: Blobs,
        parts: Parts,
        backlog: Backlog,
        part_max_bytes: int,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._parts = parts
        self._backlog = backlog
        self._part_max_bytes = part_max_bytes

    async def ledger(self, claim: Claim) -> Ledger:
        """The ledger of `claim`, closed already when its batch is.

        Raises Unavailable; raises BlobMissing, PartDamaged or Internal when the input or a part is not what was stored.
        """
        ended: set[int] = set()
        for part in claim.parts:
            lines = await self._parts.ended(part)
            if not ended.isdisjoint(lines) or max(lines, default=0) >= claim.spec.lines:
                raise PartDamaged(f"The part {part.key} holds lines that are not its own.")
            ended.update(lines)
        data, known = await self._input(claim)
        texts, order = await asyncio.to_thread(self._cut, claim, data)
        ledger = Ledger(
            claim,
            texts=texts,
            order=order,
            ended=ended,
            part_max_bytes=self._part_max_bytes,
            backlog=self._backlog,
            doubts=_doubts(claim, known),
        )
        if claim.cancelling or claim.expired:
            ledger.close("cancelled" if claim.cancelling else "expired")
        for index in ledger.end_guilty():
            log.error("line_killed_engine", **ledger.names(), index=index, deaths=known[index].deaths)
        return ledger

    async def _input(self, claim: Claim) -> tuple[bytes, dict[int, Doubt]]:
        async with self._database.read() as tx:
            segments = await files.segments(tx, claim.input_file_id)
            known = await suspects.of_chunk(tx, claim.chunk_id)
        pieces = [
            await self._blobs.get(segment.key, start=low, end=high)
            for segment, low, high in overlapping(segments, claim.spec.start, claim.spec.end)
        ]
        return b"".join(pieces), known

    @staticmethod
    def _cut(claim: Claim, data: bytes) -> tuple[list[bytes], list[int]]:
        spec = claim.spec
        # A chunk begins behind the byte order mark, so none is looked for here, also not at offset 0.
        # Nor is a length checked again: validation did, perhaps under another limit.
        cutter = LineCutter(line_max_bytes=len(data), number=spec.first_line, offset=max(1, spec.start))
        texts = [line.text for line in (*cutter.feed(data), *cutter.finish()) if line.text is not None]
        if len(texts) != spec.lines:
            raise Internal(f"{claim.chunk_id} should hold {spec.lines} lines; its input now holds {len(texts)}.")
        return texts, dispatch_order(texts, endpoint=claim.endpoint)


def _doubts(claim: Claim, known: dict[int, Doubt]) -> Doubts:
    cautious = claim.takeovers >= CAUTIOUS_AFTER_TAKEOVERS
    if cautious:
        log.warning("chunk_cautious", batch_id=claim.batch_id, chunk_id=claim.chunk_id, takeovers=claim.takeovers)
        known = dict.fromkeys(range(claim.spec.lines), SUSPECT) | known
    return Doubts(known, cautious=cautious)
