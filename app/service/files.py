"""What the Files API means (openai-contract 1.1, 2, 3.3). Every call is scoped by a project."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from app.blobs.base import Blobs
from app.blobs.key import upload_key
from app.domain.file import DOWNLOADABLE_PURPOSES, File, Purpose, Segment, overlapping
from app.domain.id import is_plausible
from app.errors import InvalidRequest, NotFound
from app.service import quotas
from app.service.blob_sink import receiving
from app.service.file_sink import FileSink
from app.settings import LimitSettings, RetentionSettings
from app.store import files
from app.store.db import Database
from app.store.page import Page


@dataclass(frozen=True, slots=True)
class Content:
    """A file that may be downloaded. `stream` gives any run of its bytes."""

    file: File
    segments: list[Segment]
    blobs: Blobs

    def stream(self, *, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes]:
        """Bytes [start, end) in blocks. Raises BlobMissing, Unavailable."""
        return stream(self.blobs, self.segments, start=start, end=self.file.bytes if end is None else end)


class FileService:
    """Files: upload, read, list, delete."""

    def __init__(
        self, *, database: Database, blobs: Blobs, limits: LimitSettings, retention: RetentionSettings
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._limits = limits
        self._retention = retention

    @property
    def file_max_bytes(self) -> int:
        """The largest file of any purpose."""
        return max(self._limits.batch_file_max_bytes, self._limits.file_max_bytes)

    @asynccontextmanager
    async def upload(self, project_id: str) -> AsyncGenerator[FileSink]:
        """A sink for one file. Unless its `finish` returned, leaving the context leaves nothing behind.

        Raises QuotaExceeded.
        """
        await quotas.check_bytes(self._database, project_id, 1)  # a full project is told before it sends
        async with receiving(self._blobs, key=upload_key(), max_bytes=self.file_max_bytes) as blob:
            yield FileSink(
                project_id,
                blob=blob,
                database=self._database,
                blobs=self._blobs,
                limits=self._limits,
                retention=self._retention,
            )

    async def get(self, project_id: str, file_id: str) -> File:
        """Raises NotFound."""
        if is_plausible(file_id):
            async with self._database.read() as tx:
                file = await files.get(tx, file_id, project_id=project_id)
            if file is not None:
                return file
        raise _unknown(file_id)

    async def page(
        self, project_id: str, *, purpose: str | None, after: str | None, limit: int, descending: bool
    ) -> Page[File]:
        """Files by creation. A `purpose` that is none finds nothing. Raises InvalidRequest for an unknown `after`."""
        if after is not None and not is_plausible(after):
            raise unknown_cursor(after)
        if purpose is not None and purpose not in set(Purpose):
            return Page([], has_more=False)
        async with self._database.read() as tx:
            return await files.page(
                tx,
                project_id=project_id,
                purpose=None if purpose is None else Purpose(purpose),
                after=after,
                limit=limit,
                descending=descending,
            )

    async def delete(self, project_id: str, file_id: str) -> None:
        """Hide the file at once; a running batch still reads its input to the end. Raises NotFound."""
        if is_plausible(file_id):
            async with self._database.write() as tx:
                deleted = await files.delete(tx, file_id, project_id=project_id)
            if deleted:
                return
        raise _unknown(file_id)

    async def content(self, project_id: str, file_id: str) -> Content:
        """Raises NotFound, and InvalidRequest for a purpose whose bytes are not given out."""
        if not is_plausible(file_id):
            raise _unknown(file_id)
        async with self._database.read() as tx:
            file = await files.get(tx, file_id, project_id=project_id)
            if file is None:
                raise _unknown(file_id)
            if file.purpose not in DOWNLOADABLE_PURPOSES:
                raise InvalidRequest(f"Not allowed to download files of purpose: {file.purpose}")
            return Content(file, await files.segments(tx, file_id), self._blobs)


async def stream(blobs: Blobs, segments: list[Segment], *, start: int = 0, end: int) -> AsyncGenerator[bytes]:
    """Bytes [start, end) of `segments` in blocks. Raises BlobMissing, Unavailable."""
    for segment, low, high in overlapping(segments, start, end):
        async with aclosing(blobs.read(segment.key, start=low, end=high)) as blocks:
            async for block in blocks:
                yield block


def unknown_cursor(after: str) -> InvalidRequest:
    """The refusal of an `after` that cannot be an id; the same words as for one that the project does not have."""
    return InvalidRequest(f"No object with id '{after[:128]}' to list after.", param="after")


def _unknown(file_id: str) -> NotFound:
    return NotFound(f"No such File object: {file_id[:128]}", param="id")
