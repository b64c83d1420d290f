"""Results while a batch runs: an extension, not part of OpenAI's API (docs/extensions.md).

Rows come in input order, from the first line up to the first one that has not ended durably: byte for byte the
beginning of the file that the batch will end with. So an offset into them stays good across polls, restarts, and the
end of the batch.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from app.blobs.base import Blobs
from app.domain.batch import Batch
from app.domain.chunk import Part
from app.domain.file import Segment
from app.domain.id import is_plausible
from app.domain.part import COMPLETED, PartReader, Row
from app.errors import BlobMissing, InvalidRequest, NotFound
from app.service.batches import unknown_batch
from app.service.files import stream
from app.store import batches, files, progress
from app.store.db import Database, Read
from app.store.progress import Kind, Progress

#: So much of a chunk that still runs is given in one answer; the next one goes on from there.
TAIL_MAX_BYTES = 8 << 20
_TRIES = 5
_REMEMBERED_MAX = 100_000  # rows of parts whose place and length are remembered


@dataclass(frozen=True, slots=True)
class Results:
    """Bytes [offset, end) of the rows so far: of `segments`, then `tail`.

    `complete`: the batch has ended, and nothing follows `end`.
    """

    batch: Batch
    offset: int
    end: int
    complete: bool
    segments: list[Segment]
    tail: bytes
    blobs: Blobs

    async def stream(self) -> AsyncGenerator[bytes]:
        """The bytes in blocks. Raises BlobMissing, Unavailable."""
        async with aclosing(stream(self.blobs, self.segments, start=self.offset, end=self.end)) as blocks:
            async for block in blocks:
                yield block
        if self.tail:
            yield self.tail


@dataclass(frozen=True, slots=True)
class _Entry:
    """A row in a part: its line in the chunk, its kind and its bytes."""

    line: int
    kind: int
    bytes: int


class ResultService:
    """Reads what is durable of a batch that runs, and the files of one that has ended."""

    def __init__(self, *, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs
        self._contents: dict[str, tuple[_Entry, ...]] = {}  # part key → its rows; a part never changes
        self._remembered = 0

    async def so_far(self, project_id: str, batch_id: str, *, kind: Kind, offset: int) -> Results:
        """What follows byte `offset`; at most TAIL_MAX_BYTES of a chunk that still runs.

        Raises NotFound, also for a batch whose file was deleted or has expired; InvalidRequest for an offset that no
        answer can have named.
        """
        if not is_plausible(batch_id):
            raise unknown_batch(batch_id)
        tries, tail = 0, None
        while True:
            batch, stand = await self._stand(project_id, batch_id, kind)
            sealed = stand.segments[-1].start + stand.segments[-1].bytes if stand.segments else 0
            try:
                tail = await self._tail(stand.parts, kind, offset=max(0, offset - sealed))
                break
            except BlobMissing:
                # The chunk was sealed after the look at it, and its parts are gone. Each time it is another chunk.
                tries += 1
                if tries == _TRIES:
                    raise
        if tail is None:
            raise InvalidRequest("Invalid 'offset': the results have not come so far.", param="offset")
        end = max(offset, sealed) + len(tail)
        return Results(batch, offset, end, batch.is_terminal, stand.segments, tail, self._blobs)

    async def _stand(self, project_id: str, batch_id: str, kind: Kind) -> tuple[Batch, Progress]:
        async with self._database.read() as tx:
            batch = await _batch(tx, project_id, batch_id)
            stand = Progress([], [])
            if not batch.is_terminal:
                stand = await progress.of_batch(tx, batch_id, kind=kind)
                # The end of a batch takes its chunks away, and not every database shows one moment to all statements.
                batch = await _batch(tx, project_id, batch_id)
            if batch.is_terminal:
                stand = Progress(await _final(tx, batch, kind), [])
        return batch, stand

    async def _tail(self, parts: list[Part], kind: Kind, *, offset: int) -> bytes | None:
        """Rows of an open chunk from byte `offset` of them on; None when there are not so many. Raises BlobMissing."""
        place: dict[int, tuple[_Entry, Part]] = {}
        for part in parts:
            place.update({entry.line: (entry, part) for entry in await self._entries(part)})
        chosen: dict[int, Part] = {}
        begin, size, line = 0, 0, 0  # `begin`: where the first chosen row begins
        while line in place and size < TAIL_MAX_BYTES:
            entry, part = place[line]
            line += 1
            if (entry.kind == COMPLETED) != (kind == "output"):
                continue
            if not chosen and begin + entry.bytes <= offset:
                begin += entry.bytes
            else:
                chosen[entry.line] = part
                size += entry.bytes
        if begin + size < offset:
            return None
        return (await self._texts(chosen))[offset - begin :]

    async def _entries(self, part: Part) -> tuple[_Entry, ...]:
        known = self._contents.get(part.key)
        if known is None:
            known = tuple([_Entry(row.line, row.kind, len(row.text)) async for row in self._rows(part)])
            if self._remembered > _REMEMBERED_MAX:
                self._contents.clear()
                self._remembered = 0
            self._contents[part.key] = known
            self._remembered += len(known)
        return known

    async def _texts(self, chosen: dict[int, Part]) -> bytes:
        texts: dict[int, bytes] = {}
        for part in {part.key: part for part in chosen.values()}.values():
            async for row in self._rows(part):
                if row.line in chosen:
                    texts[row.line] = row.text
        return b"".join(texts[line] for line in chosen)

    async def _rows(self, part: Part) -> AsyncGenerator[Row]:
        async with aclosing(self._blobs.read(part.key)) as blocks:
            reader = PartReader(blocks, key=part.key)
            while rows := await reader.batch():
                for row in rows:
                    yield row


async def _batch(tx: Read, project_id: str, batch_id: str) -> Batch:
    batch = await batches.get(tx, batch_id, project_id=project_id)
    if batch is None:
        raise unknown_batch(batch_id)
    return batch


async def _final(tx: Read, batch: Batch, kind: Kind) -> list[Segment]:
    file_id = batch.output_file_id if kind == "output" else batch.error_file_id
    if file_id is None:
        return []
    if await files.get(tx, file_id, project_id=batch.project_id) is None:
        raise NotFound(f"No such File object: {file_id}", param="id")
    return await files.segments(tx, file_id)
