"""vLLM in this process: one AsyncLLM, and vLLM's own OpenAI app around it, called as ASGI without a socket.

A request therefore runs exactly the code of `vllm serve`, and its bytes are never parsed or written again on our side.
The engine proper (EngineCore and its workers) are processes of vLLM's; app/engine/reaper.py ends them when ours ends.
Only this module imports vllm, and only inside functions, after the environment is set.

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
import importlib
import os
import signal
import tempfile
import time
import traceback
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import structlog

from app.engine.base import Capacity, Health, Reply
from app.engine.exchange import Exchange
from app.engine.reaper import Reaper
from app.errors import EngineBusy, EngineDead, SettingsInvalid

log = structlog.get_logger()

#: How long the app may take to end a request that was aborted, before its task is cancelled.
ABORT_SECONDS = 10.0
#: How long EngineCore may take to end by itself at a stop, before it is killed.
SHUTDOWN_SECONDS = 8.0
_WATCH_SECONDS = 0.1
#: After its death vLLM ends the requests in flight by itself, within 0.25 s as measured; past this they are cancelled.
_GRACE_SECONDS = 0.5

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
    """Implements Engine over vLLM. `model` is a folder or a hub name, `arguments` any flags of `vllm serve`."""

    def __init__(self, *, model: str, arguments: Sequence[str] = ()) -> None:
        self._model = model
        self._arguments = tuple(arguments)
        self._health = Health.LOADING
        self._llm: Any = None
        self._app: Any = None
        self._loader: ThreadPoolExecutor | None = None
        self._loading: Future[tuple[Any, Namespace]] | None = None
        self._reaper: Reaper | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._calls: dict[asyncio.Task[None], Exchange] = {}
        self._supports: dict[str, bool] = {}

    @property
    def app(self) -> Any:
        """vLLM's ASGI app, for interactive routes; None unless the engine is ready."""
        return self._app if self.health() is Health.READY else None

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
        self._health = Health.READY
        self._watcher = asyncio.create_task(self._watch(llm), name="vllm-death-watch")

    async def stop(self) -> None:
        """As Engine.stop; calls in flight raise EngineDead. An import of vLLM under way (10 s) cannot be cut short."""
        self._health = Health.STOPPED
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
        """As Engine.call. Cancelled, it waits until the app has let go of the request."""
        if self.health() is not Health.READY:
            raise EngineDead(f"The engine is {self.health()}.")
        exchange = Exchange(path, body)
        task = asyncio.create_task(exchange.run(self._app))
        self._calls[task] = exchange
        task.add_done_callback(self._forget)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            exchange.disconnect()
            await self._ended(task)
            raise
        return self._reply(exchange, task)

    async def models(self) -> Sequence[str]:
        """As Engine.models: the served names and the LoRA adapters loaded now. Raises EngineDead when not ready."""
        if self.health() is not Health.READY:
            raise EngineDead(f"The engine is {self.health()}.")
        exchange = Exchange("/v1/models", method="GET")
        await exchange.run(self._app)
        return [card.id for card in msgspec.json.decode(exchange.body, type=_Models).data]

    async def supports(self, path: str) -> bool:
        """As Engine.supports: the app has only the routes that suit the model. Raises EngineDead when not ready."""
        if path not in self._supports:
            if self.health() is not Health.READY:
                raise EngineDead(f"The engine is {self.health()}.")
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
        """As Engine.health: DEAD as soon as vLLM knows, 0.1 s after EngineCore's end, 0.3 s after a worker's."""
        if self._health is Health.READY and self._llm.errored:
            return Health.DEAD
        return self._health

    def _reply(self, exchange: Exchange, task: asyncio.Task[None]) -> Reply:
        """What a finished run of the app means."""
        failure = None if task.cancelled() else task.exception()
        failed = task.cancelled() or failure is not None or exchange.status is None or exchange.status >= 500
        if self._health is Health.STOPPED or task.cancelled() or (failed and self.health() is not Health.READY):
            raise EngineDead("The engine ended with the request in flight.")
        if exchange.status == 503:
            retry_after = exchange.headers.get(b"retry-after", b"")
            seconds = int(retry_after) if retry_after.isdigit() else 5
            raise EngineBusy("The engine refused admission for now.", retry_after_seconds=seconds)
        if failure is not None:
            # The app answers 500 and raises, so that a server can log what happened.
            log.error("vllm_request_failed", path=exchange.path, exc_info=failure)
        if exchange.status is None or not exchange.body:
            error = {
                "message": "The engine gave no answer.",
                "type": "server_error",
                "param": None,
                "code": "engine_error",
            }
            return Reply(exchange.status or 500, msgspec.json.encode({"error": error}))
        return Reply(exchange.status, exchange.body)

    async def _ended(self, *tasks: asyncio.Task[None]) -> None:
        """Wait until the app's runs have ended; cancel those that do not."""
        if tasks:
            _, lasting = await asyncio.wait(tasks, timeout=ABORT_SECONDS)
            for task in lasting:
                log.warning("vllm_abort_slow", seconds=ABORT_SECONDS)
                task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._calls.pop(task, None)
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
        os.environ.update(self._reaper.environment)
        try:
            arguments = _parse(self._model, self._arguments)
            config, llm_class = _configure(arguments)
            if self._health is Health.STOPPED:
                raise EngineDead("The engine was stopped while it loaded.")
            began = time.monotonic()
            llm = _create(llm_class, config, arguments)
            log.info("vllm_loaded", model=self._model, seconds=round(time.monotonic() - began, 1))
            return llm, arguments
        finally:
            for name in self._reaper.environment:
                os.environ.pop(name, None)

    async def _build_app(self, llm: Any, arguments: Namespace) -> None:
        tasks = await llm.get_supported_tasks()
        await llm.reset_mm_cache()  # as vLLM's own server: joins the warm-up and drops its dummy data
        assert self._loader is not None
        loop = asyncio.get_running_loop()
        app, init_app_state = await loop.run_in_executor(self._loader, _assemble, llm, arguments, tasks)
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
                llm.shutdown(timeout=0 if llm.errored else SHUTDOWN_SECONDS)
                context = getattr(llm.engine_core.resources, "ctx", None)
                del llm
            self._loading = None
            self._loader.shutdown(wait=True)
        if self._reaper is not None:
            self._reaper.close()
        # AsyncLLM sits in cycles, with sockets and shared memory at their ends.
        gc.collect()
        return context


