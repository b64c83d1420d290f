"""What the Uploads API means (openai-contract 1.2, 3.4): a file in parts. Every call is scoped by a project.

A finished file is a list of its parts' blobs: completing copies nothing, whatever the size.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from app.blobs.base import Blobs
from app.blobs.key import upload_key
from app.domain.file import File, Purpose
from app.domain.id import is_plausible, new_file_id, new_upload_id, new_upload_part_id
from app.domain.upload import Upload, UploadPart, UploadStatus, takes_mime_type
from app.errors import BlobMissing, InvalidRequest, NotFound, TooLarge, Unavailable
from app.failpoint import failpoint
from app.service import quotas
from app.service.blob_sink import HEAD_BYTES, BlobSink, receiving
from app.service.idempotency import digest_of, key_use, object_gone
from app.service.ownerless import naming
from app.service.purposes import check_filename, check_first_line, life_seconds
from app.settings import LimitSettings, RetentionSettings
from app.store import files, idempotency, uploads
from app.store.db import Database, Read, Write
from app.store.idempotency import KeyUse

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Completed:
    """A completed Upload. `file` is None when the file was deleted or has expired since."""

    upload: Upload
    file: File | None


class UploadService:
    """Uploads: create, add parts, complete, cancel."""

    def __init__(
        self, *, database: Database, blobs: Blobs, limits: LimitSettings, retention: RetentionSettings
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._limits = limits
        self._retention = retention

    @property
    def part_max_bytes(self) -> int:
        """The largest part."""
        return self._limits.upload_part_max_bytes

    async def create(
        self,
        project_id: str,
        *,
        filename: str,
        purpose: Purpose,
        bytes: int,
        mime_type: str,
        expires_after_seconds: int | None,
        idempotency_key: str | None = None,
    ) -> Upload:
        """A new pending Upload. Raises InvalidRequest for a size, name or type that its purpose forbids; Conflict."""
        check_filename(filename, purpose=purpose)
        self._check_size(bytes, purpose=purpose)
        if not takes_mime_type(purpose, mime_type):
            raise InvalidRequest(
                f"Invalid mime_type: '{mime_type[:128]}' is not supported for purpose '{purpose}'.",
                code="invalid_value",
                param="mime_type",
            )
        asked = {
            "filename": filename,
            "purpose": purpose.value,
            "bytes": bytes,
            "mime_type": mime_type,
            "expires_after_seconds": expires_after_seconds,
        }
        use = key_use(idempotency_key, "uploads.create", project_id=project_id, asked=asked, retention=self._retention)
        upload_id = new_upload_id()
        async with self._database.write() as tx:
            known = None if use is None else await idempotency.claim(tx, use, object_id=upload_id)
            if known is not None:
                return await _known(tx, known, project_id=project_id)
            await quotas.admit_bytes(tx, project_id, bytes)
            upload = await uploads.create(
                tx,
                id=upload_id,
                project_id=project_id,
                filename=filename,
                purpose=purpose,
                mime_type=mime_type,
                bytes=bytes,
                file_expires_after_seconds=expires_after_seconds,
            )
        log.info("upload_created", upload_id=upload.id, purpose=purpose.value, bytes=bytes)
        return upload

    def _check_size(self, size: int, *, purpose: Purpose) -> None:
        limits = self._limits
        batch = purpose is Purpose.BATCH
        maximum = min(limits.upload_max_bytes, limits.batch_file_max_bytes) if batch else limits.upload_max_bytes
        if size > maximum:
            raise InvalidRequest(
                f"Invalid 'bytes': integer above maximum value. Expected a value <= {maximum}, but got {size} instead.",
                code="integer_above_max_value",
                param="bytes",
            )

    @asynccontextmanager
    async def part(self, project_id: str, upload_id: str) -> AsyncGenerator[PartSink]:
        """A sink for one part. Unless its `finish` returned, leaving the context leaves nothing behind.

        Raises NotFound, and InvalidRequest for an Upload that takes no more parts, before any byte is read.
        """
        async with self._database.read() as tx:
            await self._check_room(tx, _pending(await self._get(tx, project_id, upload_id)), more_bytes=1)
        async with receiving(self._blobs, key=upload_key(), max_bytes=self.part_max_bytes) as blob:
            yield PartSink(self, project_id, upload_id, blob)

    async def _add(self, project_id: str, upload_id: str, blob: BlobSink) -> UploadPart:
        grace_seconds = self._retention.orphan_grace_seconds
        async with naming(self._database, self._blobs, key=blob.key, grace_seconds=grace_seconds) as state:
            await blob.finish()
            await failpoint("upload_part_stored")
            async with self._database.write() as tx:
                upload = _pending(await uploads.hold(tx, upload_id, project_id=project_id), upload_id)
                await self._check_room(tx, upload, more_bytes=blob.bytes)
                part = await uploads.add_part(
                    tx, upload_id, part_id=new_upload_part_id(), key=blob.key, bytes=blob.bytes
                )
                await state.in_time(tx)
            state.done = True
        return part

    async def _check_room(self, tx: Read, upload: Upload, *, more_bytes: int) -> None:
        """A part that is sent again may stand twice; beyond that, an Upload holds no more than it declared."""
        number, held_bytes = await uploads.held(tx, upload.id)
        if number >= self._limits.upload_max_parts:
            raise InvalidRequest(f"An Upload has at most {self._limits.upload_max_parts} parts.", param="data")
        if held_bytes + more_bytes > 2 * upload.bytes + self._limits.upload_part_max_bytes:
            raise TooLarge(
                f"The parts of this Upload hold {held_bytes} bytes already, and it declared {upload.bytes}.",
                param="data",
            )

    async def complete(
        self,
        project_id: str,
        upload_id: str,
        *,
        part_ids: Sequence[str],
        md5: str | None,
        idempotency_key: str | None = None,
    ) -> Completed:
        """Make a file of the parts, in the order of `part_ids`. The same call again gives the same answer.

        Raises NotFound; InvalidRequest for parts that do not make up the declared size, a wrong `md5` (hex), or a file
        that its purpose forbids: then the Upload is as it was, and may be completed another way; and Conflict.
        """
        md5 = None if md5 is None else md5.strip().lower()
        asked = {"upload_id": upload_id, "part_ids": list(part_ids), "md5": md5}
        use = key_use(
            idempotency_key, "uploads.complete", project_id=project_id, asked=asked, retention=self._retention
        )
        completed_with = digest_of(asked)
        async with self._database.read() as tx:
            upload = await self._get(tx, project_id, upload_id)
            if use is not None:
                await idempotency.earlier(tx, use)
            if upload.completed_with == completed_with:
                return await _completed(tx, upload)
            parts = _chosen(_pending(upload), await uploads.parts(tx, upload_id), part_ids)
        try:
            await self._check_content(upload, parts, md5=md5)
        except BlobMissing:
            # The parts of an Upload that ended meanwhile are gone; that is no fault.
            async with self._database.read() as tx:
                upload = await self._get(tx, project_id, upload_id)
                if upload.completed_with == completed_with:
                    return await _completed(tx, upload)
            _pending(upload)
            raise
        return await self._publish(upload, parts, completed_with=completed_with, use=use)

    async def _publish(
        self, upload: Upload, parts: Sequence[UploadPart], *, completed_with: str, use: KeyUse | None
    ) -> Completed:
        life = life_seconds(upload.purpose, asked=upload.file_expires_after_seconds, retention=self._retention)
        file_id = new_file_id()
        async with self._database.write() as tx:
            if use is not None:
                await idempotency.claim(tx, use, object_id=upload.id)
            ended = await uploads.complete(tx, upload.id, file_id=file_id, completed_with=completed_with)
            if ended is None:
                current = await self._get(tx, upload.project_id, upload.id)
                if current.completed_with != completed_with:
                    raise _closed(current)
                return await _completed(tx, current)  # the same call, at the same time
            await quotas.admit_bytes(tx, upload.project_id, upload.bytes)
            file = await files.create(
                tx,
                id=file_id,
                project_id=upload.project_id,
                purpose=upload.purpose,
                filename=upload.filename,
                sha256=None,
                expires_after_seconds=life,
                segments=[(part.key, part.bytes) for part in parts],
            )
        await failpoint("upload_completed")
        completed, keys = ended
        await self._delete(set(keys) - {part.key for part in parts})
        log.info("upload_completed", upload_id=upload.id, file_id=file_id, parts=len(parts), bytes=file.bytes)
        return Completed(completed, file)

    async def _check_content(self, upload: Upload, parts: Sequence[UploadPart], *, md5: str | None) -> None:
        if upload.purpose is Purpose.BATCH:
            head = bytearray()
            for part in parts:
                if len(head) >= HEAD_BYTES:
                    break
                head += await self._blobs.get(part.key, start=0, end=min(part.bytes, HEAD_BYTES - len(head)))
            await asyncio.to_thread(check_first_line, bytes(head), size_bytes=upload.bytes)
        if md5 is not None:
            found = await self._md5(parts)
            if found != md5:
                raise InvalidRequest(
                    f"The md5 of the uploaded bytes is {found}, not the given one.", code="invalid_value", param="md5"
                )

    async def _md5(self, parts: Iterable[UploadPart]) -> str:
        digest = hashlib.md5(usedforsecurity=False)
        for part in parts:
            async with aclosing(self._blobs.read(part.key)) as blocks:
                async for block in blocks:
                    await asyncio.to_thread(digest.update, block)
        return digest.hexdigest()

    async def cancel(self, project_id: str, upload_id: str) -> Upload:
        """No file comes of it, and its bytes go; asking again changes nothing. Raises NotFound, InvalidRequest."""
        async with self._database.write() as tx:
            upload = await self._get(tx, project_id, upload_id)
            if upload.status is UploadStatus.CANCELLED:
                return upload
            ended = None if upload.status is UploadStatus.EXPIRED else await uploads.cancel(tx, upload_id)
            if ended is None:
                raise _closed(await self._get(tx, project_id, upload_id))
        cancelled, keys = ended
        await self._delete(keys)
        log.info("upload_cancelled", upload_id=upload_id)
        return cancelled

    async def _get(self, tx: Read, project_id: str, upload_id: str) -> Upload:
        upload = await uploads.get(tx, upload_id, project_id=project_id) if is_plausible(upload_id) else None
        if upload is None:
            raise _unknown(upload_id)
        return upload

    async def _delete(self, keys: Iterable[str]) -> None:
        """Blobs that nothing names any more; what cannot be deleted now is left to the sweep."""
        with suppress(Unavailable):
            for key in keys:
                await self._blobs.delete(key)


class PartSink:
    """Takes the bytes of one part. Made by `UploadService.part`; not for use by several tasks at once."""

    def __init__(self, service: UploadService, project_id: str, upload_id: str, blob: BlobSink) -> None:
        self._service = service
        self._project_id = project_id
        self._upload_id = upload_id
        self._blob = blob

    async def write(self, data: bytes | memoryview) -> None:
        """Append. Raises TooLarge, StorageFull, Unavailable; nothing is kept then."""
        try:
            await self._blob.write(data)
        except TooLarge as exc:
            raise TooLarge(exc.message, param="data") from exc

    async def finish(self) -> UploadPart:
        """First the bytes are durable, then the part. Raises InvalidRequest when the Upload takes it no more."""
        if not self._blob.bytes:
            raise InvalidRequest("Invalid 'data': the part is empty.", code="invalid_value", param="data")
        return await self._service._add(self._project_id, self._upload_id, self._blob)


async def _known(tx: Write, upload_id: str, *, project_id: str) -> Upload:
    upload = await uploads.get(tx, upload_id, project_id=project_id)
    if upload is None:
        raise object_gone()
    return upload


async def _completed(tx: Read, upload: Upload) -> Completed:
    file = None
    if upload.file_id is not None:
        file = await files.get(tx, upload.file_id, project_id=upload.project_id)
    return Completed(upload, file)


def _pending(upload: Upload | None, upload_id: str = "") -> Upload:
    if upload is None:
        raise _unknown(upload_id)
    if upload.status is not UploadStatus.PENDING:
        raise _closed(upload)
    return upload


def _chosen(upload: Upload, parts: dict[str, UploadPart], part_ids: Sequence[str]) -> list[UploadPart]:
    seen: set[str] = set()
    for part_id in part_ids:
        if part_id not in parts:
            raise InvalidRequest(f"No part '{part_id[:128]}' in this Upload.", param="part_ids")
        if part_id in seen:
            raise InvalidRequest(f"The part '{part_id}' is listed twice.", param="part_ids")
        seen.add(part_id)
    size = sum(parts[part_id].bytes for part_id in part_ids)
    if size != upload.bytes:
        raise InvalidRequest(f"The listed parts hold {size} bytes, and the Upload declared {upload.bytes}.")
    return [parts[part_id] for part_id in part_ids]


def _unknown(upload_id: str) -> NotFound:
    return NotFound(f"No such Upload object: {upload_id[:128]}", param="id")


def _closed(upload: Upload) -> InvalidRequest:
    return InvalidRequest(f"This Upload has status '{upload.status}' and cannot be changed any more.")
