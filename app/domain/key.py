"""API keys: 256 random bits behind a prefix, known to the database by their SHA-256 only."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.domain.project import DEFAULT_PROJECT
from app.domain.quota import UNLIMITED, Quotas

PREFIX = "sk-by-"
_SHAPE = re.compile(PREFIX + r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key of a project, without the key itself. Times are Unix seconds; `quotas` are the limits it states itself."""

    id: str
    project_id: str
    name: str
    hint: str
    created_at: int
    revoked_at: int | None = None
    quotas: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a project, through a key (None: no key is asked for), within limits."""

    project_id: str = DEFAULT_PROJECT
    key_id: str | None = None
    quotas: Quotas = UNLIMITED
    #: Callers with the same one share the count of requests a minute.
    bucket: str = DEFAULT_PROJECT


def new_key() -> str:
    """`sk-by-` and 43 characters: 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(key: str) -> str:
    """SHA-256 as 64 hex digits. No salt and no stretching: nobody guesses 256 random bits."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def hint(key: str) -> str:
    """Enough of a key to tell it from its siblings."""
    return f"{key[: len(PREFIX) + 4]}…{key[-4:]}"


def is_plausible(key: str) -> bool:
    """True when `key` could be one of `new_key`; anything else needs no query."""
    return _SHAPE.fullmatch(key) is not None