def _is_path(model: str) -> bool:
    return model.startswith(("/", "./", "../", "~"))


def _block_interrupts() -> None:
    # Starting it unblocks SIGINT in the thread that does, so it is started before.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _parse(model: str, flags: Sequence[str]) -> Namespace:
    """vLLM's own flags. Raises SettingsInvalid with vLLM's words."""
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        cli_args = _cli_args()
    except ImportError as exc:
        raise SettingsInvalid(f"vLLM cannot be imported ({exc}): install the extra `gpu` or `cpu`") from exc

    class Parser(FlexibleArgumentParser):  # type: ignore[misc, unused-ignore]
        def error(self, message: str) -> None:
            raise SettingsInvalid(f"vLLM refuses its flags: {message}")

    try:
        arguments: Namespace = cli_args.make_arg_parser(Parser()).parse_args(["--model", model, *flags])
        cli_args.validate_parsed_serve_args(arguments)
    except SystemExit as exc:
        raise SettingsInvalid("vLLM's flags asked for help instead of a server") from exc
    except (TypeError, ValueError) as exc:
        raise SettingsInvalid(f"vLLM refuses its flags: {exc}") from exc
    if arguments.headless or arguments.grpc or (arguments.api_server_count or 1) > 1:
        raise SettingsInvalid("--headless, --grpc and --api-server-count do not fit an engine in this process")
    if arguments.api_key:
        log.warning("vllm_api_key_ignored")
    arguments.api_key = None
    return arguments


def _cli_args() -> Any:
    try:
        return importlib.import_module("vllm.entrypoints.launchers.cli_args")  # 0.32
    except ModuleNotFoundError:
        return importlib.import_module("vllm.entrypoints.common.cli_args")  # 0.33


def _configure(arguments: Namespace) -> tuple[Any, Any]:
    """(engine config, AsyncLLM class). Raises SettingsInvalid when no engine can come of it."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        if arguments.tool_parser_plugin and len(arguments.tool_parser_plugin) > 3:
            ToolParserManager.import_tool_parser(arguments.tool_parser_plugin)
        if arguments.reasoning_parser_plugin and len(arguments.reasoning_parser_plugin) > 3:
            ReasoningParserManager.import_reasoning_parser(arguments.reasoning_parser_plugin)
        engine_arguments = AsyncEngineArgs.from_cli_args(arguments)
        _cli_args().propagate_flash_late_interaction(arguments, engine_arguments)
        return engine_arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER), AsyncLLM
    except Exception as exc:  # vLLM and transformers raise anything for a model they do not take
        raise SettingsInvalid(f"vLLM refuses the model {arguments.model}: {exc}") from exc


def _create(llm_class: Any, config: Any, arguments: Namespace) -> Any:
    """A loaded AsyncLLM. Raises EngineDead."""
    from vllm.usage.usage_lib import UsageContext

    try:
        return llm_class.from_vllm_config(
            vllm_config=config,
            usage_context=UsageContext.OPENAI_API_SERVER,
            enable_log_requests=arguments.enable_log_requests,
            aggregate_engine_logging=arguments.aggregate_engine_logging,
            disable_log_stats=arguments.disable_log_stats,
        )
    except Exception as exc:  # vLLM raises anything; its own log has the cause
        traceback.clear_frames(exc.__traceback__)  # they hold the half-made engine, with its threads and sockets
        raise EngineDead(f"vLLM could not load {arguments.model}: {exc}") from exc


def _assemble(llm: Any, arguments: Namespace, tasks: Any) -> tuple[Any, Any]:
    """(vLLM's app, init_app_state). Keys are checked by this service, so vLLM must not ask for its own."""
    _warm(llm)
    from vllm.entrypoints.launchers.api_server.entry import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    key = os.environ.pop("VLLM_API_KEY", None)
    try:
        return build_app(arguments, tasks, llm.model_config), init_app_state
    finally:
        if key is not None:
            os.environ["VLLM_API_KEY"] = key


def _warm(llm: Any) -> None:
    """Look up the chat template: vLLM caches it, and the first look takes a second, otherwise of the event loop."""
    with suppress(Exception):  # nothing but time depends on it
        from vllm.renderers.hf import resolve_chat_template

        resolve_chat_template(llm.renderer.tokenizer, None, None, model_config=llm.model_config)


def _routes(app: Any, path: str) -> bool:
    from starlette.routing import Match

    scope = Exchange(path).scope()
    return any(route.matches(scope)[0] is Match.FULL for route in app.routes)
