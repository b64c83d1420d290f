"""The failed lines of a batch once more, as a new batch: an extension to OpenAI's API (docs/extensions.md)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace

import msgspec
import structlog

from app.blobs.base import Blobs
from app.blobs.key import upload_key
from app.domain.batch import Batch, BatchStatus
from app.domain.file import File, Purpose, Segment
from app.domain.id import is_plausible, new_batch_id, new_file_id
from app.domain.lines import Line, LineCutter
from app.domain.request import stated_custom_id
from app.errors import BlobMissing, Conflict, Internal, InvalidRequest, StateConflict
from app.service import quotas
from app.service.batches import Order, allowed_window, known_batch, open_batch, unknown_batch
from app.service.blob_sink import BlobSink, receiving
from app.service.files import stream
from app.service.idempotency import key_use
from app.service.ownerless import naming
from app.settings import LimitSettings, RetentionSettings
from app.store import batches, files, idempotency
from app.store.db import Database, Read
from app.store.idempotency import KeyUse

log = structlog.get_logger()

_RETRIABLE = (BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)
_ROW_MAX_BYTES = 1 << 30  # a row is read whole; ours are bounded by what a model answers
_METADATA_MAX = 16
_ORIGIN = "retry_of"


@dataclass(frozen=True, slots=True)
class Changes:
    """What the new batch has otherwise than the old one; None: the same."""

    completion_window: str | None = None
    metadata: Mapping[str, str] | None = None
    output_expires_after_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class _Source:
    batch: Batch
    input: File
    input_segments: list[Segment]
    error: File
    error_segments: list[Segment]


class _Row(msgspec.Struct):
    custom_id: str | None  # None: lost with its input


_row = msgspec.json.Decoder(_Row)


class RetryService:
    """Makes the new input file and the new batch. Memory: a block, a line, and 16 bytes for each failed line."""

    def __init__(
        self,
        *,
        database: Database,
        blobs: Blobs,
        limits: LimitSettings,
        retention: RetentionSettings,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called after a create: it may wake a worker of the same process."""
        self._database = database
        self._blobs = blobs
        self._limits = limits
        self._retention = retention
        self._changed = changed

    async def create(
        self, project_id: str, batch_id: str, *, changes: Changes, idempotency_key: str | None = None
    ) -> Batch:
        """A new batch whose input are the lines that stand in the error file of `batch_id`, as they were written.

        Raises NotFound; Conflict for a batch that has not run to an end, or whose files are gone; InvalidRequest when
        no line failed; and what creating a file and a batch raises.
        """
        asked = {
            "batch_id": batch_id,
            "completion_window": changes.completion_window,
            "metadata": None if changes.metadata is None else dict(changes.metadata),
            "output_expires_after_seconds": changes.output_expires_after_seconds,
        }
        use = key_use(idempotency_key, "batches.retry", project_id=project_id, asked=asked, retention=self._retention)
        if not is_plausible(batch_id):
            raise unknown_batch(batch_id)
        async with self._database.read() as tx:
            known = None if use is None else await idempotency.earlier(tx, use)
            if known is not None:
                return await known_batch(tx, known, project_id=project_id)
            source = await _source(tx, project_id, batch_id)
        order = self._order(source.batch, changes)
        try:
            return await self._retry(source, order, use)
        except BlobMissing:
            async with self._database.read() as tx:
                await _source(tx, project_id, batch_id)  # its files were deleted meanwhile: that is no fault of ours
            raise

    def _order(self, batch: Batch, changes: Changes) -> Order:
        window = changes.completion_window or batch.completion_window
        metadata = dict((batch.metadata if changes.metadata is None else changes.metadata) or {})
        if len(metadata) < _METADATA_MAX:
            metadata.setdefault(_ORIGIN, batch.id)
        expiry = changes.output_expires_after_seconds
        return Order(
            endpoint=batch.endpoint,
            input_file_id="",
            completion_window=window,
            window_seconds=allowed_window(window, limits=self._limits),
            metadata=metadata,
            output_expires_after_seconds=batch.output_expires_after_seconds if expiry is None else expiry,
        )

    async def _retry(self, source: _Source, order: Order, use: KeyUse | None) -> Batch:
        failed = _Failed()
        await _over(stream(self._blobs, source.error_segments, end=source.error.bytes), failed.note, _ROW_MAX_BYTES)
        async with receiving(self._blobs, key=upload_key(), max_bytes=source.input.bytes + 1) as blob:
            chosen = await self._copy(source, failed, blob)
            if chosen != len(failed.digests):
                raise Internal(f"{source.batch.id} has {len(failed.digests)} failed lines, and {chosen} in its input.")
            return await self._publish(source, order, use, blob)
        raise AssertionError("unreachable: the sink's context swallows no exception of ours")

    async def _copy(self, source: _Source, failed: _Failed, blob: BlobSink) -> int:
        chosen = 0
        cutter = LineCutter(line_max_bytes=_ROW_MAX_BYTES)
        async with aclosing(stream(self._blobs, source.input_segments, end=source.input.bytes)) as blocks:
            async for block in blocks:
                lines = await asyncio.to_thread(failed.chosen, cutter, block)
                chosen += len(lines)
                await blob.write(b"".join(lines))
        last = await asyncio.to_thread(failed.chosen, cutter, None)
        await blob.write(b"".join(last))
        return chosen + len(last)

    async def _publish(self, source: _Source, order: Order, use: KeyUse | None, blob: BlobSink) -> Batch:
        batch_id, file_id, project_id = new_batch_id(), new_file_id(), source.batch.project_id
        grace_seconds = self._retention.orphan_grace_seconds
        async with naming(self._database, self._blobs, key=blob.key, grace_seconds=grace_seconds) as state:
            await blob.finish()
            async with self._database.write() as tx:
                known = None if use is None else await idempotency.claim(tx, use, object_id=batch_id)
                if known is not None:
                    return await known_batch(tx, known, project_id=project_id)
                await quotas.admit_bytes(tx, project_id, blob.bytes)
                await files.create(
                    tx,
                    id=file_id,
                    project_id=project_id,
                    purpose=Purpose.BATCH,
                    filename=f"{source.batch.id}_retry.jsonl",
                    sha256=blob.sha256,
                    expires_after_seconds=self._retention.batch_file_seconds,
                    segments=[(blob.key, blob.bytes)],
                )
                batch = await open_batch(tx, batch_id, project_id, replace(order, input_file_id=file_id))
                await state.in_time(tx)
            state.done = True
        self._changed()
        log.info("batch_retried", batch_id=batch.id, retry_of=source.batch.id, input_file_id=file_id)
        return batch


