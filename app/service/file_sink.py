"""One uploaded file on its way in: checked while it arrives, then made visible."""

from __future__ import annotations

import asyncio

from app.blobs.base import Blobs
from app.domain.file import File, Purpose
from app.domain.id import new_file_id
from app.failpoint import failpoint
from app.service import quotas
from app.service.blob_sink import BlobSink
from app.service.idempotency import key_use, object_gone
from app.service.ownerless import Naming, naming
from app.service.purposes import check_filename, check_first_line, life_seconds
from app.settings import LimitSettings, RetentionSettings
from app.store import files, idempotency
from app.store.db import Database, Write


class FileSink:
    """Takes the bytes of one file. Made by `FileService.upload`; not for use by several tasks at once."""

    def __init__(
        self,
        project_id: str,
        *,
        blob: BlobSink,
        database: Database,
        blobs: Blobs,
        limits: LimitSettings,
        retention: RetentionSettings,
    ) -> None:
        self._project_id = project_id
        self._blob = blob
        self._database = database
        self._blobs = blobs
        self._limits = limits
        self._retention = retention

    def declare(self, purpose: Purpose) -> None:
        """Name the purpose as soon as it is known, so that its size limit holds from now on. Raises TooLarge."""
        batch = purpose is Purpose.BATCH
        self._blob.max_bytes = self._limits.batch_file_max_bytes if batch else self._limits.file_max_bytes
        self._blob.check_size()

    async def write(self, data: bytes | memoryview) -> None:
        """Append. Raises TooLarge, StorageFull, Unavailable; nothing is kept then."""
        await self._blob.write(data)

    async def finish(
        self,
        *,
        purpose: Purpose,
        filename: str,
        expires_after_seconds: int | None,
        idempotency_key: str | None = None,
    ) -> File:
        """Make the file visible: first its bytes are durable, then its row. May be called once.

        `expires_after_seconds` None: a batch file gets the default life, another file lives until it is deleted
        (openai-contract 1.1). A repeated `idempotency_key` gives the file that is there already; these bytes go.
        Raises InvalidRequest for a file that its purpose forbids, Conflict for a key that was used for another file,
        QuotaExceeded, and what `write` raises.
        """
        self.declare(purpose)
        check_filename(filename, purpose=purpose)
        if purpose is Purpose.BATCH:
            await asyncio.to_thread(check_first_line, bytes(self._blob.head), size_bytes=self._blob.bytes)
        async with naming(
            self._database, self._blobs, key=self._blob.key, grace_seconds=self._retention.orphan_grace_seconds
        ) as state:
            await self._blob.finish()
            return await self._name(state, purpose, filename, expires_after_seconds, idempotency_key)
        raise AssertionError("unreachable: the context swallows nothing")

    async def _name(
        self,
        state: Naming,
        purpose: Purpose,
        filename: str,
        expires_after_seconds: int | None,
        idempotency_key: str | None,
    ) -> File:
        asked = {
            "sha256": self._blob.sha256,
            "purpose": purpose.value,
            "filename": filename,
            "expires_after_seconds": expires_after_seconds,
        }
        use = key_use(
            idempotency_key, "files.create", project_id=self._project_id, asked=asked, retention=self._retention
        )
        life = life_seconds(purpose, asked=expires_after_seconds, retention=self._retention)
        file_id = new_file_id()
        await failpoint("upload_stored")
        async with self._database.write() as tx:
            known = None if use is None else await idempotency.claim(tx, use, object_id=file_id)
            if known is None:
                await quotas.admit_bytes(tx, self._project_id, self._blob.bytes)
                file = await self._create_row(tx, file_id, purpose, filename, life)
                await state.in_time(tx)
            else:
                found = await files.get(tx, known, project_id=self._project_id)
                if found is None:
                    raise object_gone()
                file = found
        await failpoint("upload_named")
        state.done = known is None
        return file

    async def _create_row(self, tx: Write, file_id: str, purpose: Purpose, filename: str, life: int | None) -> File:
        return await files.create(
            tx,
            id=file_id,
            project_id=self._project_id,
            purpose=purpose,
            filename=filename,
            sha256=self._blob.sha256,
            expires_after_seconds=life,
            segments=[(self._blob.key, self._blob.bytes)] if self._blob.bytes else [],
        )
