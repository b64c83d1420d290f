"""A process from its first log line to its exit code.

    SIGTERM, SIGINT, or the death of a task that must not die
      ├─ HTTP accepts nothing more and finishes its answers     half of server.stop_seconds
      ├─ the worker claims nothing more, finishes or gives back
      └─ then: engine, database                                  undone by app.main.build

Past `server.stop_seconds` the process is gone, whatever hangs: what was committed is durable, and the rest is done
again by whoever comes next.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import closing, contextmanager, nullcontext
from typing import Any, Protocol

import structlog
import uvicorn
from fastapi import FastAPI

import app
from app import telemetry
from app.errors import SettingsInvalid
from app.main import Parts, build, create_app, create_probes, make_folders
from app.settings import Loaded, Settings
from app.store import keys as stored_keys
from app.store.db import Database

log = structlog.get_logger()

#: Shares of `server.stop_seconds`: for answers under way, and until the process ends itself.
_HTTP_SHARE = 0.5
_LAST_RESORT_SHARE = 0.95
#: How long a thread that computes keeps the interpreter while the event loop waits for it. At Python's 5 ms each of a
#: request's trips to the database may wait so long, while a file is validated.
SWITCH_SECONDS = 0.0005
#: Signals this close together are one wish: `timeout`, make and shells signal a process and its group.
_ONE_WISH_SECONDS = 0.5


class Announcer(Protocol):
    """Told when the service can be used."""

    def listening(self, base_url: str) -> None: ...

    def ready(self) -> None: ...


def serve(loaded: Loaded, *, migrate: bool = True, announcer: Announcer | None = None) -> int:
    """Run API and, for role `all`, worker until a signal. The exit code: 0 after a stop, 1 after a death.

    Raises SettingsInvalid, also for a port that is taken, and Unavailable.
    """
    check_keys(loaded.settings)
    _begin(loaded, mode="serve")
    server = loaded.settings.server
    with closing(listen(server.host, server.port)) as listener:
        return in_loop(_serve(loaded.settings, listener, migrate=migrate, announcer=announcer))


def work(loaded: Loaded, *, migrate: bool = True) -> int:
    """Run a worker until a signal; on worker.port it tells how it is. Exit codes and errors as `serve`."""
    _begin(loaded, mode="worker")
    settings = loaded.settings
    port = settings.worker.port
    with nullcontext() if port is None else closing(listen(settings.server.host, port)) as listener:
        return in_loop(_work(settings, listener, migrate=migrate))


def migrate(settings: Settings) -> tuple[str | None, str]:
    """Bring the database to this release's revision: (before, after). Raises SettingsInvalid, Unavailable."""

    async def upgrade() -> tuple[str | None, str]:
        database = Database(settings.store_url, busy_timeout_seconds=settings.store.busy_timeout_seconds)
        try:
            before = await database.revision()
            await database.migrate()
            return before, database.head()
        finally:
            await database.close()

    make_folders(settings)
    return asyncio.run(upgrade())


def check_keys(settings: Settings) -> None:
    """Raises SettingsInvalid where others could connect and no key is asked for: none configured, none ever made.

    Raises Unavailable when only the database could tell.
    """
    if settings.loopback_only or settings.server.api_keys or asyncio.run(stored_keys_exist(settings)):
        return
    raise SettingsInvalid(
        f"server.host is {settings.server.host} but no API key is set: without a key only loopback is served. "
        "Set BATCHYARD_SERVER_API_KEYS, or make one with `batchyard keys create`, or listen on 127.0.0.1"
    )


async def stored_keys_exist(settings: Settings) -> bool:
    """Whether the database holds a key; a database that is not there yet holds none. Raises Unavailable."""
    if settings.store.url is None and not (settings.data_dir / "batchyard.db").exists():
        return False
    database = Database(settings.store_url, busy_timeout_seconds=settings.store.busy_timeout_seconds)
    try:
        async with database.read() as tx:
            return await stored_keys.exist(tx)
    finally:
        await database.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SettingsInvalid where there can be none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as exc:
        raise SettingsInvalid(f"server.host {host} is not an address of this machine: {exc.strerror}") from exc
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # Now, not when the server starts: until then a second process could bind the same port.
        listener.listen(2048)
    except OSError as exc:
        listener.close()
        raise SettingsInvalid(
            f"cannot listen on {host}:{port}: {exc.strerror}; stop what uses it, or take another with --port"
        ) from exc
    return listener