class _Failed:
    """The custom_ids of failed lines, 16 bytes each. Its methods are for a thread."""

    def __init__(self) -> None:
        self.digests: set[bytes] = set()

    def note(self, lines: list[Line]) -> None:
        """Rows of an error file."""
        for line in lines:
            if line.text is not None:
                custom_id = _row.decode(line.text).custom_id
                if custom_id is None:
                    raise Conflict("The input of this batch was lost: its failed requests are not known any more.")
                self.digests.add(_digest(custom_id))

    def chosen(self, cutter: LineCutter, block: bytes | None) -> list[bytes]:
        """The failed ones of the input lines that end in `block`; None: the file has ended."""
        lines = cutter.finish() if block is None else cutter.feed(block)
        found = []
        for line in lines:
            custom_id = None if line.text is None else stated_custom_id(line.text)
            if line.text is not None and custom_id is not None and _digest(custom_id) in self.digests:
                found.append(line.text + b"\n")
        return found


async def _over(blocks: AsyncGenerator[bytes], take: Callable[[list[Line]], None], line_max_bytes: int) -> None:
    cutter = LineCutter(line_max_bytes=line_max_bytes)

    def feed(block: bytes) -> None:
        take(cutter.feed(block))

    async with aclosing(blocks):
        async for block in blocks:
            await asyncio.to_thread(feed, block)
    take(cutter.finish())


def _digest(custom_id: str) -> bytes:
    return hashlib.blake2b(custom_id.encode(), digest_size=16).digest()


async def _source(tx: Read, project_id: str, batch_id: str) -> _Source:
    batch = await batches.get(tx, batch_id, project_id=project_id)
    if batch is None:
        raise unknown_batch(batch_id)
    if batch.status not in _RETRIABLE:
        raise StateConflict(f"Cannot retry a batch with status '{batch.status}'.")
    if batch.error_file_id is None:
        raise InvalidRequest(f"No line of the batch '{batch.id}' failed: there is nothing to retry.")
    error = await files.get(tx, batch.error_file_id, project_id=project_id)
    input_ = await files.get(tx, batch.input_file_id, project_id=project_id)
    if error is None or input_ is None:
        gone = "error" if error is None else "input"
        raise Conflict(f"The {gone} file of the batch '{batch.id}' was deleted or has expired.", code="file_gone")
    return _Source(batch, input_, await files.segments(tx, input_.id), error, await files.segments(tx, error.id))
