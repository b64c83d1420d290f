"""`batchyard keys`: make, list and end API keys, straight on the database. A running server follows within seconds."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from app.cli import options as opt
from app.domain.project import DEFAULT_PROJECT

if TYPE_CHECKING:
    from app.domain.key import ApiKey
    from app.service.keys import KeyService
    from app.settings import Settings

T = TypeVar("T")

keys = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True)

_MEANINGS = "0 lifts the limit of the settings; without the flag that one holds."
Project = Annotated[str, typer.Option("--project", help="Its files and batches are seen by its keys only.")]
OpenBatches = Annotated[int | None, typer.Option("--open-batches", help=f"Batches at once. {_MEANINGS}")]
QueuedRequests = Annotated[int | None, typer.Option("--queued-requests", help="Their unanswered requests.")]
EnqueuedTokens = Annotated[int | None, typer.Option("--enqueued-tokens", help="Their estimated tokens.")]
StoredBytes = Annotated[int | None, typer.Option("--stored-bytes", help="Bytes of the project's files.")]
PerMinute = Annotated[int | None, typer.Option("--requests-per-minute", help="Calls of the API with this key.")]


@keys.command()
def create(
    project: Project = DEFAULT_PROJECT,
    name: Annotated[str, typer.Option("--name", help="To tell it from the others.")] = "",
    open_batches: OpenBatches = None,
    queued_requests: QueuedRequests = None,
    enqueued_tokens: EnqueuedTokens = None,
    stored_bytes: StoredBytes = None,
    requests_per_minute: PerMinute = None,
    data_dir: opt.DataDir = None,
    config: opt.Config = None,
    sets: opt.Sets = None,
) -> None:
    """Make a key and print it, this once: only its digest is kept."""
    asked = {
        "open_batches": open_batches,
        "queued_requests": queued_requests,
        "enqueued_tokens": enqueued_tokens,
        "stored_bytes": stored_bytes,
        "requests_per_minute": requests_per_minute,
    }
    quotas = {quota: limit for quota, limit in asked.items() if limit is not None}
    settings = opt.settings_from(config, sets, data_dir=data_dir).settings
    key, made = _on(settings, lambda service: service.create(project_id=project, name=name, quotas=quotas), make=True)
    typer.echo(key)
    typer.echo(f"{made.id} of project {made.project_id}. Keep the key: it is not shown again.", err=True)


@keys.command(name="list")
def list_keys(
    project: Annotated[str | None, typer.Option("--project", help="Only this project's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    data_dir: opt.DataDir = None,
    config: opt.Config = None,
    sets: opt.Sets = None,
) -> None:
    """Show every key that was made, revoked ones too. Keys of the settings are not among them."""
    settings = opt.settings_from(config, sets, data_dir=data_dir).settings
    found = _on(settings, lambda service: service.every(project_id=project))
    if as_json:
        typer.echo(json.dumps([_row(key) for key in found], indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("id", "project", "key", "name", "made", "revoked", "quotas"):
        table.add_column(heading, no_wrap=heading == "id")
    for key in found:
        limits = ", ".join(f"{name}={limit}" for name, limit in key.quotas.items())
        table.add_row(key.id, key.project_id, key.hint, key.name, _day(key.created_at), _day(key.revoked_at), limits)
    Console(width=None if sys.stdout.isatty() else 200, markup=False, highlight=False).print(table)


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as `keys list` shows it.")],
    data_dir: opt.DataDir = None,
    config: opt.Config = None,
    sets: opt.Sets = None,
) -> None:
    """End a key. Within 5 seconds every server refuses it."""
    settings = opt.settings_from(config, sets, data_dir=data_dir).settings
    ended = _on(settings, lambda service: service.revoke(key_id))
    typer.echo(f"{ended.id} ({ended.hint}) of project {ended.project_id} is revoked")


def _on(settings: Settings, work: Callable[[KeyService], Awaitable[T]], *, make: bool = False) -> T:
    """`work` on the keys of the database; `make` prepares one that is not there yet."""
    from app.main import key_service, make_folders
    from app.store.db import Database

    async def run() -> T:
        database = Database(settings.store_url, busy_timeout_seconds=settings.store.busy_timeout_seconds)
        try:
            await (database.migrate() if make else database.check())
            return await work(key_service(settings, database))
        finally:
            await database.close()

    if make:
        make_folders(settings)
    return asyncio.run(run())


def _row(key: ApiKey) -> dict[str, object]:
    return {
        "id": key.id,
        "project": key.project_id,
        "name": key.name,
        "hint": key.hint,
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
        "quotas": dict(key.quotas),
    }


def _day(seconds: int | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
