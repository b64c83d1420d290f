"""An engine that is loaded in the background, watched, and built anew when it dies.

    start ─► LOADING ─loaded─► READY ─death─► DEAD ─backoff─► LOADING ─► …
                │                               ▲
                └──────────could not load───────┘            stop, from anywhere ─► STOPPED

While it is not READY, `call` raises EngineDead at once; who has work waits with `wait_ready` before dispatching. Each
engine that became ready has its own `generation`, so that a caller can tell two deaths from two notices of one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import structlog

from app.engine.base import Capacity, Engine, Health, Reply
from app.errors import EngineDead, SettingsInvalid

log = structlog.get_logger()

WATCH_SECONDS = 0.2
# An engine that lived this long was sound: the next death starts from the first backoff again.
SOUND_SECONDS = 120.0
_PERMANENT = 64  # doublings after which every first backoff has reached its maximum


class SupervisedEngine:
    """Keeps one engine of `build` alive. See the module.

    After each death or failed load it waits `first_backoff_seconds`, doubled each time up to `max_backoff_seconds`, and
    takes up to half off by chance; after SettingsInvalid, which time seldom heals, it waits longest at once. `on_death`
    is called, on the loop, within WATCH_SECONDS of each death.
    """

    def __init__(
        self,
        build: Callable[[], Engine],
        *,
        first_backoff_seconds: float = 1.0,
        max_backoff_seconds: float = 60.0,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        self._build = build
        self._first_backoff_seconds = first_backoff_seconds
        self._max_backoff_seconds = max_backoff_seconds
        self._on_death = on_death
        self._engine: Engine | None = None
        self._health = Health.LOADING
        self._ready = asyncio.Event()
        self._suspicion = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._models: Sequence[str] | None = None
        self._capacity: Capacity | None = None
        self._supports: dict[str, bool] = {}
        self.generation = 0
        self.failure: str | None = None

    @property
    def current(self) -> Engine | None:
        """The engine that answers now; None while there is none."""
        return self._engine if self.health() is Health.READY else None

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that watches and rebuilds. Only `stop` ends it, or a defect: whoever owns the process watches it."""
        return self._task

    async def start(self) -> None:
        """Launch the load and return at once. Why it does not get ready stands in `failure` and in the log."""
        self._task = asyncio.create_task(self._supervise(), name="engine-supervisor")
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End the rebuild and the engine. Idempotent."""
        self._health = Health.STOPPED
        self._ready.clear()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.stop()

    async def wait_ready(self, stop: asyncio.Event | None = None) -> bool:
        """True once the engine is ready; False when `stop` is set, or this engine is stopped, first."""
        while self.current is None:
            if self._task is None or self._task.done() or (stop is not None and stop.is_set()):
                return False
            self._suspect()
            waits = [asyncio.create_task(self._ready.wait(), name="engine-wait-ready")]
            if stop is not None:
                waits.append(asyncio.create_task(stop.wait(), name="engine-wait-stop"))
            try:
                await asyncio.wait([*waits, self._task], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        return True

    async def call(self, path: str, body: bytes) -> Reply:
        """As Engine.call. Raises EngineDead at once while no engine is ready."""
        engine = self.current
        if engine is None:
            raise EngineDead(self._not_ready())
        try:
            return await engine.call(path, body)
        except EngineDead:
            self._suspect()
            raise

    async def models(self) -> Sequence[str]:
        """As Engine.models; the last answer during a rebuild. Raises EngineDead before it was first ready."""
        engine = self.current
        if engine is not None:
            self._models = await engine.models()
        if self._models is None:
            raise EngineDead(self._not_ready())
        return self._models

    async def supports(self, path: str) -> bool:
        """As Engine.supports; remembered. Raises EngineDead when asked first while no engine is ready."""
        if path not in self._supports:
            engine = self.current
            if engine is None:
                raise EngineDead(self._not_ready())
            self._supports[path] = await engine.supports(path)
        return self._supports[path]

    def capacity(self) -> Capacity:
        """As Engine.capacity; the last answer during a rebuild. Raises EngineDead before it was first ready."""
        if self._capacity is None:
            raise EngineDead(self._not_ready())
        return self._capacity

    def health(self) -> Health:
        """The state now: an engine that died says so here before the watch has noticed."""
        if self._health is Health.READY and self._engine is not None:
            return self._engine.health()
        return self._health

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            permanent = False
            self._health = Health.LOADING
            self._engine = engine = self._build()
            began = loop.time()
            try:
                await engine.start()
                self._models, self._capacity = await engine.models(), engine.capacity()
            except (SettingsInvalid, EngineDead) as exc:
                self.failure = exc.message
                permanent = isinstance(exc, SettingsInvalid)
                log.error("engine_load_failed", reason=exc.message, permanent=permanent)  # noqa: TRY400 - told, not traced
            else:
                self._announce(loop.time() - began)
                ready_since = loop.time()
                await self._watch(engine)
                if loop.time() - ready_since >= SOUND_SECONDS:
                    failures = 0
            self._health = Health.DEAD
            await engine.stop()
            self._engine = None
            backoff_seconds = self._backoff(_PERMANENT if permanent else failures)
            failures += 1
            log.info("engine_rebuild_scheduled", failures=failures, backoff_seconds=round(backoff_seconds, 2))
            await asyncio.sleep(backoff_seconds)

    def _announce(self, load_seconds: float) -> None:
        self.generation += 1
        self.failure = None
        self._health = Health.READY
        self._suspicion.clear()
        self._ready.set()
        log.info("engine_ready", generation=self.generation, load_seconds=round(load_seconds, 2))

    async def _watch(self, engine: Engine) -> None:
        """Return when `engine` is dead."""
        while engine.health() is Health.READY:
            self._suspicion.clear()
            try:
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._suspicion.wait()
            except TimeoutError:
                continue
            if engine.health() is Health.READY:
                # The engine let a call down before it admits its death: look again soon, but no busy loop.
                await asyncio.sleep(WATCH_SECONDS / 10)
        self._ready.clear()
        self._health = Health.DEAD
        self.failure = "The engine died."
        log.error("engine_died", generation=self.generation)
        if self._on_death is not None:
            self._on_death()

    def _suspect(self) -> None:
        """Wake the watch; an engine that admits its death gets no more calls, and nobody waits on it as ready."""
        self._suspicion.set()
        if self.health() is not Health.READY:
            self._ready.clear()

    def _backoff(self, failures: int) -> float:
        seconds = min(self._max_backoff_seconds, self._first_backoff_seconds * 2.0 ** min(failures, _PERMANENT))
        return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret

    def _not_ready(self) -> str:
        reason = f": {self.failure}" if self.failure else "."
        return f"The engine is {self.health()}{reason}"

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        self._ready.clear()
        self._health = Health.DEAD
        self.failure = "The engine's supervisor failed."
        log.critical("engine_supervisor_failed", exc_info=task.exception())
