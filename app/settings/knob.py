"""A knob: one leaf of Settings as flags, documents and error messages speak of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from app.settings.rooms import Settings

PREFIX = "BATCHYARD_"


@dataclass(frozen=True, slots=True)
class Knob:
    """One leaf of Settings. `name` is dotted (`server.port`), `variable` its environment variable."""

    name: str
    room: str
    variable: str
    type: str
    default: Any
    meaning: str
    secret: bool

    def value(self, settings: Settings) -> Any:
        """The value in `settings`, secrets included."""
        holder: Any = getattr(settings, self.room) if self.room else settings
        return getattr(holder, self.name.rpartition(".")[2])

    def shown(self, value: Any) -> str:
        """`value` as text that is fit for a screen or a log: no keys, no passwords."""
        if value is None or value == []:
            return ""
        if self.secret:
            return ", ".join("********" for _ in value) if isinstance(value, list) else "********"
        if isinstance(value, list):
            return json.dumps(_without_secrets([str(item) for item in value]), ensure_ascii=False)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        return _PASSWORD.sub(r"\1********@", str(value))


# The user's part ends at the last `@` before the path: a password may hold one.
_PASSWORD = re.compile(r"(://[^:/@\s]*:)[^/\s]*@")
_SECRET_FLAG = re.compile(r"(--[\w.-]*(?:key|token|secret|password)[\w.-]*)(=.*)?", re.IGNORECASE)


def _without_secrets(arguments: list[str]) -> list[str]:
    """Arguments of a command line with the values of flags such as `--hf-token` blotted out."""
    shown: list[str] = []
    blot_next = False
    for argument in arguments:
        match = _SECRET_FLAG.fullmatch(argument)
        if blot_next and not argument.startswith("--"):
            shown.append("********")
        elif match and match[2]:
            shown.append(f"{match[1]}=********")
        else:
            shown.append(argument)
        blot_next = bool(match and not match[2])
    return shown


@cache
def knobs() -> tuple[Knob, ...]:
    """Every knob, in the order of this file."""
    return tuple(_knobs(Settings, ""))


def _knobs(model: type[BaseModel], room: str) -> Iterator[Knob]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _knobs(kind, name)
            continue
        default = field.get_default(call_default_factory=True, validated_data={})
        yield Knob(
            name=f"{room}.{name}" if room else name,
            room=room,
            variable=PREFIX + (f"{room}_{name}" if room else name).upper(),
            type=_type_name(kind),
            default=default,
            meaning=field.description or "",
            secret="Secret" in str(kind),
        )


def _type_name(kind: Any) -> str:
    text = str(kind) if "[" in str(kind) else getattr(kind, "__name__", str(kind))
    text = re.sub(r"typing\.|pathlib\.|pydantic\.types\.", "", text.replace(" | None", ""))
    words = {"Path": "path", "str": "text", "int": "integer", "float": "number", "bool": "true or false"}
    if choices := re.fullmatch(r"Literal\[(.*)\]", text):
        return choices[1].replace("'", "`").replace(", ", " or ")
    return "list" if text.startswith("list[") else words.get(text, text)
