"""vLLM as a library: the one module that imports it, only inside functions, after the environment is set.

Three things are put around what vLLM gives:

- Priority. Every request enters the engine with the priority of the context it runs in, BATCH inside `as_batch` and
  INTERACTIVE elsewhere; what a body asks for never gets through. The bodies stay as they are.
- Yielding. While a client's request is under way, those of batches stand aside inside the scheduler.
- Media. Whatever vLLM would download for a request is downloaded by app/engine/media.py, under this service's rules.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import traceback
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import cache
from typing import Any

import structlog

from app.engine.media import MediaRules, fetch
from app.engine.yielding import BATCH, INTERACTIVE, YieldingSteps
from app.errors import EngineDead, InvalidRequest, SettingsInvalid

log = structlog.get_logger()

_priority: ContextVar[int] = ContextVar("batchyard_priority", default=INTERACTIVE)

_CONNECTOR = "batchyard"

#: Of requests and httpx, which the hub's client uses and which are no ConnectionError of Python's.
_NETWORK_ERRORS = frozenset({"ConnectionError", "ConnectError", "ConnectTimeout", "ReadTimeout", "ProxyError"})


def as_batch() -> Context:
    """A copy of the current context in which requests are a batch's."""
    context = copy_context()
    context.run(_priority.set, BATCH)
    return context


def parse(model: str, flags: Sequence[str]) -> Namespace:
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
    if arguments.allowed_local_media_path:
        raise SettingsInvalid("--allowed-local-media-path would let every caller read those files; name URLs instead")
    if arguments.api_key:
        log.warning("vllm_api_key_ignored")
    arguments.api_key = None
    return arguments


def _cli_args() -> Any:
    try:
        return importlib.import_module("vllm.entrypoints.launchers.cli_args")  # 0.32
    except ModuleNotFoundError:
        return importlib.import_module("vllm.entrypoints.common.cli_args")  # 0.33


def configure(arguments: Namespace, *, yielding: bool = False) -> tuple[Any, Any]:
    """(engine config, AsyncLLM class). `yielding`: batches stand aside for clients, where priorities are looked at.

    Raises SettingsInvalid when no engine can come of it."""
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
        config = engine_arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    except Exception as exc:  # vLLM and transformers raise anything for a model they do not take
        if _unreachable(exc):
            raise EngineDead(f"the model {arguments.model} cannot be fetched now: {exc}") from exc
        raise SettingsInvalid(f"vLLM refuses the model {arguments.model}: {exc}") from exc
    scheduler = config.scheduler_config
    if yielding and scheduler.policy == "priority" and scheduler.scheduler_cls is None:
        scheduler.scheduler_cls = f"{__name__}.{_YIELDING[bool(scheduler.async_scheduling)]}"
    return config, AsyncLLM


def _unreachable(exc: BaseException | None) -> bool:
    """The cause is a hub or a network that does not answer, and not the model's name or a wish to stay offline."""
    while exc is not None:
        if type(exc).__name__ == "OfflineModeIsEnabled":  # a ConnectionError
            return False
        if isinstance(exc, (ConnectionError, TimeoutError)) or type(exc).__name__ in _NETWORK_ERRORS:
            return True
        exc = exc.__cause__ or exc.__context__
    return False


class Steps:
    """How often anything came out of an engine: each step of its scheduler that did something for a request."""

    def __init__(self) -> None:
        self.count = 0


