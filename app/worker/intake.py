"""Taking a claimed chunk in: its lines from the input file, and from its parts what has ended already."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import msgspec
import structlog

from app.blobs.base import Blobs
from app.domain.chunk import Claim, Part
from app.domain.file import Segment, overlapping
from app.domain.lines import LineCutter
from app.domain.part import PartDamaged
from app.domain.request import envelope_of
from app.domain.suspicion import CAUTIOUS_AFTER_TAKEOVERS, SUSPECT, Doubt
from app.errors import BlobMissing, Internal
from app.store import chunks, files, suspects
from app.store.db import Database
from app.worker.absence import Absences
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
        absences: Absences,
        part_max_bytes: int,
        poison_lines_max: int,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._parts = parts
        self._backlog = backlog
        self._absences = absences
        self._part_max_bytes = part_max_bytes
        self._poison_lines_max = poison_lines_max

    async def ledger(self, claim: Claim) -> Ledger:
        """The ledger of `claim`, closed already when its batch is, or when its lines cannot be known any more.

        A part that is lost for good is forgotten, and its lines are to be run again.
        Raises Unavailable and LeaseLost; raises BlobMissing, PartDamaged or Internal when the input or a part is not
        what was stored, and may be again.
        """
        claim, ended = await self._ended(claim)
        async with self._database.read() as tx:
            segments = await files.segments(tx, claim.input_file_id)
            known = await suspects.of_chunk(tx, claim.chunk_id)
            poisoned = 0 < self._poison_lines_max <= await suspects.guilty(tx, claim.batch_id)
        data = await self._input(claim, segments)
        if data is None:
            texts, order = [b""] * claim.spec.lines, list(range(claim.spec.lines))
        else:
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
        elif data is None:
            log.error("input_lost", **ledger.names(), lines=ledger.left)
            ledger.close("lost")
        elif poisoned:
            ledger.close("poisoned")
        for index in ledger.end_guilty():
            log.error("line_killed_engine", **ledger.names(), index=index, deaths=known[index].deaths)
        return ledger

    async def _ended(self, claim: Claim) -> tuple[Claim, set[int]]:
        """The claim with the parts that stand, and the lines whose rows are in them."""
        ended: set[int] = set()
        kept: list[Part] = []
        lost: list[Part] = []
        for part in claim.parts:
            look = partial(self._parts.ended, part)
            try:
                lines = await look()
            except (BlobMissing, PartDamaged):
                if not await self._absences.lost(part.key, look):
                    raise
                lost.append(part)
                continue
            if not ended.isdisjoint(lines) or max(lines, default=0) >= claim.spec.lines:
                raise PartDamaged(f"The part {part.key} holds lines that are not its own.")
            ended.update(lines)
            kept.append(part)
        if lost:
            keys = [part.key for part in lost]
            async with self._database.write() as tx:
                await chunks.drop_parts(tx, claim.chunk_id, claim.token, keys)
            again = sum(part.tally.lines for part in lost)
            log.error("parts_lost", batch_id=claim.batch_id, chunk_id=claim.chunk_id, parts=len(lost), lines=again)
            await self._parts.delete(keys)
        return replace(claim, parts=tuple(kept)), ended

    async def _input(self, claim: Claim, segments: list[Segment]) -> bytes | None:
        """The bytes of the chunk; None when some of them are lost for good."""
        pieces = []
        for segment, low, high in overlapping(segments, claim.spec.start, claim.spec.end):
            look = partial(self._blobs.get, segment.key, start=low, end=high)
            try:
                pieces.append(await look())
            except BlobMissing:
                if not await self._absences.lost(segment.key, look):
                    raise
                return None
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
        try:
            for text in texts:
                envelope_of(text)
            return texts, dispatch_order(texts, endpoint=claim.endpoint)
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise Internal(f"The input of {claim.chunk_id} is not what was validated.") from exc


def _doubts(claim: Claim, known: dict[int, Doubt]) -> Doubts:
    cautious = claim.takeovers >= CAUTIOUS_AFTER_TAKEOVERS
    if cautious:
        log.warning("chunk_cautious", batch_id=claim.batch_id, chunk_id=claim.chunk_id, takeovers=claim.takeovers)
        known = dict.fromkeys(range(claim.spec.lines), SUSPECT) | known
    return Doubts(known, cautious=cautious)
