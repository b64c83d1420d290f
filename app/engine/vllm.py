"""vLLM in this process: one AsyncLLM, and vLLM's own OpenAI app around it, called as ASGI without a socket.

A request therefore runs exactly the code of `vllm serve`, and its bytes are never parsed or written again on our side.
The engine proper (EngineCore and its workers) are processes of vLLM's; app/engine/reaper.py ends them when ours ends.
What is called of vLLM stands in app/engine/vllm_library.py.

Surprises that shape the code:

- Loading blocks for 15 s and more: it runs in a thread. Children inherit that thread's signal mask, and SIGINT is
  blocked there: Ctrl-C reaches the whole process group, and must not kill the engine before we have drained it.
- Cancelling the task that runs the app leaves the request alive in the engine. Only `http.disconnect` aborts it, and
  the app then answers 200 with the body `null`, which is nobody's result.
- A dead engine is an exception from the app or a 500, depending on where the request was.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import structlog

from app.domain.endpoint import SPEECH
from app.domain.speech import request_of
from app.engine import vllm_library as library
from app.engine.base import Capacity, Health, Pulse, Reply
from app.engine.exchange import Exchange, Message, Receive, Send, Visit
from app.engine.media import MediaRules, form_of
from app.engine.reaper import Reaper
from app.engine.vigil import Vigil
from app.errors import EngineBusy, EngineDead, InvalidRequest, SettingsInvalid

log = structlog.get_logger()

#: How long the app may take to end a request that was aborted, before its task is cancelled.
ABORT_SECONDS = 10.0
#: How long EngineCore may take to end by itself at a stop, before it is killed.
SHUTDOWN_SECONDS = 8.0
_WATCH_SECONDS = 0.1
#: After its death vLLM ends the requests in flight by itself, within 0.25 s as measured; past this they are cancelled.
_GRACE_SECONDS = 0.5
#: A client's request that ended so shortly before a death may have been its cause.
_COMPANY_SECONDS = 1.0

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # A worker with nothing left to do still waits this long for its signal; the default is 5.
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",
    # vLLM's loggers propagate to ours.
    "VLLM_CONFIGURE_LOGGING": "0",
}


class _Models(msgspec.Struct):
    class Card(msgspec.Struct):
        id: str

    data: list[Card]


class VllmEngine:
    """Implements Engine over vLLM. `model` is a folder or a hub name, `arguments` any flags of `vllm serve`.

    `media` rules what is downloaded for a request. `yielding`: batches stand aside while a client waits.
    """

    def __init__(
        self, *, model: str, arguments: Sequence[str] = (), media: MediaRules | None = None, yielding: bool = False
    ) -> None:
        self._model = model
        self._arguments = tuple(arguments)
        self._media = media or MediaRules()
        self._yielding = yielding
        self._health = Health.LOADING
        self._llm: Any = None
        self._app: Any = None
        self._loader: ThreadPoolExecutor | None = None
        self._loading: Future[tuple[Any, Namespace]] | None = None
        self._reaper: Reaper | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._calls: dict[asyncio.Task[None], Exchange | Visit] = {}
        self._supports: dict[str, bool] = {}
        self._steps = library.Steps()
        self._stopping: asyncio.Task[None] | None = None
        self._vigil: Vigil | None = None
        self._put_down = False
        self._killed: bool | None = None
        self._visited_at = float("-inf")

    async def start(self) -> None:
        """As Engine.start. SettingsInvalid: flags or a model that vLLM refuses. EngineDead: it could not load."""
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="vllm-load", initializer=_block_interrupts)
        self._loading = self._loader.submit(self._load)
        llm, arguments = await asyncio.wrap_future(self._loading)
        try:
            await self._build_app(llm, arguments)
        except Exception as exc:  # whatever vLLM's set-up raises, the engine cannot serve
            raise EngineDead(f"vLLM's app could not be built: {exc}") from exc
        if self._health is Health.STOPPED:
            raise EngineDead("The engine was stopped while it loaded.")
        self._llm = llm
        gc.freeze()  # a full collection that looks at all that vLLM loads stops this process for a second
        self._health = Health.READY
        self._watcher = asyncio.create_task(self._watch(llm), name="vllm-death-watch")
        if self._reaper is not None:
            pids = await asyncio.to_thread(self._reaper.carriers, named="VLLM::")
            self._vigil = Vigil(pids, ended=self._lost)

    async def stop(self) -> None:
        """As Engine.stop; calls in flight raise EngineDead. An import of vLLM under way (10 s) cannot be cut short."""
        self._was_killed()
        if self._vigil is not None:
            self._vigil.close()
        self._health = Health.STOPPED
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name="vllm-stop")
        # Whoever gives up waiting for it does not end it half way.
        await asyncio.shield(self._stopping)

    async def kill(self) -> None:
        """As Killable.kill: vLLM then ends the calls in flight as after any death."""
        self._put_down = True
        self._health = Health.DEAD
        if self._reaper is not None:
            await asyncio.to_thread(self._reaper.kill)

    def pulse(self) -> Pulse:
        """As Killable.pulse. Inside: what has been tokenised and has no full answer yet. A beat is a step of vLLM's."""
        if self._llm is None:
            return Pulse(0, self._steps.count)
        return Pulse(self._llm.output_processor.get_num_unfinished_requests(), self._steps.count)

    async def _stop(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        for exchange in self._calls.values():
            exchange.disconnect()
        await self._ended(*self._calls)
        # vLLM cancels it last, and meanwhile it reports the end of EngineCore as a fault, with a traceback.
        handler = getattr(self._llm, "output_handler", None)
        if handler is not None:
            handler.cancel()
        self._app = self._llm = None
        context = await asyncio.to_thread(self._end)
        if context is not None:
            # vLLM leaves it to the collector, with its threads and descriptors. Its sockets belong to this thread; the
            # open ones are closed by a callback that `_end` has scheduled.
            await asyncio.sleep(0)
            context.destroy(linger=0)

    async def call(self, path: str, body: bytes) -> Reply:
        """As Engine.call. Cancelled, it waits until the app has let go of the request.

        The lines of the audio endpoints become forms; what they name is downloaded first.
        """
        self._check_ready()
        content_type = "application/json"
        if path in SPEECH:
            try:
                body, content_type = await form_of(request_of(body), rules=self._media)
            except InvalidRequest as exc:
                return _refusal(exc)
            self._check_ready()
        exchange = Exchange(path, body, content_type=content_type)
        # Behind the clients who wait.
        task = asyncio.create_task(exchange.run(self._app), context=library.as_batch())
        await self._run(task, exchange)
        return self._reply(exchange, task)

    async def handle(self, scope: Message, body: bytes, *, receive: Receive, send: Send) -> None:
        """As Interactive.handle."""
        self._check_ready()
        visit = Visit(scope, body, receive=receive, send=send)
        task = asyncio.create_task(visit.run(self._app))
        await self._run(task, visit)
        failure = None if task.cancelled() else task.exception()
        if not visit.started and (task.cancelled() or self.health() is not Health.READY):
            raise EngineDead("The engine ended with the request in flight.") from failure
        if failure is not None:
            raise failure

    async def _run(self, task: asyncio.Task[None], exchange: Exchange | Visit) -> None:
        """Wait for the app's run. Cancelled, tell the app, and wait until it has let go."""
        self._calls[task] = exchange
        task.add_done_callback(self._forget)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            exchange.disconnect()
            await self._ended(task)
            raise

    def _check_ready(self) -> None:
        if self.health() is not Health.READY:
            raise EngineDead(f"The engine is {self.health()}.")

    async def models(self) -> Sequence[str]:
        """As Engine.models: the served names and the LoRA adapters loaded now. Raises EngineDead when not ready."""
        self._check_ready()
        exchange = Exchange("/v1/models", method="GET")
        await exchange.run(self._app)
        return [card.id for card in msgspec.json.decode(exchange.body, type=_Models).data]

    async def supports(self, path: str) -> bool:
        """As Engine.supports: the app has only the routes that suit the model. Raises EngineDead when not ready."""
        if path not in self._supports:
            self._check_ready()
            self._supports[path] = _routes(self._app, path)
        return self._supports[path]

    def capacity(self) -> Capacity:
        """As Engine.capacity. Raises EngineDead when not ready.

        `concurrent` is what the scheduler runs at once: max_num_seqs on each data-parallel rank. The window is twice
        that, at least 64: behind each running request one more waits inside the engine, so that a seat is filled in the
        step it falls free, and a pause of ours (100 ms while a part is committed) starves nothing unless all running
        requests end within it. vLLM's run_batch keeps at least 1,024; but each line in flight holds its body, its
        prompt's tokens and its growing answer in two processes, and runs again if the engine dies: more buys nothing.
        """
        if self._llm is None:
            raise EngineDead(f"The engine is {self.health()}.")
        config = self._llm.vllm_config
        concurrent = int(config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size)
        return Capacity(concurrent=concurrent, window=max(64, 2 * concurrent))

    def health(self) -> Health:
        """As Engine.health: DEAD as soon as one of its processes has ended, or vLLM says so."""
        if self._health is Health.READY and self._llm.errored:
            return Health.DEAD
        return self._health

    def _reply(self, exchange: Exchange, task: asyncio.Task[None]) -> Reply:
        """What a finished run of the app means."""
        failure = None if task.cancelled() else task.exception()
        failed = task.cancelled() or failure is not None or exchange.status is None or exchange.status >= 500
        if self._health is Health.STOPPED or task.cancelled() or (failed and self.health() is not Health.READY):
            raise EngineDead("The engine ended with the request in flight.", killed=self._was_killed())
        if exchange.status == 503:
            retry_after = exchange.headers.get(b"retry-after", b"")
            seconds = int(retry_after) if retry_after.isdigit() else 5
            raise EngineBusy("The engine refused admission for now.", retry_after_seconds=seconds)
        if failure is not None:
            # The app answers 500 and raises, so that a server can log what happened.
            log.error("vllm_request_failed", path=exchange.path, exc_info=failure)
        if exchange.status is None or not exchange.body:
            refusal = _error("The engine gave no answer.", type_="server_error", code="engine_error")
            return Reply(exchange.status or 500, refusal)
        return Reply(exchange.status, exchange.body)

    def _lost(self) -> None:
        """A process of the engine is gone. vLLM finds that out too, but a worker's end only by its EngineCore's."""
        if self._health is Health.READY:
            # An EngineCore that fails says so before it ends its workers; this one has lost a worker.
            lost_worker = not self._llm.errored and None in library.exit_codes(self._llm)
            self._health = Health.DEAD
            self._killed = True if lost_worker and not self._put_down else None
            log.error("vllm_process_lost", in_flight=len(self._calls))

    def _was_killed(self) -> bool:
        """The engine is dead, and not by its own doing, or perhaps by that of a client's request.

        Somebody sent SIGKILL to EngineCore: not we, and not vLLM, which asks first. Or a worker went before it.
        """
        if self._killed is None and self._llm is not None and self.health() is not Health.READY:
            company = any(isinstance(exchange, Visit) for exchange in self._calls.values())
            company = company or asyncio.get_running_loop().time() - self._visited_at < _COMPANY_SECONDS
            killed = not self._put_down and -signal.SIGKILL in library.exit_codes(self._llm)
            self._killed = killed or company
        return bool(self._killed)

    async def _ended(self, *tasks: asyncio.Task[None]) -> None:
        """Wait until the app's runs have ended; cancel those that do not."""
        if tasks:
            _, lasting = await asyncio.wait(tasks, timeout=ABORT_SECONDS)
            for task in lasting:
                log.warning("vllm_abort_slow", seconds=ABORT_SECONDS)
                task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        if isinstance(self._calls.pop(task, None), Visit):
            self._visited_at = asyncio.get_running_loop().time()
        if not task.cancelled():
            task.exception()  # seen: an aborted request's error is nobody's

    async def _watch(self, llm: Any) -> None:
        while not llm.errored:  # noqa: ASYNC110 - vLLM offers no event
            await asyncio.sleep(_WATCH_SECONDS)
        log.error("vllm_died", in_flight=len(self._calls))
        await asyncio.sleep(_GRACE_SECONDS)
        for task in tuple(self._calls):
            task.cancel()

    def _load(self) -> tuple[Any, Namespace]:
        """In the loader's thread."""
        if _is_path(self._model) and not Path(self._model).is_dir():
            raise SettingsInvalid(f"there is no model in {self._model}")
        folder = Path(tempfile.mkdtemp(prefix="batchyard-"))
        self._reaper = Reaper(folder=folder)
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if Path(self._model).is_dir():
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
        # Not for the user to choose: a forked child would hold our sockets, our locks and the reaper's pipe.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        # ZeroMQ leaves its socket files behind; here they go with the folder.
        os.environ["VLLM_RPC_BASE_PATH"] = str(folder)
        lasting = os.environ.get("TMPDIR")
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}")
        # Our own is chosen by now; that of the children goes with them, but for what is worth keeping.
        os.environ.update(self._reaper.environment | {"TMPDIR": str(folder)})
        try:
            library.guard_media(self._media)
            arguments = library.parse(self._model, self._arguments)
            config, llm_class = library.configure(arguments, yielding=self._yielding)
            if self._health is Health.STOPPED:
                raise EngineDead("The engine was stopped while it loaded.")
            began = time.monotonic()
            llm = library.create(llm_class, config, arguments, steps=self._steps)
            log.info("vllm_loaded", model=self._model, seconds=round(time.monotonic() - began, 1))
            return llm, arguments
        finally:
            for name in (*self._reaper.environment, "TMPDIR"):
                os.environ.pop(name, None)
            if lasting is not None:
                os.environ["TMPDIR"] = lasting

    async def _build_app(self, llm: Any, arguments: Namespace) -> None:
        library.rank(llm)
        tasks = await llm.get_supported_tasks()
        await llm.reset_mm_cache()  # as vLLM's own server: joins the warm-up and drops its dummy data
        assert self._loader is not None
        loop = asyncio.get_running_loop()
        app, init_app_state = await loop.run_in_executor(self._loader, library.assemble, llm, arguments, tasks)
        await init_app_state(llm, app.state, arguments, tasks)
        # Without it, a dead engine shows as an AttributeError instead of a 500.
        app.state.server = SimpleNamespace(should_exit=False)
        self._app = app

    def _end(self) -> Any:
        """Blocking half of `stop`: ends every process of the engine. Returns its ZeroMQ context, if it got so far."""
        context = None
        if self._loading is not None and self._loader is not None:
            while not self._loading.done():
                # vLLM gives up on the load when its children are gone.
                if self._reaper is not None:
                    self._reaper.kill()
                time.sleep(_WATCH_SECONDS)
            if not self._loading.cancelled() and self._loading.exception() is None:
                llm, _ = self._loading.result()
                llm.shutdown(timeout=0 if llm.errored or self._put_down else SHUTDOWN_SECONDS)
                context = getattr(llm.engine_core.resources, "ctx", None)
                del llm
            self._loading = None
            self._loader.shutdown(wait=True)
        if self._reaper is not None:
            self._reaper.close()
        # AsyncLLM sits in cycles, with sockets and shared memory at their ends.
        gc.unfreeze()
        gc.collect()
        return context


def _is_path(model: str) -> bool:
    return model.startswith(("/", "./", "../", "~"))


def _block_interrupts() -> None:
    # Starting it unblocks SIGINT in the thread that does, so it is started before.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _refusal(exc: InvalidRequest) -> Reply:
    return Reply(exc.status, _error(exc.message, type_=exc.type, code=exc.code, param=exc.param or "file_url"))


def _error(message: str, *, type_: str, code: str | None, param: str | None = None) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": type_, "param": param, "code": code}})


def _routes(app: Any, path: str) -> bool:
    from starlette.routing import Match

    scope = Exchange(path).scope()
    return any(route.matches(scope)[0] is Match.FULL for route in app.routes)
