"""An upload on its way in: counted, hashed and stored while it arrives, in constant memory.

Two blocks are in memory at most: one that fills, and one that a thread hashes while another writes it.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack, suppress

import msgspec

from app.blobs.base import Blobs, BlobWriter
from app.blobs.key import upload_key
from app.domain.file import UPLOAD_PURPOSES, File, Purpose
from app.domain.id import new_file_id
from app.errors import InvalidRequest, TooLarge, Unavailable
from app.settings import LimitSettings, RetentionSettings
from app.store import files
from app.store.db import Database

_BLOCK_BYTES = 2 << 20
_FIRST_LINE_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_NOT_JSONL = "Invalid file format for Batch API. Must be .jsonl"


def parse_purpose(text: str) -> Purpose:
    """The upload purpose of this name. Raises InvalidRequest in OpenAI's words (openai-contract 3.3)."""
    for purpose in UPLOAD_PURPOSES:
        if text == purpose.value:
            return purpose
    names = ", ".join(f"'{purpose.value}'" for purpose in UPLOAD_PURPOSES)
    raise InvalidRequest(f"'{text[:64]}' is not one of [{names}] - 'purpose'", param="purpose")


def check_filename(filename: str, *, purpose: Purpose) -> None:
    """Raises InvalidRequest unless a file of this name may have this purpose.

    A name without an extension passes: the SDK calls raw bytes `upload` (openai-contract 3.3, 8.4).
    """
    if purpose is Purpose.BATCH and "." in filename and not filename.lower().endswith(".jsonl"):
        raise InvalidRequest(_NOT_JSONL)


class UploadSink:
    """Takes the bytes of one file. Made by `FileService.upload`; not for use by several tasks at once."""

    def __init__(
        self,
        project_id: str,
        *,
        database: Database,
        blobs: Blobs,
        limits: LimitSettings,
        retention: RetentionSettings,
        stack: AsyncExitStack,
    ) -> None:
        self._project_id = project_id
        self._database = database
        self._blobs = blobs
        self._limits = limits
        self._retention = retention
        self._stack = stack
        self._key = upload_key()
        self._writer: BlobWriter | None = None
        self._waiting = bytearray()
        self._storing: asyncio.Task[None] | None = None
        self._hash = hashlib.sha256()
        self._head = bytearray()
        self._max_bytes = max(limits.batch_file_max_bytes, limits.file_max_bytes)
        self.bytes = 0
        self.finished = False

    def declare(self, purpose: Purpose) -> None:
        """Name the purpose as soon as it is known, so that its size limit holds from now on. Raises TooLarge."""
        batch = purpose is Purpose.BATCH
        self._max_bytes = self._limits.batch_file_max_bytes if batch else self._limits.file_max_bytes
        self._check_size()

    async def write(self, data: bytes | memoryview) -> None:
        """Append. Raises TooLarge, StorageFull, Unavailable; nothing is kept then."""
        self.bytes += len(data)
        self._check_size()
        if len(self._head) < _FIRST_LINE_BYTES:
            self._head += data[: _FIRST_LINE_BYTES - len(self._head)]
        self._waiting += data
        if len(self._waiting) >= _BLOCK_BYTES:
            await self._store()

    async def finish(self, *, purpose: Purpose, filename: str, expires_after_seconds: int | None) -> File:
        """Make the file visible: first its bytes are durable, then its row. May be called once.

        `expires_after_seconds` None: a batch file gets the default life, another file lives until it is deleted
        (openai-contract 1.1). Raises InvalidRequest for a file that its purpose forbids, and what `write` raises.
        """
        self.declare(purpose)
        check_filename(filename, purpose=purpose)
        if purpose is Purpose.BATCH:
            await asyncio.to_thread(self._check_first_line)
            if expires_after_seconds is None:
                expires_after_seconds = self._retention.batch_file_seconds
        if self._waiting:
            await self._store()
        await self._settle()
        await self._stack.aclose()
        self.finished = True
        return await self._create_row(purpose, filename, expires_after_seconds)

    async def _create_row(self, purpose: Purpose, filename: str, expires_after_seconds: int | None) -> File:
        file_id = new_file_id()
        created = False
        try:
            async with self._database.write() as tx:
                file = await files.create(
                    tx,
                    id=file_id,
                    project_id=self._project_id,
                    purpose=purpose,
                    filename=filename,
                    sha256=self._hash.hexdigest(),
                    expires_after_seconds=expires_after_seconds,
                    segments=[(self._key, self.bytes)] if self.bytes else [],
                )
            created = True
        finally:
            if not created:
                await asyncio.shield(self._drop_ownerless(file_id))
        return file

    async def _drop_ownerless(self, file_id: str) -> None:
        """A commit may fail after it happened. Where the database cannot say, the retention sweep finds the blob."""
        with suppress(Unavailable):
            async with self._database.read() as tx:
                owned = await files.get(tx, file_id, project_id=self._project_id)
            if owned is None:
                await self._blobs.delete(self._key)

    def _check_size(self) -> None:
        if self.bytes > self._max_bytes:
            raise TooLarge("File is too large.")

    def _check_first_line(self) -> None:
        if not self.bytes:
            raise InvalidRequest(f"{_NOT_JSONL}; the file is empty.")
        head = bytes(self._head).removeprefix(_BOM).lstrip(b" \t\r\n")
        line, ended, _ = head.partition(b"\n")
        if not ended and self.bytes > len(self._head):
            # Longer than what is kept of it: the batch's validation reads the rest.
            fits = not line or line[:1] in b'{["'
        else:
            fits = not line or _is_json(line)
        if not fits:
            raise InvalidRequest(f"{_NOT_JSONL}; the first line is not JSON.")

    async def _store(self) -> None:
        await self._settle()
        if self._writer is None:
            self._writer = await self._stack.enter_async_context(self._blobs.writer(self._key))
        block, self._waiting = self._waiting, bytearray()
        self._storing = asyncio.create_task(self._hash_and_write(self._writer, block), name="upload_block")

    async def _hash_and_write(self, writer: BlobWriter, block: bytearray) -> None:
        hashing = asyncio.ensure_future(asyncio.to_thread(self._hash.update, block))
        try:
            await writer.write(block)
        finally:
            await asyncio.wait([hashing])

    async def _settle(self) -> None:
        storing, self._storing = self._storing, None
        if storing is not None:
            await storing

    async def abandon(self) -> None:
        """End the write that is under way, whatever its outcome. `FileService.upload` calls it last."""
        storing, self._storing = self._storing, None
        if storing is not None:
            storing.cancel()
            await asyncio.wait([storing])
            if not storing.cancelled():
                storing.exception()


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
