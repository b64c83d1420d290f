"""Where values come from: flags over the environment over a TOML file over the defaults."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.errors import SettingsInvalid
from app.settings.knob import PREFIX, Knob, knobs
from app.settings.rooms import Settings

CONFIG_VARIABLE = PREFIX + "CONFIG"
#: Variables that are no knob: the settings file, and the folder of prepared models (app.engine.embedded).
_OTHER_VARIABLES = frozenset({CONFIG_VARIABLE, PREFIX + "MODELS_DIR"})


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings and where each knob's value came from: `flag`, `file`, `default` or the environment variable's name.

    `unknown` are the `BATCHYARD_…` variables that mean nothing here. They are no error: an orchestrator may set such
    names on its own (Kubernetes does, for a service called batchyard).
    """

    settings: Settings
    sources: Mapping[str, str]
    unknown: tuple[str, ...] = ()


def load(
    flags: Mapping[str, Any] | None = None,
    config: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Settings from `flags` (dotted name to value), else the environment, else the TOML file, else the defaults.

    `config` defaults to the file that BATCHYARD_CONFIG names. Raises SettingsInvalid, with a sentence for each wrong
    knob that names it and where it was set, and never shows a secret.
    """
    environ = os.environ if environ is None else environ
    if config is None and environ.get(CONFIG_VARIABLE):
        config = Path(environ[CONFIG_VARIABLE])
    known = {knob.name: knob for knob in knobs()}
    values: dict[str, Any] = {}
    sources = dict.fromkeys(known, "default")
    for name, value in (_read(config) if config else {}).items():
        values[name], sources[name] = value, "file"
    for knob in known.values():
        if knob.variable in environ:
            values[knob.name], sources[knob.name] = environ[knob.variable], knob.variable
    for name, value in (flags or {}).items():
        values[name], sources[name] = value, "flag"
    problems = [_unknown(name, known, sources[name]) for name in values if name not in known]
    if problems:
        raise SettingsInvalid("; ".join(problems))
    try:
        settings = Settings.model_validate(_nested(values))
    except ValidationError as exc:
        sentences = [_sentence(error, known, values, sources) for error in exc.errors(include_url=False)]
        raise SettingsInvalid("; ".join(sentences)) from None  # the cause would show the values
    meant = {knob.variable for knob in known.values()} | _OTHER_VARIABLES
    return Loaded(settings, sources, tuple(sorted(v for v in environ if v.startswith(PREFIX) and v not in meant)))


def _read(path: Path) -> dict[str, Any]:
    """The file's values by dotted name."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise SettingsInvalid(f"the settings file {path} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise SettingsInvalid(f"the settings file {path} is not UTF-8 text") from exc
    except tomllib.TOMLDecodeError as exc:
        raise SettingsInvalid(f"the settings file {path} is not valid TOML: {exc}") from exc
    rooms = {knob.room for knob in knobs()} - {""}
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if key in rooms and not isinstance(value, dict):
            raise SettingsInvalid(f"in the settings file {path}, {key} must be a table: [{key}]")
        if isinstance(value, dict):
            flat.update({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            flat[key] = value
    return flat


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        room, _, leaf = name.rpartition(".")
        (nested.setdefault(room, {}) if room else nested)[leaf] = value
    return nested


def _unknown(name: str, known: Mapping[str, Knob], source: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "`batchyard settings` lists them all"
    return f"there is no setting {name} ({_origin(source)}); {hint}"


def _sentence(
    error: ErrorDetails, known: Mapping[str, Knob], values: Mapping[str, Any], sources: Mapping[str, str]
) -> str:
    name = ".".join(str(part) for part in error["loc"][:2])
    knob = known.get(name) or known.get(name.partition(".")[0])
    reason = error["msg"].removeprefix("Value error, ").rstrip(".")
    if knob is None:  # a rule between knobs: its sentence names them
        return reason
    reason = reason[0].lower() + reason[1:] if reason.startswith("Input ") else reason
    value = values.get(knob.name)
    showable = isinstance(value, str | int | float) and knob.type != "list" and not knob.secret
    shown = knob.shown(value)
    given = (f" {shown!r}" if isinstance(value, str) else f" {shown}") if showable else ""
    return f"{knob.name}{given} ({_origin(sources[knob.name])}): {reason}"


def _origin(source: str) -> str:
    return {"flag": "from a flag", "file": "from the settings file"}.get(source, f"from {source}")
