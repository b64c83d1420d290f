"""The drain: chunks in, results out, through one window, with no barrier at any chunk's or batch's border.

    claim ─► intake ─► feed ─► seats (engine) ─► ledger ─► parts ─► seal

Each leased chunk has a ledger and a keeper task that makes its results durable; all share the feed and the window.
Stop is a signal: nothing more is claimed or dealt, lines in flight may finish for a while, then everything is flushed
and released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import structlog

from app.blobs.base import Blobs
from app.domain.chunk import Claim
from app.domain.part import PartDamaged
from app.domain.suspicion import Doubt
from app.errors import BlobMissing, Internal, LeaseLost, Unavailable
from app.failpoint import failpoint
from app.settings import WorkerSettings
from app.store import chunks, suspects
from app.store.db import Database
from app.telemetry import CHUNKS_CLAIMED, LEASES_LOST
from app.worker import doubts
from app.worker.absence import Absences
from app.worker.dealing import Dealing
from app.worker.feed import Feed
from app.worker.intake import Intake
from app.worker.ledger import Backlog, Ledger
from app.worker.parts import Parts
from app.worker.patience import Bell, persist, rest
from app.worker.seal import Sealer
from app.worker.window import RebuiltEngine, Window

log = structlog.get_logger()

# A batch whose stored bytes cannot be used is left alone this long, so that it does not keep the others from running.
SET_ASIDE_SECONDS = 30.0
# Results in memory, in parts of the largest size, above which no line is dealt: storage is away or slow.
BACKLOG_PARTS = 8
FLUSH_SECONDS = 5.0


class Drain:
    """Runs the lines of every batch it can claim. `sealed` is called whenever a chunk has been sealed."""

    def __init__(
        self,
        *,
        database: Database,
        blobs: Blobs,
        engine: RebuiltEngine,
        settings: WorkerSettings,
        absences: Absences,
        window: int,
        request_timeout_seconds: float,
        stop_seconds: float,
        sealed: Callable[[], None],
    ) -> None:
        backlog = Backlog()
        self._database = database
        self._engine = engine
        self._settings = settings
        self._window_size = window
        self._timeout_seconds = request_timeout_seconds
        self._stop_seconds = stop_seconds
        self._sealed = sealed
        self.bell = Bell()
        self._feed = Feed(backlog=backlog, backlog_max_bytes=BACKLOG_PARTS * settings.part_max_bytes, bell=self.bell)
        self._parts = Parts(database=database, blobs=blobs, backlog=backlog)
        self._sealer = Sealer(database=database, blobs=blobs, parts=self._parts, backlog=backlog)
        self._intake = Intake(
            database=database,
            blobs=blobs,
            parts=self._parts,
            backlog=backlog,
            absences=absences,
            part_max_bytes=settings.part_max_bytes,
            poison_lines_max=settings.poison_lines_max,
        )
        self._look_seconds = absences.look_seconds
        self._leases: dict[str, str] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._set_aside: dict[str, float] = {}
        self._poisoned: set[str] = set()
        self._final = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, then wind down within about `stop_seconds`. Raises when a task of the drain died."""
        self.hold_until(asyncio.get_running_loop().time() + self._settings.lease_seconds)  # then by the heartbeat
        async with asyncio.TaskGroup() as group:
            window = Window(
                engine=self._engine, feed=self._feed, request_timeout_seconds=self._timeout_seconds, group=group
            )
            dealing = Dealing(
                engine=self._engine,
                feed=self._feed,
                window=window,
                bell=self.bell,
                size=self._window_size,
                final=self._final,
            )
            group.create_task(dealing.mind_engine(), name="drain-engine")
            group.create_task(self._watch(dealing, window), name="drain-watch")
            claiming = group.create_task(self._claim_chunks(stop, group, window), name="drain-claims")
            await claiming
            await self._wind_down(dealing)
        await self._release()

    # --- what the heartbeat needs ---

    def leases(self) -> list[tuple[str, str]]:
        """(chunk id, token) of every chunk held now."""
        return list(self._leases.items())

    def lost(self, chunk_id: str, token: str) -> None:
        """The database says that this lease is no more: drop the chunk, abort its lines."""
        if self._leases.get(chunk_id) == token:
            del self._leases[chunk_id]
        ledger = self._ledgers.get(chunk_id)
        if ledger is not None and ledger.claim.token == token:
            ledger.lose()

    def hold_until(self, moment: float) -> None:
        """By the event loop's clock: all leases hold until then. Past it nothing is dealt or claimed, results are kept.

        The heartbeat moves it on. A database that is away stops it, and so does a process that was frozen: when it
        goes on, its leases may have lapsed, and somebody else may be running the same lines.
        """
        self._feed.hold_until(moment)

    # --- claims ---

    async def _claim_chunks(self, stop: asyncio.Event, group: asyncio.TaskGroup, window: Window) -> None:
        poll_seconds = self._settings.poll_seconds
        while not stop.is_set():
            if self._feed.in_doubt:  # a lapsed lease of our own would look like anybody's
                await self.bell.wait(poll_seconds)
                continue
            hungry = self._feed.engine_up and self._feed.hungry
            try:
                claim = await self._claim(closing_only=not hungry)
            except Unavailable as exc:
                log.warning("claim_failed", reason=exc.message)
                await rest(stop, max(1.0, poll_seconds))
                continue
            if claim is not None:
                await self._take_in(claim, stop, group, window)
            else:
                await self.bell.wait(poll_seconds)

    async def _claim(self, *, closing_only: bool) -> Claim | None:
        now = asyncio.get_running_loop().time()
        self._set_aside = {batch_id: until for batch_id, until in self._set_aside.items() if until > now}
        async with self._database.write() as tx:
            claim = await chunks.claim(
                tx,
                lease_seconds=self._settings.lease_seconds,
                exclude_batches=self._set_aside,
                closing_only=closing_only,
            )
        if claim is not None:
            await failpoint("chunk_claimed")
            self._leases[claim.chunk_id] = claim.token
            CHUNKS_CLAIMED.inc()
        return claim

    async def _take_in(self, claim: Claim, stop: asyncio.Event, group: asyncio.TaskGroup, window: Window) -> None:
        try:
            ledger = await persist(lambda: self._intake.ledger(claim), doing="read_chunk", give_up=stop)
        except (BlobMissing, Internal) as exc:
            await self._put_aside(claim, exc)
            return
        except Unavailable:
            return  # stopping: the lease is released with the others
        if self._leases.get(claim.chunk_id) != claim.token:
            ledger.lose()  # while the chunk was read
            return
        ledger.doubts.record = partial(self._note_doubt, ledger)
        self._ledgers[claim.chunk_id] = ledger
        self._feed.hungry = False
        self._feed.add(ledger)
        group.create_task(self._keep(ledger, window), name=f"keep-{claim.chunk_id}")

    # --- the keeper of one chunk ---

    async def _keep(self, ledger: Ledger, window: Window) -> None:
        """Make the results of `ledger` durable, in parts and at last in segments; then forget it."""
        try:
            await self._commit_parts(ledger)
            if ledger.lost:
                self._drop(ledger.claim)
            elif ledger.done:
                await self._save_doubts(ledger)
                await self._sealer.seal(ledger, give_up=self._final)
                self._forget(ledger.claim)
                self._sealed()
        except LeaseLost:
            self._drop(ledger.claim)
        except Unavailable as exc:
            log.warning("results_not_saved", chunk_id=ledger.chunk_id, reason=exc.message)
        except (BlobMissing, Internal) as exc:
            await self._put_aside(ledger.claim, exc)
        finally:
            ledger.lose()
            self._feed.remove(ledger)
            window.abort(ledger)
            if self._ledgers.get(ledger.chunk_id) is ledger:
                del self._ledgers[ledger.chunk_id]

    async def _commit_parts(self, ledger: Ledger) -> None:
        """Until all lines have ended (the last ones are for the seal), or the worker stops."""
        last = False
        while ledger.is_running() and not last:
            await rest(ledger.kick, self._settings.part_seconds)
            last = self._final.is_set()
            await self._save_doubts(ledger)
            if ledger.pending and ledger.is_running():
                await self._parts.commit(ledger, give_up=self._final)

    async def _save_doubts(self, ledger: Ledger) -> None:
        """Once: what cannot be saved now is saved later. Raises LeaseLost."""
        unsaved = {} if ledger.lost else ledger.doubts.take_unsaved()
        if unsaved:
            try:
                await doubts.record(self._database, ledger.chunk_id, ledger.claim.token, unsaved)
                log.info("doubts_recorded", chunk_id=ledger.chunk_id, lines=len(unsaved))
                if any(doubt.guilty for doubt in unsaved.values()):
                    await self._count_guilty(ledger.claim.batch_id)
            except Unavailable as exc:
                ledger.doubts.give_back(unsaved)
                log.warning("doubts_not_saved", chunk_id=ledger.chunk_id, reason=exc.message)

    async def _count_guilty(self, batch_id: str) -> None:
        """End the batch here when too many of its lines have killed the engine; others learn of it as they claim."""
        most = self._settings.poison_lines_max
        async with self._database.read() as tx:
            lines = await suspects.guilty(tx, batch_id)
        if 0 < most <= lines and batch_id not in self._poisoned:
            log.error("batch_poisoned", batch_id=batch_id, lines=lines)
            self._poisoned.add(batch_id)

    async def _note_doubt(self, ledger: Ledger, lines: Mapping[int, Doubt]) -> bool:
        """As Doubts.record: before a line runs."""
        claim = ledger.claim
        try:
            await persist(
                lambda: doubts.record(self._database, claim.chunk_id, claim.token, lines),
                doing="note_doubt",
                give_up=self._final,
            )
        except LeaseLost:
            ledger.lose()
        except Unavailable:
            return False  # stopping
        return not ledger.lost

    def _drop(self, claim: Claim) -> None:
        LEASES_LOST.inc()
        log.warning("lease_lost", batch_id=claim.batch_id, chunk_id=claim.chunk_id)
        self._forget(claim)

    def _forget(self, claim: Claim) -> None:
        # By token: this worker may have claimed the chunk anew meanwhile.
        if self._leases.get(claim.chunk_id) == claim.token:
            del self._leases[claim.chunk_id]

    async def _put_aside(self, claim: Claim, exc: BlobMissing | Internal) -> None:
        """Stored bytes are missing or damaged.

        Loud, and again after a while: they may come back. What is lost for good is settled when the chunk is next taken
        in. But whoever has lost the lease finds bytes missing because the new owner is done with them.
        """
        held = frozenset((claim.chunk_id,))
        with suppress(Unavailable):  # then it lapses
            async with self._database.write() as tx:
                held = await chunks.release(tx, [(claim.chunk_id, claim.token)])
        if not held:
            self._drop(claim)
            return
        log.error("chunk_set_aside", batch_id=claim.batch_id, chunk_id=claim.chunk_id, reason=exc.message)
        missing = isinstance(exc, BlobMissing | PartDamaged)
        seconds = min(SET_ASIDE_SECONDS, self._look_seconds) if missing else SET_ASIDE_SECONDS
        self._set_aside[claim.batch_id] = asyncio.get_running_loop().time() + seconds
        self._forget(claim)

    # --- side tasks ---

    async def _watch(self, dealing: Dealing, window: Window) -> None:
        """Timeouts, cancels and deadlines, a few times a second: so soon a cancel reaches the engine."""
        while not self._final.is_set():
            dealing.look()
            await self._close_ended_batches(window)
            await rest(self._final, self._settings.poll_seconds)

    async def _close_ended_batches(self, window: Window) -> None:
        asked = {ledger.claim.batch_id for ledger in self._ledgers.values() if ledger.closing is None}
        if not asked:
            return
        try:
            async with self._database.read() as tx:
                closing = await chunks.closing(tx, asked)
        except Unavailable:
            return  # the heartbeat says so
        self._poisoned &= {ledger.claim.batch_id for ledger in self._ledgers.values()}
        for ledger in list(self._ledgers.values()):
            batch_id = ledger.claim.batch_id
            why = closing.get(batch_id) or ("poisoned" if batch_id in self._poisoned else None)
            if why is not None and ledger.closing is None and ledger.is_running():
                log.info("chunk_closing", batch_id=ledger.claim.batch_id, chunk_id=ledger.chunk_id, why=why)
                ledger.close(why)
                self._feed.remove(ledger)
                window.abort(ledger)

    # --- the end ---

    async def _wind_down(self, dealing: Dealing) -> None:
        await dealing.wind_down(self._stop_seconds)
        self._final.set()
        for ledger in self._ledgers.values():
            ledger.kick.set()

    async def _release(self) -> None:
        held = self.leases()
        self._leases.clear()
        if not held:
            return
        try:
            async with asyncio.timeout(FLUSH_SECONDS), self._database.write() as tx:
                await chunks.release(tx, held)
        except (Unavailable, TimeoutError):
            log.warning("leases_left_to_lapse", chunks=len(held))
