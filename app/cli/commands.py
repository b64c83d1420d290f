"""Every command of `batchyard`, thin: parse, call, print.

What only some commands need is imported by them: `submit` starts fast, and `doctor` runs where the server could not.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

import app
from app.cli import options as opt
from app.cli.keys import keys
from app.cli.offline import run_batch

if TYPE_CHECKING:
    from app.cli.client import Client

cli = typer.Typer(
    help=app.__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli.add_typer(keys, name="keys")

BaseUrl = Annotated[str, typer.Option("--base-url", envvar="OPENAI_BASE_URL", help="The server, ending in /v1.")]
ApiKey = Annotated[
    str | None, typer.Option("--api-key", envvar="OPENAI_API_KEY", help="Key to send.", show_default=False)
]
Output = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write the answers here.")]
Errors = Annotated[Path | None, typer.Option("--errors", metavar="FILE", help="Write the error lines here.")]
LOCAL = "http://127.0.0.1:8000/v1"


@cli.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        typer.echo(f"batchyard {app.version()}")
        raise typer.Exit


@cli.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(
    context: typer.Context,
    host: opt.Host = None,
    port: opt.Port = None,
    data_dir: opt.DataDir = None,
    engine: opt.Engine = None,
    model: opt.Model = None,
    role: opt.Role = None,
    config: opt.Config = None,
    sets: opt.Sets = None,
    log_level: opt.LogLevel = None,
    log_format: opt.LogFormat = None,
    no_migrate: opt.NoMigrate = False,
    hints: Annotated[
        bool | None, typer.Option("--hints/--no-hints", help="Print the base URL and what to try.")
    ] = None,
) -> None:
    """Run the service. Any further flag is passed on to vLLM, as for `vllm serve`."""
    from app.cli import process
    from app.cli.hints import Announcer

    loaded = opt.for_a_terminal(
        opt.settings_from(
            config,
            sets,
            further=context.args,
            server__host=host,
            server__port=port,
            server__role=role,
            data_dir=data_dir,
            engine__kind=engine,
            engine__model=model,
            log__level=log_level,
            log__format=log_format,
        )
    )
    announcer = Announcer(loaded.settings) if (sys.stdout.isatty() if hints is None else hints) else None
    raise typer.Exit(process.serve(loaded, migrate=not no_migrate, announcer=announcer))


@cli.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def worker(
    context: typer.Context,
    host: opt.Host = None,
    port: opt.WorkerPort = None,
    data_dir: opt.DataDir = None,
    engine: opt.Engine = None,
    model: opt.Model = None,
    config: opt.Config = None,
    sets: opt.Sets = None,
    log_level: opt.LogLevel = None,
    log_format: opt.LogFormat = None,
    no_migrate: opt.NoMigrate = False,
) -> None:
    """Run a worker without the API, beside `serve --role api`. Any further flag is passed on to vLLM."""
    from app.cli import process

    loaded = opt.for_a_terminal(
        opt.settings_from(
            config,
            sets,
            further=context.args,
            server__host=host,
            worker__port=port,
            data_dir=data_dir,
            engine__kind=engine,
            engine__model=model,
            log__level=log_level,
            log__format=log_format,
        )
    )
    raise typer.Exit(process.work(loaded, migrate=not no_migrate))


cli.command(name="run-batch", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(run_batch)


@cli.command()
def migrate(data_dir: opt.DataDir = None, config: opt.Config = None, sets: opt.Sets = None) -> None:
    """Bring the database to this version's tables. `serve` and `worker` do it on their own."""
    from app.cli import process

    before, after = process.migrate(opt.settings_from(config, sets, data_dir=data_dir).settings)
    typer.echo(f"the database is at {after}" + (" already" if before == after else f"; it was {before or 'empty'}"))


@cli.command()
def settings(
    data_dir: opt.DataDir = None,
    config: opt.Config = None,
    sets: opt.Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The page docs/settings.md.")] = False,
) -> None:
    """Print every setting with its value, its source and its meaning. Keys and passwords are blotted out."""
    from app.cli import listing

    if markdown:
        typer.echo(listing.as_markdown(), nl=False)
        return
    loaded = opt.settings_from(config, sets, data_dir=data_dir)
    if as_json:
        typer.echo(listing.as_json(loaded))
    else:
        listing.as_table(loaded, Console(width=None if sys.stdout.isatty() else 200))


@cli.command()
def doctor(
    host: opt.Host = None,
    port: opt.Port = None,
    data_dir: opt.DataDir = None,
    engine: opt.Engine = None,
    model: opt.Model = None,
    config: opt.Config = None,
    sets: opt.Sets = None,
) -> None:
    """Say in plain words what is wrong with the set-up. Exit code 1 when something is."""
    from app import doctor as checks

    named = partial(opt.settings_from, server__host=host, server__port=port, data_dir=data_dir)
    findings = checks.examine(lambda: named(config, sets, engine__kind=engine, engine__model=model))
    for finding in findings:
        typer.echo(finding.line())
    raise typer.Exit(1 if any(finding.wrong for finding in findings) else 0)


@cli.command()
def submit(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="Requests, JSONL.")],
    endpoint: Annotated[str | None, typer.Option("--endpoint", help="Default: the url of the first line.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Watch it to the end.")] = False,
    output: Output = None,
    errors: Errors = None,
    base_url: BaseUrl = LOCAL,
    api_key: ApiKey = None,
) -> None:
    """Upload a file and start a batch. Prints the batch's id."""
    from app.cli.client import Client, first_url

    endpoint = endpoint or first_url(file)
    with Client(base_url, api_key=api_key) as client:
        batch = client.create(client.upload(file)["id"], endpoint=endpoint)
        typer.echo(batch["id"])
        if wait or output or errors:
            raise typer.Exit(_to_the_end(client, batch["id"], output, errors))


@cli.command(name="watch")
def watch_batch(
    batch_id: Annotated[str, typer.Argument(help="Id of the batch.")],
    output: Output = None,
    errors: Errors = None,
    base_url: BaseUrl = LOCAL,
    api_key: ApiKey = None,
) -> None:
    """Show a batch's progress to its end. Exit code 1 when it did not complete."""
    from app.cli.client import Client

    with Client(base_url, api_key=api_key) as client:
        raise typer.Exit(_to_the_end(client, batch_id, output, errors))


def _to_the_end(client: Client, batch_id: str, output: Path | None, errors: Path | None) -> int:
    from app.cli.client import report, watch

    console = Console(stderr=True)
    batch = watch(client, batch_id, console=console)
    report(batch, console)
    for file_id, path in ((batch["output_file_id"], output), (batch["error_file_id"], errors)):
        if file_id and path:
            client.download(file_id, path)
            console.print(f"wrote {path}", markup=False, highlight=False)
    return 0 if batch["status"] == "completed" else 1
