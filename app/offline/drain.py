"""The drain over one local file: the hosted worker's feed, window and engine care, with a journal where it has leases.

input ─► pieces ─► feed ─► seats (engine) ─► outbox ─► journal
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

from app.domain.chunk import Tally
from app.domain.endpoint import BATCH_ENDPOINTS
from app.domain.lines import Line
from app.domain.usage import NO_USAGE
from app.engine.supervised import SupervisedEngine
from app.errors import EngineDead
from app.offline.format import Rows
from app.offline.input import Run
from app.offline.journal import COMPLETED, FAILED, MALFORMED, Finished, Journal
from app.offline.line import Fault, request_of
from app.offline.piece import Outbox, Piece
from app.offline.progress import Meter
from app.settings import EngineSettings, WorkerSettings
from app.telemetry import LINES, TOKENS
from app.worker.dealing import Dealing
from app.worker.feed import Feed
from app.worker.ledger import Backlog
from app.worker.order import dispatch_order
from app.worker.patience import Bell, rest
from app.worker.window import Window

# Results in memory, in parts of the largest size, above which no line is dealt: the disk is slow.
_BACKLOG_PARTS = 8


class LocalDrain:
    """Runs every line of `runs` that `journal` does not hold yet.

    `engine` is started when the first line needs it, and not at all when none does; to stop it is the caller's.
    `find` finds the fault of a line. `meter` is told when the model answers, and what has become durable.
    """

    def __init__(
        self,
        *,
        runs: Iterator[Run],
        journal: Journal,
        engine: SupervisedEngine,
        rows: Rows,
        find: Callable[[Line], Fault | None],
        meter: Meter,
        engine_settings: EngineSettings,
        settings: WorkerSettings,
        stop_seconds: float,
    ) -> None:
        self._runs = runs
        self._journal = journal
        self._engine = engine
        self._rows = rows
        self._find = find
        self._meter = meter
        self._engine_settings = engine_settings
        self._settings = settings
        self._stop_seconds = stop_seconds
        self._backlog = Backlog()
        self._bell = Bell()
        self._backlog_max_bytes = _BACKLOG_PARTS * settings.part_max_bytes
        self._feed = Feed(backlog=self._backlog, backlog_max_bytes=self._backlog_max_bytes, bell=self._bell)
        self._outbox = Outbox(backlog=self._backlog, part_max_bytes=settings.part_max_bytes)
        self._final = asyncio.Event()
        self._stop = asyncio.Event()
        self._refusals: dict[str, str | None] = {}
        self._awake = False

    async def run(self, stop: asyncio.Event) -> None:
        """Until every line has ended and is durable, or `stop`; then what has ended is durable.

        Raises EngineDead when the engine will not load, SettingsInvalid when it cannot; Unavailable when the journal
        cannot be written. All of them in an ExceptionGroup.
        """
        self._stop = stop
        async with asyncio.TaskGroup() as group:
            window = Window(
                engine=self._engine,
                feed=self._feed,
                request_timeout_seconds=self._engine_settings.request_timeout_seconds,
                group=group,
            )
            dealing = Dealing(
                engine=self._engine,
                feed=self._feed,
                window=window,
                bell=self._bell,
                size=self._engine_settings.window,
                final=self._final,
            )
            group.create_task(self._watch(dealing), name="offline-watch")
            keeping = group.create_task(self._keep(), name="offline-keep")

            async def wake() -> None:
                await self._engine.start()
                group.create_task(dealing.mind_engine(), name="offline-engine")

            await self._take_in(wake, stop)
            await _either(self._outbox.idle, stop)
            await dealing.wind_down(self._stop_seconds)
            self._final.set()
            self._outbox.kick.set()
            await keeping

    async def _take_in(self, wake: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
        """Hand pieces to the feed, as it asks for them, to the end of the input; `wake` the engine for the first."""
        while not stop.is_set():
            if self._backlog.bytes > self._backlog_max_bytes or (self._awake and not self._wanting()):
                await self._bell.wait(self._settings.poll_seconds)
                continue
            piece = await asyncio.to_thread(self._next_piece)
            if piece is None:
                return
            texts, positions, paths, ended = piece
            for line in ended:
                self._outbox.put(line, ran=False)
            if not self._awake and any(path in BATCH_ENDPOINTS for path in paths):
                self._awake = True
                self._meter.loading()
                await wake()
                if await self._engine.wait_ready(stop):
                    self._meter.loaded()
            await self._add(texts, positions, paths)

    def _wanting(self) -> bool:
        return self._feed.hungry and self._feed.engine_up

    def _next_piece(self) -> tuple[list[bytes], list[int], list[str], list[Finished]] | None:
        """(texts, positions and paths of lines to run, lines that need not run) of the next run that has any."""
        for run in self._runs:
            finished = self._journal.finished(run.first, len(run.lines))
            texts, positions, paths, ended = list[bytes](), list[int](), list[str](), list[Finished]()
            for position, line in enumerate(run.lines, run.first):
                if position in finished:
                    continue
                fault = self._find(line)
                if fault is not None:
                    outcome = self._rows.unanswered(fault.custom_id, code=fault.code, message=fault.message)
                    ended.append(Finished(position, MALFORMED, outcome.row))
                elif line.text is not None:
                    texts.append(line.text)
                    positions.append(position)
                    paths.append(request_of(line.text).path)
            if texts or ended:
                return texts, positions, paths, ended
        return None

    async def _add(self, texts: Sequence[bytes], positions: Sequence[int], paths: Sequence[str]) -> None:
        """A piece of those lines whose endpoints the model serves; the others end here."""
        groups: dict[str, list[int]] = {}
        for index, path in enumerate(paths):
            groups.setdefault(path, []).append(index)
        order: list[int] = []
        for path, group in groups.items():
            refusal = await self._refusal(path)
            if refusal is None:
                found = dispatch_order([texts[index] for index in group], endpoint=path)
                order += [group[at] for at in found]
                continue
            for index in group:
                custom_id = request_of(texts[index]).custom_id
                outcome = self._rows.unanswered(custom_id, code="invalid_url", message=refusal)
                self._outbox.put(Finished(positions[index], FAILED, outcome.row), ran=False)
        self._outbox.begin(len(order))
        if order:
            self._feed.hungry = False
            piece = Piece(texts=texts, positions=positions, order=order, rows=self._rows, outbox=self._outbox)
            self._feed.add(piece)

    async def _refusal(self, path: str) -> str | None:
        """Why no line to `path` can run; None when they can."""
        if path not in BATCH_ENDPOINTS:
            # Also what the model server has and a batch has no business with: its load and unload calls, for example.
            return f"'{path[:256]}' is no endpoint of a batch. Those are: {', '.join(BATCH_ENDPOINTS)}."
        while path not in self._refusals:
            try:
                served = await self._engine.supports(path)
            except EngineDead:
                if not await self._engine.wait_ready(self._stop):
                    return None  # the run ends: nothing is dealt any more
                continue
            self._refusals[path] = None if served else f"The model does not support the endpoint '{path}'."
        return self._refusals[path]

    async def _keep(self) -> None:
        """Make what ends durable, every part_seconds, or sooner when much waits."""
        while True:
            last = self._final.is_set()
            rows, size = self._outbox.take()
            if rows:
                try:
                    await asyncio.to_thread(self._journal.append, rows)
                finally:
                    self._backlog.settle(size)
                self._count(rows)
            if last:
                return
            await rest(self._outbox.kick, self._settings.part_seconds)

    def _count(self, rows: Sequence[Finished]) -> None:
        completed = sum(row.kind == COMPLETED for row in rows)
        malformed = sum(row.kind == MALFORMED for row in rows)
        usage = sum((row.usage for row in rows if row.usage is not NO_USAGE), NO_USAGE)
        LINES.labels("completed").inc(completed)
        LINES.labels("failed").inc(len(rows) - completed)
        TOKENS.labels("input").inc(usage.input_tokens)
        TOKENS.labels("cached").inc(usage.cached_tokens)
        TOKENS.labels("output").inc(usage.output_tokens)
        self._meter.ended(Tally(completed, len(rows) - completed, 0, usage), malformed)

    async def _watch(self, dealing: Dealing) -> None:
        while not self._final.is_set():
            dealing.look()
            self._give_up()
            await rest(self._final, self._settings.poll_seconds)

    def _give_up(self) -> None:
        """A model that does not load at first never will, and nobody is there to mend it: end the run."""
        task = self._engine.task
        failure = task.exception() if task is not None and task.done() and not task.cancelled() else None
        if failure is not None:
            raise failure
        if self._engine.generation == 0 and self._engine.failure:
            raise EngineDead(f"the model does not load: {self._engine.failure}")


async def _either(*events: asyncio.Event) -> None:
    """Until one of them is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
