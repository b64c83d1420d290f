"""An engine that is loaded in the background, watched, and built anew when it dies.

    start ─► LOADING ─loaded─► READY ─death─► DEAD ─backoff─► LOADING ─► …
                │                               ▲
                └──────────could not load───────┘            stop, from anywhere ─► STOPPED

While it is not READY, `call` raises EngineDead at once; who has work waits with `wait_ready` before dispatching. Each
engine that became ready has its own `generation`, so that a caller can tell two deaths from two notices of one.

An engine that hangs is killed (app.engine.hang), which is a death like any other. Two ends are for the process, not for
another rebuild: settings that never worked, and too many rebuilds, each of which leaves memory and descriptors behind.
Then `task` ends with SettingsInvalid or EngineDead, and whoever owns the process ends it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import structlog

from app.engine import bridge
from app.engine.base import Capacity, Engine, Health, Interactive, Killable, Reply
from app.engine.exchange import Message, Receive, Send
from app.engine.hang import HangWatch
from app.errors import BatchyardError, EngineDead, SettingsInvalid

log = structlog.get_logger()

WATCH_SECONDS = 0.2
# An engine that lived this long was sound: the next death starts from the first backoff again.
SOUND_SECONDS = 120.0
_DOUBLINGS = 64  # doublings after which every first backoff has reached its maximum


class SupervisedEngine:
    """Keeps one engine of `build` alive. See the module.

    After each death or failed load it waits `first_backoff_seconds`, doubled each time up to `max_backoff_seconds`, and
    takes up to half off by chance. SettingsInvalid at the first load ends it; later, when the same settings have worked
    before, it waits longest at once. It builds again `rebuilds_max` times (None: without end). An engine with requests
    inside that does nothing for `hang_seconds` is killed (0: never). `on_death` is called, on the loop, within
    WATCH_SECONDS of each death.
    """

    def __init__(
        self,
        build: Callable[[], Engine],
        *,
        first_backoff_seconds: float = 1.0,
        max_backoff_seconds: float = 60.0,
        rebuilds_max: int | None = None,
        hang_seconds: float = 0,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        self._build = build
        self._rebuilds_max = rebuilds_max
        self._hang_seconds = hang_seconds
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
        self._failures = 0  # in a row
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

    async def handle(self, scope: Message, body: bytes, *, receive: Receive, send: Send) -> None:
        """As Interactive.handle, for every engine. Raises EngineDead at once while none is ready."""
        engine = self.current
        if engine is None:
            raise EngineDead(self._not_ready())
        try:
            if isinstance(engine, Interactive):
                await engine.handle(scope, body, receive=receive, send=send)
            else:
                await bridge.handle(engine, scope, body, receive=receive, send=send)
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
        rebuilds = 0
        while True:
            backoff_seconds = await self._live()
            if rebuilds == self._rebuilds_max:
                reason = f"The engine was built again {rebuilds} times, and is dead: {self.failure}"
                log.critical("engine_given_up", rebuilds=rebuilds, reason=self.failure)
                raise EngineDead(reason)
            rebuilds += 1
            log.info("engine_rebuild_scheduled", failures=self._failures, backoff_seconds=round(backoff_seconds, 2))
            await asyncio.sleep(backoff_seconds)

    async def _live(self) -> float:
        """One engine, from its load to its death; how long to wait before the next. Raises SettingsInvalid."""
        loop = asyncio.get_running_loop()
        self._health = Health.LOADING
        self._engine = engine = self._build()
        began = loop.time()
        try:
            await engine.start()
            self._models, self._capacity = await engine.models(), engine.capacity()
        except (SettingsInvalid, EngineDead) as exc:
            permanent = isinstance(exc, SettingsInvalid)
            log.error("engine_load_failed", reason=exc.message, permanent=permanent)  # noqa: TRY400 - told, not traced
            if permanent and not self.generation:
                await self._bury(engine)
                self.failure = exc.message  # in one step with the end of this task: whoever sees it sees both
                raise
            self.failure = exc.message
            await self._bury(engine)
            return self._failed(longest=permanent)
        self._announce(loop.time() - began)
        ready_since = loop.time()
        await self._watch(engine)
        if loop.time() - ready_since >= SOUND_SECONDS:
            self._failures = 0
        await self._bury(engine)
        return self._failed()

    async def _bury(self, engine: Engine) -> None:
        self._health = Health.DEAD
        await engine.stop()
        self._engine = None

    def _announce(self, load_seconds: float) -> None:
        self.generation += 1
        self.failure = None
        self._health = Health.READY
        self._suspicion.clear()
        self._ready.set()
        log.info("engine_ready", generation=self.generation, load_seconds=round(load_seconds, 2))

    async def _watch(self, engine: Engine) -> None:
        """Return when `engine` is dead."""
        hang = HangWatch(self._hang_seconds)
        while engine.health() is Health.READY:
            await self._end_hung(engine, hang)
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

    async def _end_hung(self, engine: Engine, hang: HangWatch) -> None:
        if isinstance(engine, Killable) and hang.hung(engine.pulse(), now=asyncio.get_running_loop().time()):
            log.error("engine_hung", generation=self.generation, seconds=round(hang.still_seconds, 1))
            hang.still_seconds = 0.0
            await engine.kill()

    def _suspect(self) -> None:
        """Wake the watch; an engine that admits its death gets no more calls, and nobody waits on it as ready."""
        self._suspicion.set()
        if self.health() is not Health.READY:
            self._ready.clear()

    def _failed(self, *, longest: bool = False) -> float:
        """Count a failure; the pause after it."""
        doublings = _DOUBLINGS if longest else min(self._failures, _DOUBLINGS)
        self._failures += 1
        seconds = min(self._max_backoff_seconds, self._first_backoff_seconds * 2.0**doublings)
        return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret

    def _not_ready(self) -> str:
        reason = f": {self.failure}" if self.failure else "."
        return f"The engine is {self.health()}{reason}"

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        self._ready.clear()
        self._health = Health.DEAD
        failure = task.exception()
        if not isinstance(failure, BatchyardError):
            self.failure = "The engine's supervisor failed."
            log.critical("engine_supervisor_failed", exc_info=failure)
