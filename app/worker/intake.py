"""Taking a claimed chunk in: its lines from the input file, and from its parts what has ended already."""

from __future__ import annotations

import asyncio

from app.blobs.base import Blobs
from app.domain.chunk import Claim
from app.domain.file import overlapping
from app.errors import Internal
from app.store import files
from app.store.db import Database
from app.worker.ledger import Backlog, Ledger
from app.worker.lines import LineCutter
from app.worker.order import dispatch_order
from app.worker.parts import Parts
from app.worker.results import PartDamaged


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
        data = await self._input(claim)
        texts, order = await asyncio.to_thread(self._cut, claim, data)
        ledger = Ledger(
            claim,
            texts=texts,
            order=order,
            ended=ended,
            part_max_bytes=self._part_max_bytes,
            backlog=self._backlog,
        )
        if claim.cancelling or claim.expired:
            ledger.close("cancelled" if claim.cancelling else "expired")
        return ledger

    async def _input(self, claim: Claim) -> bytes:
        async with self._database.read() as tx:
            segments = await files.segments(tx, claim.input_file_id)
        pieces = [
            await self._blobs.get(segment.key, start=low, end=high)
            for segment, low, high in overlapping(segments, claim.spec.start, claim.spec.end)
        ]
        return b"".join(pieces)

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
