"""Flags that several commands share, and how they become settings."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from app.errors import SettingsInvalid
from app.settings import CONFIG_VARIABLE, Loaded, knobs, load

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help=f"Settings file, TOML. Also: {CONFIG_VARIABLE}.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting, such as --set worker.part_seconds=2. Repeatable."),
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", metavar="FOLDER", help="Folder for database and files.")]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int | None, typer.Option("--port", help="Port to listen on; 0 takes a free one.")]
WorkerPort = Annotated[
    int | None, typer.Option("--port", help="Port for /health, /ready and /metrics; none without it.")
]
Engine = Annotated[str | None, typer.Option("--engine", metavar="vllm|echo", help="What answers the requests.")]
Model = Annotated[str | None, typer.Option("--model", metavar="NAME", help="Model name or folder, for vllm.")]
Role = Annotated[str | None, typer.Option("--role", metavar="all|api", help="`api` leaves the work to `worker`s.")]
LogLevel = Annotated[str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")]
LogFormat = Annotated[
    str | None, typer.Option("--log-format", metavar="json|console", help="Default on a terminal: console.")
]
NoMigrate = Annotated[
    bool, typer.Option("--no-migrate", help="Leave the database as it is; refuse one that is behind.")
]


def settings_from(
    config: Path | None, sets: Sequence[str] | None, *, further: Sequence[str] = (), **named: str | int | Path | None
) -> Loaded:
    """Settings from the command line and what stands behind it.

    `named` are dotted names with `__` for the dot; None means that the flag was not given. `further` are the arguments
    that are none of ours, for vLLM to read. Raises SettingsInvalid, also when the engine takes no further arguments.
    """
    flags: dict[str, Any] = {}
    for text in sets or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsInvalid(f"--set {text}: write NAME=VALUE, for example --set server.port=9000")
        flags[name.strip()] = value
    flags.update({name.replace("__", "."): value for name, value in named.items() if value is not None})
    loaded = load(flags, config)
    if not further:
        return loaded
    engine = loaded.settings.engine
    if engine.kind != "vllm":
        raise SettingsInvalid(f"unknown argument {further[0]}: the {engine.kind} engine takes no further flags")
    # Later flags win in vLLM's parser, so those of the command line stand last.
    return load({**flags, "engine.arguments": [*engine.arguments, *further]}, config)


def for_a_terminal(loaded: Loaded) -> Loaded:
    """Readable logs where a person looks on and nobody chose a format."""
    if loaded.sources["log.format"] != "default" or not sys.stderr.isatty():
        return loaded
    settings = loaded.settings
    log = settings.log.model_copy(update={"format": "console"})
    return Loaded(settings.model_copy(update={"log": log}), loaded.sources, loaded.unknown)


def table_rows(loaded: Loaded) -> list[dict[str, str]]:
    """Every knob with its value, fit for a screen: no secrets."""
    return [
        {
            "name": knob.name,
            "value": knob.shown(knob.value(loaded.settings)),
            "source": loaded.sources[knob.name],
            "variable": knob.variable,
            "meaning": knob.meaning,
        }
        for knob in knobs()
    ]
