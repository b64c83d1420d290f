"""Validation: claims batches that wait for it, streams their input through an inspection, accepts or rejects.

The file is read block by block and looked at in a thread, a second time only where two of its ids may be equal. Only
a file that is good so far waits for the engine, to learn which models and endpoints it serves; while it waits it holds
its chunk list, not a place in the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import structlog

from app.blobs.base import Blobs
from app.domain.batch import Batch, BatchProblem
from app.domain.endpoint import BATCH_ENDPOINTS
from app.domain.file import Purpose, Segment
from app.engine.base import Health
from app.errors import BlobMissing, EngineDead, LeaseLost, Unavailable
from app.failpoint import failpoint
from app.settings import LimitSettings, WorkerSettings
from app.store import files, validations
from app.store.db import Database
from app.store.validations import ValidationClaim
from app.telemetry import VALIDATION_SECONDS, VALIDATIONS
from app.worker import admission
from app.worker.absence import Absences, last_byte
from app.worker.inspection import Inspection
from app.worker.patience import Bell, persist, rest
from app.worker.repeats import Suspects
from app.worker.window import RebuiltEngine

log = structlog.get_logger()

# Files read at once: one large file must not hold up every small one.
READING_AT_ONCE = 2
# Longest pause between two looks for a file whose bytes are missing.
LOOK_MAX_SECONDS = 30.0
# Claimed batches, most of them waiting for the engine with nothing but their chunk list in memory.
CLAIMED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class _Served:
    models: frozenset[str]
    endpoint: bool
    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Validation:
    """One that runs. `over` is set when its lease is lost or the worker stops.

    A signal, not a cancellation: that could hit a transaction, and lose its connection and SQLite's lock with it.
    """

    claim: ValidationClaim
    over: asyncio.Event


class Validator:
    """Validates batches one after the other, two at a time. `accepted` is called when a batch became ready to run, and
    `rejected` when one has failed.
    """

    def __init__(
        self,
        *,
        database: Database,
        blobs: Blobs,
        engine: RebuiltEngine,
        settings: WorkerSettings,
        limits: LimitSettings,
        absences: Absences,
        accepted: Callable[[], None],
        rejected: Callable[[], None] | None = None,
    ) -> None:
        self._database = database
        self._absences = absences
        self._blobs = blobs
        self._engine = engine
        self._settings = settings
        self._limits = limits
        self._accepted = accepted
        self._rejected = rejected
        self._reading = asyncio.Semaphore(READING_AT_ONCE)
        self._active: dict[str, _Validation] = {}
        self.bell = Bell()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then running validations end early and their leases are given back. Raises when one died."""
        async with asyncio.TaskGroup() as group:
            await self._claim_batches(stop, group)
            for validation in self._active.values():
                validation.over.set()

    async def extend(self) -> None:
        """Hold the leases of all running validations; end those that are lost or whose batch was cancelled.

        Raises Unavailable.
        """
        active = list(self._active.values())
        if not active:
            return
        async with self._database.write() as tx:
            for validation in active:
                try:
                    await validations.extend(tx, validation.claim, lease_seconds=self._settings.lease_seconds)
                except LeaseLost:
                    validation.over.set()

    async def _claim_batches(self, stop: asyncio.Event, group: asyncio.TaskGroup) -> None:
        while not stop.is_set():
            claim = None
            try:
                if len(self._active) < CLAIMED_AT_ONCE and not self._reading.locked():
                    async with self._database.write() as tx:
                        claim = await validations.claim(tx, lease_seconds=self._settings.lease_seconds)
                    await failpoint("validation_claimed")
            except Unavailable as exc:
                log.warning("claim_failed", reason=exc.message)
                await rest(stop, 1.0)
                continue
            if claim is None:
                await self.bell.wait(self._settings.poll_seconds)
                continue
            validation = _Validation(claim, asyncio.Event())
            self._active[claim.token] = validation
            group.create_task(self._validate(validation), name=f"validate-{claim.batch.id}")
            await asyncio.sleep(0)  # let it take its reading place before the next claim looks for one

    async def _validate(self, validation: _Validation) -> None:
        claim, over = validation.claim, validation.over
        began = asyncio.get_running_loop().time()
        try:
            found = await self._inspected(validation)
            problems = None if found is None else await self._verdict(claim.batch, found, over)
            if problems:
                await persist(lambda: self._reject(claim, problems), doing="reject_batch", give_up=over)
            elif isinstance(found, Inspection) and problems is not None:
                await persist(lambda: self._accept(claim, found), doing="accept_batch", give_up=over)
            else:
                await self._give_back(claim)
            VALIDATION_SECONDS.observe(asyncio.get_running_loop().time() - began)
        except (LeaseLost, Unavailable) as exc:
            log.info("validation_dropped", batch_id=claim.batch.id, reason=exc.message)
        finally:
            self._active.pop(claim.token, None)

    async def _give_back(self, claim: ValidationClaim) -> None:
        log.info("validation_given_back", batch_id=claim.batch.id)
        async with self._database.write() as tx:
            await validations.release(tx, claim)

    async def _inspected(self, validation: _Validation) -> Inspection | BatchProblem | None:
        """As `_inspect`, looking again, without a reading place, while bytes are missing that may come back."""
        pause_seconds = self._absences.look_seconds
        while True:
            try:
                async with self._reading:
                    return await persist(lambda: self._inspect(validation), doing="read_input", give_up=validation.over)
            except BlobMissing:
                if await rest(validation.over, pause_seconds):
                    return None
                pause_seconds = min(LOOK_MAX_SECONDS, 1.5 * pause_seconds)

    async def _is_lost(self, segments: list[Segment]) -> bool:
        for segment in segments:
            look = partial(last_byte, self._blobs, segment.key, size=segment.bytes)
            try:
                await look()
            except BlobMissing:
                if await self._absences.lost(segment.key, look):
                    return True
        return False

    async def _inspect(self, validation: _Validation) -> Inspection | BatchProblem | None:
        """Everything that the file alone can tell; None when the validation is over.

        Raises Unavailable, and BlobMissing for bytes that may come back.
        """
        batch = validation.claim.batch
        async with self._database.read() as tx:
            file = await files.input_of(tx, batch)
            segments = await files.segments(tx, batch.input_file_id)
        if file is None:
            organization = f"organization {batch.project_id}"
            message = f"Cannot find file {batch.input_file_id}, or {organization} does not have access to it."
            return BatchProblem("invalid_request", message, "file_id")
        if file.purpose is not Purpose.BATCH:
            message = f"File {file.id} has the purpose '{file.purpose}'; the input of a batch has the purpose 'batch'."
            return BatchProblem("invalid_request", message, "file_id")
        inspect = partial(Inspection, endpoint=batch.endpoint, limits=self._limits, worker=self._settings)
        try:
            inspection = await self._stream(segments, inspect(), validation.over)
            if repeated := await asyncio.to_thread(inspection.repeated):
                inspection = await self._stream(segments, inspect(suspects=Suspects(repeated)), validation.over)
        except BlobMissing as exc:
            log.error("input_missing", batch_id=batch.id, reason=exc.message)  # noqa: TRY400 - told, not traced
            if not await self._is_lost(segments):
                raise
            return BatchProblem("invalid_request", f"The content of file {file.id} is not available.", "file_id")
        return None if validation.over.is_set() else inspection

    async def _stream(self, segments: list[Segment], inspection: Inspection, over: asyncio.Event) -> Inspection:
        for segment in segments:
            async with aclosing(self._blobs.read(segment.key)) as blocks:
                async for block in blocks:
                    if over.is_set() or not await asyncio.to_thread(inspection.feed, block):
                        return inspection
        await asyncio.to_thread(inspection.finish)
        return inspection

    async def _verdict(
        self, batch: Batch, inspection: Inspection | BatchProblem, over: asyncio.Event
    ) -> tuple[BatchProblem, ...] | None:
        """All problems, none for a good file

        None when the validation is over. A file bad by itself does not wait for the engine.
        """
        if isinstance(inspection, BatchProblem):
            return (inspection,)
        while True:
            served = await self._served(batch.endpoint)
            problems = inspection.problems(None if served is None else served.models)
            if served is not None and not served.endpoint:
                message = (
                    f"The model served here does not support the endpoint '{batch.endpoint}'. "
                    f"Supported: {', '.join(served.endpoints) or 'none'}."
                )
                found = (BatchProblem("unsupported_endpoint", message, "endpoint"), *problems)
                return found[: self._limits.problems_max]
            if problems or served is not None:
                return problems
            if not await self._engine.wait_ready(over) and await rest(over, self._settings.poll_seconds):
                return None

    async def _served(self, endpoint: str) -> _Served | None:
        if self._engine.health() is not Health.READY:
            return None
        try:
            models = frozenset(await self._engine.models())
            answers = {path: await self._engine.supports(path) for path in (*BATCH_ENDPOINTS, endpoint)}
            return _Served(models, answers[endpoint], tuple(path for path, answer in answers.items() if answer))
        except EngineDead:
            return None

    async def _accept(self, claim: ValidationClaim, inspection: Inspection) -> None:
        async with self._database.write() as tx:
            # The model stays unknown until one has answered (openai-contract 1.3).
            problem = await admission.problem(tx, claim.batch, inspection)
            if problem is None:
                await validations.accept(tx, claim, model=None, chunks=inspection.chunks, tokens=inspection.tokens)
            else:
                await validations.reject(tx, claim, problems=(problem,))
            await failpoint("validation_recorded")
        await failpoint("validation_committed")
        if problem is not None:
            self._has_rejected(claim, (problem,))
            return
        VALIDATIONS.labels("accepted").inc()
        log.info("batch_accepted", batch_id=claim.batch.id, lines=inspection.lines, chunks=len(inspection.chunks))
        self._accepted()

    async def _reject(self, claim: ValidationClaim, problems: tuple[BatchProblem, ...]) -> None:
        async with self._database.write() as tx:
            await validations.reject(tx, claim, problems=problems)
            await failpoint("validation_recorded")
        await failpoint("validation_committed")
        self._has_rejected(claim, problems)

    def _has_rejected(self, claim: ValidationClaim, problems: tuple[BatchProblem, ...]) -> None:
        VALIDATIONS.labels("rejected").inc()
        log.info("batch_rejected", batch_id=claim.batch.id, problems=len(problems), first=problems[0].code)
        if self._rejected is not None:
            self._rejected()