def base_url(listener: socket.socket) -> str:
    """Where a client on this machine reaches `listener`."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def _begin(loaded: Loaded, *, mode: str) -> None:
    telemetry.configure(loaded.settings.log)
    changed = {name: source for name, source in loaded.sources.items() if source != "default"}
    log.info("starting", mode=mode, version=app.version(), pid=os.getpid(), settings_from=changed)
    for variable in loaded.unknown:
        log.warning("variable_ignored", variable=variable)


def in_loop(life: Coroutine[Any, Any, int]) -> int:
    """What `life` returns, run in an event loop of its own."""
    sys.setswitchinterval(SWITCH_SECONDS)
    # uvloop where uvicorn would take it.
    with asyncio.Runner(loop_factory=uvicorn.Config(app="", log_config=None).get_loop_factory()) as runner:
        return runner.run(life)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: it would raise the signal again at the end, and lose the exit code."""

    def __init__(self, config: uvicorn.Config, *, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._started()


async def _serve(settings: Settings, listener: socket.socket, *, migrate: bool, announcer: Announcer | None) -> int:
    url = base_url(listener)
    listening = asyncio.Event()

    def started() -> None:
        log.info("listening", base_url=url, role=settings.server.role)
        listening.set()

    with _stoppable(settings.server.stop_seconds) as stop:
        async with build(settings, migrate=migrate, stop=stop) as parts:
            announcing = () if announcer is None else (_announce(announcer, url, listening, parts),)
            served = create_app(settings, parts=parts)
            _keep_for_good()
            await _answer(served, listener, parts, started, *announcing)
    return _ended(parts)


async def _answer(
    app: FastAPI,
    listener: socket.socket,
    parts: Parts,
    started: Callable[[], None],
    *beside: Coroutine[Any, Any, None],
) -> None:
    """Serve `app` until the stop, and run `beside` meanwhile."""
    config = uvicorn.Config(
        app,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, int(parts.settings.server.stop_seconds * _HTTP_SHARE)),
    )
    server = _Server(config, started=started)
    tasks = [asyncio.create_task(work) for work in (_exit_on(parts.stop, server), *beside)]
    try:
        await server.serve(sockets=[listener])
    finally:
        parts.stop.set()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _keep_for_good() -> None:
    """Hide what was imported and built from the garbage collector: a full look at it stops everything for 0.1 s."""
    gc.freeze()


async def _exit_on(stop: asyncio.Event, server: uvicorn.Server) -> None:
    await stop.wait()
    server.should_exit = True


async def _announce(announcer: Announcer, url: str, listening: asyncio.Event, parts: Parts) -> None:
    await listening.wait()
    announcer.listening(url)
    if parts.engine is None or await parts.engine.wait_ready(parts.stop):
        announcer.ready()


async def _work(settings: Settings, listener: socket.socket | None, *, migrate: bool) -> int:
    with _stoppable(settings.server.stop_seconds) as stop:
        async with build(settings, worker=True, migrate=migrate, stop=stop) as parts:
            _keep_for_good()
            if listener is None:
                await stop.wait()
            else:
                url = base_url(listener).removesuffix("/v1")
                await _answer(
                    create_probes(parts), listener, parts, lambda: log.info("listening", base_url=url, role="worker")
                )
    return _ended(parts)


def _ended(parts: Parts) -> int:
    """The exit code. Raises SettingsInvalid when that is what ended the engine."""
    task = None if parts.engine is None else parts.engine.task
    failure = task.exception() if task is not None and task.done() and not task.cancelled() else None
    if isinstance(failure, SettingsInvalid):
        log.info("stopped", exit_code=2)
        raise failure
    code = 1 if parts.failed.is_set() else 0
    log.info("stopped", exit_code=code)
    return code


@contextmanager
def _stoppable(stop_seconds: float) -> Generator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set. A second after that another signal ends the process, and so does time."""
    stop = asyncio.Event()
    asked = threading.Event()
    loop = asyncio.get_running_loop()
    first_at = 0.0

    def received(number: signal.Signals) -> None:
        nonlocal first_at
        if not asked.is_set():
            log.info("stopping", signal=number.name, stop_seconds=stop_seconds)
            first_at = loop.time()
            asked.set()
            stop.set()
        elif loop.time() - first_at > _ONE_WISH_SECONDS:
            log.error("stop_forced", signal=number.name)
            _exit(1)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received, number)
    watch = loop.create_task(_last_resort(stop, asked, stop_seconds * _LAST_RESORT_SHARE), name="last-resort")
    try:
        yield stop
    finally:
        watch.cancel()


async def _last_resort(stop: asyncio.Event, asked: threading.Event, seconds: float) -> None:
    def overdue() -> None:
        log.critical("stop_overdue", after_seconds=seconds)
        _exit(0 if asked.is_set() else 1)  # nothing durable is lost

    await stop.wait()
    # A thread, because the event loop itself may hang; it goes on until the process is gone.
    timer = threading.Timer(seconds, overdue)
    timer.daemon = True
    timer.start()


def _exit(code: int) -> None:
    sys.stderr.flush()
    os._exit(code)