def _counter(steps: Steps) -> Any:
    """What vLLM calls a stat logger: told of every step, also where its own statistics are switched off."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Counter(StatLoggerBase):  # type: ignore[misc, unused-ignore]
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def record(self, *_: Any, **__: Any) -> None:
            steps.count += 1

        def log_engine_initialized(self) -> None: ...

    return Counter


def exit_codes(llm: Any) -> list[int | None]:
    """Of the processes of EngineCore, as multiprocessing tells them: None while it runs, -9 after SIGKILL."""
    manager = llm.engine_core.resources.engine_manager
    return [process.exitcode for process in getattr(manager, "processes", ())]


def create(llm_class: Any, config: Any, arguments: Namespace, *, steps: Steps) -> Any:
    """A loaded AsyncLLM, whose work `steps` counts. Raises EngineDead."""
    from vllm.usage.usage_lib import UsageContext

    try:
        return llm_class.from_vllm_config(
            vllm_config=config,
            usage_context=UsageContext.OPENAI_API_SERVER,
            enable_log_requests=arguments.enable_log_requests,
            aggregate_engine_logging=arguments.aggregate_engine_logging,
            disable_log_stats=arguments.disable_log_stats,
            stat_loggers=[_counter(steps)],
        )
    except Exception as exc:  # vLLM raises anything; its own log has the cause
        traceback.clear_frames(exc.__traceback__)  # they hold the half-made engine, with its threads and sockets
        raise EngineDead(f"vLLM could not load {arguments.model}: {exc}") from exc


def assemble(llm: Any, arguments: Namespace, tasks: Any) -> tuple[Any, Any]:
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


def rank(llm: Any) -> None:
    """Let every request enter `llm` with the priority of its context."""
    for name in ("generate", "encode"):
        setattr(llm, name, _ranked(getattr(llm, name)))


def _ranked(run: Callable[..., AsyncGenerator[Any]]) -> Callable[..., AsyncGenerator[Any]]:
    def ranked(*arguments: Any, **fields: Any) -> AsyncGenerator[Any]:
        return run(*arguments, **fields | {"priority": _priority.get()})

    return ranked


def guard_media(rules: MediaRules) -> None:
    """Let vLLM download media by `rules` from now on, in this process."""
    from vllm.exceptions import VLLMValidationError
    from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector

    class Connection:
        """What the connector calls for http and https."""

        async def async_get_bytes(self, url: str, *, max_bytes: int | None = None, **_: Any) -> bytes:
            try:
                return await fetch(url, rules=rules, max_bytes=max_bytes)
            except InvalidRequest as exc:
                raise VLLMValidationError(exc.message, parameter="url") from exc

        def get_bytes(self, url: str, *, max_bytes: int | None = None, **_: Any) -> bytes:
            # The server only uses the other one; this one must not be a way around the rules.
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(asyncio.run, self.async_get_bytes(url, max_bytes=max_bytes)).result()

    class Guarded(MediaConnector):  # type: ignore[misc, unused-ignore]
        def __init__(self, media_io_kwargs: Any = None, *_: Any, **options: Any) -> None:
            options.pop("connection", None)
            super().__init__(media_io_kwargs, Connection(), **options)

        def _load_file_url(self, *_: Any) -> Any:
            raise VLLMValidationError("A file: URL would name a file of the server; it is not read.", parameter="url")

    MEDIA_CONNECTOR_REGISTRY.register(_CONNECTOR)(Guarded)
    os.environ["VLLM_MEDIA_CONNECTOR"] = _CONNECTOR


#: The schedulers below, as vLLM looks them up: with and without its asynchronous steps.
_YIELDING = {True: "YieldingAsyncScheduler", False: "YieldingScheduler"}


def __getattr__(name: str) -> Any:
    # EngineCore looks its scheduler up by this module's name and the class's; vLLM must not be imported before.
    if name in _YIELDING.values():
        return _yielding(asynchronous=name == _YIELDING[True])
    raise AttributeError(name)


@cache
def _yielding(*, asynchronous: bool) -> Any:
    """vLLM's own scheduler with the steps of app/engine/yielding.py."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.request_queue import create_request_queue
    from vllm.v1.core.sched.scheduler import Scheduler

    bases = (YieldingSteps, AsyncScheduler if asynchronous else Scheduler)
    return type(_YIELDING[asynchronous], bases, {"new_queue": staticmethod(create_request_queue)})
