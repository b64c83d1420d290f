"""What the Batches API means (openai-contract 1.3, 2, 3.3). Every call is scoped by a project."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from app.domain.batch import COMPLETION_WINDOWS, Batch
from app.domain.file import Purpose
from app.domain.id import is_plausible, new_batch_id
from app.errors import InvalidRequest, NotFound
from app.service.files import unknown_cursor
from app.store import batches, files
from app.store.db import Database
from app.store.page import Page

log = structlog.get_logger()


class BatchService:
    """Batches: create, read, list, cancel. A worker does the rest."""

    def __init__(self, *, database: Database) -> None:
        self._database = database

    async def create(
        self,
        project_id: str,
        *,
        endpoint: str,
        input_file_id: str,
        completion_window: str,
        metadata: Mapping[str, str] | None = None,
        output_expires_after_seconds: int | None = None,
    ) -> Batch:
        """A new batch in `validating`. `completion_window` is a key of COMPLETION_WINDOWS.

        An unknown, deleted or foreign input file is accepted here and fails the validation (openai-contract 3.3).
        Raises InvalidRequest when the file has another purpose than `batch`.
        """
        async with self._database.write() as tx:
            file = None
            if is_plausible(input_file_id):
                file = await files.get(tx, input_file_id, project_id=project_id)
            if file is not None and file.purpose is not Purpose.BATCH:
                raise InvalidRequest(
                    f"Invalid input file: '{file.id}' has purpose '{file.purpose}', and a batch needs purpose 'batch'.",
                    param="input_file_id",
                )
            batch = await batches.create(
                tx,
                id=new_batch_id(),
                project_id=project_id,
                endpoint=endpoint,
                input_file_id=input_file_id,
                input_found=file is not None,
                completion_window=completion_window,
                window_seconds=COMPLETION_WINDOWS[completion_window],
                metadata=metadata,
                output_expires_after_seconds=output_expires_after_seconds,
            )
        log.info("batch_created", batch_id=batch.id, input_file_id=input_file_id, endpoint=endpoint)
        return batch

    async def get(self, project_id: str, batch_id: str) -> Batch:
        """Raises NotFound."""
        if is_plausible(batch_id):
            async with self._database.read() as tx:
                batch = await batches.get(tx, batch_id, project_id=project_id)
            if batch is not None:
                return batch
        raise _unknown(batch_id)

    async def page(self, project_id: str, *, after: str | None, limit: int) -> Page[Batch]:
        """Newest first. Raises InvalidRequest for an unknown `after`."""
        if after is not None and not is_plausible(after):
            raise unknown_cursor(after)
        async with self._database.read() as tx:
            return await batches.page(tx, project_id=project_id, after=after, limit=limit)

    async def cancel(self, project_id: str, batch_id: str) -> Batch:
        """Ask for an early end; once asked, asking again changes nothing. Raises NotFound, StateConflict."""
        if is_plausible(batch_id):
            async with self._database.write() as tx:
                batch = await batches.cancel(tx, batch_id, project_id=project_id)
            if batch is not None:
                log.info("batch_cancel_asked", batch_id=batch.id, status=batch.status)
                return batch
        raise _unknown(batch_id)


def _unknown(batch_id: str) -> NotFound:
    return NotFound(f"No batch found with id '{batch_id[:128]}'.")
