"""`batchyard run-batch`: the command line of an offline run, and its signals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from app.cli import options as opt
from app.errors import SettingsInvalid

if TYPE_CHECKING:
    from app.offline.run_batch import Plan
    from app.settings import Loaded

#: Signals this close together are one wish: `timeout`, make and shells signal a process and its group.
_ONE_WISH_SECONDS = 0.5

Input = Annotated[
    str, typer.Option("--input-file", "-i", metavar="IN", help="Requests, JSONL: path, -, http(s)://…, s3://…")
]
Output = Annotated[
    str, typer.Option("--output-file", "-o", metavar="OUT", help="Answers: path, -, http(s)://… (PUT), s3://…")
]
ErrorFile = Annotated[
    str | None, typer.Option("--error-file", metavar="FILE", help="Second file of --format openai: what failed.")
]
Format = Annotated[
    str, typer.Option("--format", metavar="vllm|openai", help="Rows as vLLM's run-batch or as the hosted service.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse a file with a malformed line.")]
Restart = Annotated[bool, typer.Option("--restart", help="Forget what an earlier run has done.")]
Folder = Annotated[
    Path | None,
    typer.Option("--output-tmp-dir", metavar="FOLDER", help="For the journal, when OUT is not a local file."),
]
Metrics = Annotated[bool, typer.Option("--enable-metrics", help="Serve Prometheus metrics meanwhile.")]
MetricsHost = Annotated[str, typer.Option("--host", help="Address of the metrics.")]
MetricsPort = Annotated[int, typer.Option("--port", help="Port of the metrics; 0 takes a free one.")]


def run_batch(
    context: typer.Context,
    input_file: Input,
    output_file: Output,
    error_file: ErrorFile = None,
    format_: Format = "vllm",
    strict: Strict = False,
    restart: Restart = False,
    output_tmp_dir: Folder = None,
    enable_metrics: Metrics = False,
    host: MetricsHost = "127.0.0.1",
    port: MetricsPort = 8000,
    engine: opt.Engine = None,
    model: opt.Model = None,
    config: opt.Config = None,
    sets: opt.Sets = None,
    log_level: opt.LogLevel = None,
    log_format: opt.LogFormat = None,
) -> None:
    """Run a file of requests without a server. Any further flag is passed on to vLLM, as for `vllm run-batch`.

    Exit codes: 0 every line was well formed, 1 some were not or the run broke off, 2 refused before the model loads.
    Run it again to go on where it was stopped.
    """
    from app.offline.run_batch import Plan

    if format_ not in ("vllm", "openai"):
        raise SettingsInvalid(f"--format {format_}: it is vllm or openai")
    loaded = opt.for_a_terminal(
        opt.settings_from(
            config,
            sets,
            further=context.args,
            engine__kind=engine,
            engine__model=model,
            log__level=log_level,
            log__format=log_format,
        )
    )
    plan = Plan(
        input=input_file,
        output=output_file,
        errors=error_file,
        format="openai" if format_ == "openai" else "vllm",
        strict=strict,
        restart=restart,
        folder=output_tmp_dir,
    )
    raise typer.Exit(_run(plan, _alone(loaded), metrics=(host, port) if enable_metrics else None))


def _alone(loaded: Loaded) -> Loaded:
    """Fit for a run that nobody else uses: an engine for batch lines only, and, unless somebody chose a level, warnings
    only, because the progress says what there is to say.
    """
    from app.settings import Loaded

    settings = loaded.settings
    level = settings.log.level if loaded.sources["log.level"] != "default" else "warning"
    update = {
        "server": settings.server.model_copy(update={"interactive": False}),
        "log": settings.log.model_copy(update={"level": level}),
    }
    return Loaded(settings.model_copy(update=update), loaded.sources, loaded.unknown)


def _run(plan: Plan, loaded: Loaded, *, metrics: tuple[str, int] | None) -> int:
    from app import telemetry
    from app.cli.process import in_loop
    from app.main import engine_of
    from app.offline.run_batch import run_batch

    settings = loaded.settings
    telemetry.configure(settings.log)
    console = Console(stderr=True)

    async def life() -> int:
        begun = asyncio.Event()
        with _signals(begun) as (stop, received):
            code = await run_batch(plan, settings, engine_of=engine_of, console=console, stop=stop, begun=begun)
            return 128 + received[0] if code is None and received else code or 0

    if metrics is not None:
        address = telemetry.serve_metrics(*metrics)
        console.print(f"metrics on {address}", markup=False, highlight=False)
    return in_loop(life())


@contextmanager
def _signals(begun: asyncio.Event) -> Generator[tuple[asyncio.Event, list[int]]]:
    """An event that SIGINT and SIGTERM set, and which came.

    One before `begun` ends the process (it may hang in a read), and so does a second one: what is durable stays so.
    """
    stop, received = asyncio.Event(), list[int]()
    loop = asyncio.get_running_loop()
    first_at = 0.0

    def came(number: signal.Signals) -> None:
        nonlocal first_at
        if not begun.is_set():
            _exit(number)
        elif not received:
            first_at = loop.time()
            received.append(number)
            stop.set()
        elif loop.time() - first_at > _ONE_WISH_SECONDS:
            _exit(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, came, number)
    yield stop, received


def _exit(number: signal.Signals) -> NoReturn:
    sys.stderr.flush()
    os._exit(128 + number)
