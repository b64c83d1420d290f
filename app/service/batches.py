"""What the Batches API means (openai-contract 1.3, 2, 3.3). Every call is scoped by a project."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import structlog

from app.domain.batch import Batch, window_seconds
from app.domain.file import Purpose
from app.domain.id import is_plausible, new_batch_id
from app.errors import InvalidRequest, NotFound
from app.failpoint import failpoint
from app.service import quotas
from app.service.files import unknown_cursor
from app.service.idempotency import key_use, object_gone
from app.settings import LimitSettings, RetentionSettings
from app.store import batches, files, idempotency
from app.store.db import Database, Read, Write
from app.store.page import Page

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Order:
    """What a batch is made of. `window_seconds` is the length of `completion_window`."""

    endpoint: str
    input_file_id: str
    completion_window: str
    window_seconds: int
    metadata: Mapping[str, str] | None
    output_expires_after_seconds: int | None


class BatchService:
    """Batches: create, read, list, cancel. A worker does the rest."""

    def __init__(
        self,
        *,
        database: Database,
        limits: LimitSettings,
        retention: RetentionSettings,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called after a create or cancel: it may wake a worker of the same process."""
        self._database = database
        self._limits = limits
        self._retention = retention
        self._changed = changed

    async def create(
        self,
        project_id: str,
        *,
        endpoint: str,
        input_file_id: str,
        completion_window: str,
        metadata: Mapping[str, str] | None = None,
        output_expires_after_seconds: int | None = None,
        idempotency_key: str | None = None,
    ) -> Batch:
        """A new batch in `validating`, or the one that `idempotency_key` made before.

        An unknown, deleted or foreign input file is accepted here and fails the validation (openai-contract 3.3).
        Raises InvalidRequest when the file has another purpose than `batch`, or the completion window is none that the
        settings allow; RateLimited above a quota; Conflict for a key that was used for another batch.
        """
        order = Order(
            endpoint=endpoint,
            input_file_id=input_file_id,
            completion_window=completion_window,
            window_seconds=allowed_window(completion_window, limits=self._limits),
            metadata=None if metadata is None else dict(metadata),
            output_expires_after_seconds=output_expires_after_seconds,
        )
        use = key_use(
            idempotency_key, "batches.create", project_id=project_id, asked=asdict(order), retention=self._retention
        )
        batch_id = new_batch_id()
        async with self._database.write() as tx:
            known = None if use is None else await idempotency.claim(tx, use, object_id=batch_id)
            if known is not None:
                return await known_batch(tx, known, project_id=project_id)
            batch = await open_batch(tx, batch_id, project_id, order)
            await failpoint("create_recorded")
        self._changed()
        await failpoint("create_committed")
        log.info("batch_created", batch_id=batch.id, input_file_id=input_file_id, endpoint=endpoint)
        return batch

    async def get(self, project_id: str, batch_id: str) -> Batch:
        """Raises NotFound."""
        if is_plausible(batch_id):
            async with self._database.read() as tx:
                batch = await batches.get(tx, batch_id, project_id=project_id)
            if batch is not None:
                return batch
        raise unknown_batch(batch_id)

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
                self._changed()
                await failpoint("cancel_committed")
                log.info("batch_cancel_asked", batch_id=batch.id, status=batch.status)
                return batch
        raise unknown_batch(batch_id)


async def open_batch(tx: Write, batch_id: str, project_id: str, order: Order) -> Batch:
    """The row of a new batch. Raises InvalidRequest for an input file of another purpose, RateLimited above a quota."""
    file = None
    if is_plausible(order.input_file_id):
        file = await files.get(tx, order.input_file_id, project_id=project_id)
    if file is not None and file.purpose is not Purpose.BATCH:
        raise InvalidRequest(
            f"Invalid input file: '{file.id}' has purpose '{file.purpose}', and a batch needs purpose 'batch'.",
            param="input_file_id",
        )
    limits = await quotas.admit_batch(tx, project_id)
    return await batches.create(
        tx,
        id=batch_id,
        project_id=project_id,
        endpoint=order.endpoint,
        input_file_id=order.input_file_id,
        input_found=file is not None,
        completion_window=order.completion_window,
        window_seconds=order.window_seconds,
        metadata=order.metadata,
        output_expires_after_seconds=order.output_expires_after_seconds,
        enqueued_tokens_max=limits.enqueued_tokens,
        queued_requests_max=limits.queued_requests,
    )


def unknown_batch(batch_id: str) -> NotFound:
    """The refusal of an id that the project has no batch of."""
    return NotFound(f"No batch found with id '{batch_id[:128]}'.")


def allowed_window(text: str, *, limits: LimitSettings) -> int:
    """The seconds of a completion window. Raises InvalidRequest unless the settings allow it."""
    seconds = window_seconds(text)
    windows = limits.completion_windows
    longest = limits.completion_window_max_seconds
    if seconds is not None and (text in windows or ("any" in windows and seconds <= longest)):
        return seconds
    supported = ", ".join(f"'{window}'" for window in windows if window != "any")
    if "any" in windows:
        supported += f"{', ' if supported else ''}a number and m, h or d such as '90m', up to {longest} seconds"
    raise InvalidRequest(
        f"Invalid completion_window: {text[:200]}. Supported values: {supported}.",
        code="invalid_value",
        param="completion_window",
    )


async def known_batch(tx: Read, batch_id: str, *, project_id: str) -> Batch:
    """The batch that an idempotency key made. Raises Conflict when it is gone."""
    batch = await batches.get(tx, batch_id, project_id=project_id)
    if batch is None:
        raise object_gone()
    return batch
