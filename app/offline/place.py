"""Where an input comes from or a result goes to: a local path, `-`, an http(s) URL, or s3://BUCKET/KEY."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from app.errors import SettingsInvalid


class Kind(StrEnum):
    """How a place is reached."""

    FILE = "file"
    PIPE = "pipe"  # `-`, and local paths that cannot be read twice or replaced: devices, named pipes
    HTTP = "http"
    S3 = "s3"


@dataclass(frozen=True, slots=True)
class Place:
    """`text` is what the user wrote. `path` is set for FILE, links resolved, and for a PIPE other than `-`."""

    kind: Kind
    text: str
    path: Path | None = None

    @property
    def shown(self) -> str:
        """For messages: without user, password and query, which may hold a key."""
        if self.kind not in (Kind.HTTP, Kind.S3):
            return self.text
        parts = urlsplit(self.text)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def place_of(text: str) -> Place:
    """What `text` names. Raises SettingsInvalid for a URL that is none of ours, or is incomplete."""
    if text == "-":
        return Place(Kind.PIPE, text)
    scheme, separator, _ = text.partition("://")
    if separator:
        return _remote(text, scheme.lower())
    if not text:
        raise SettingsInvalid("a file name is empty")
    path = Path(text)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        mode = stat.S_IFREG
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return Place(Kind.FILE, text, Path(os.path.realpath(path)))
    return Place(Kind.PIPE, text, path)


def _remote(text: str, scheme: str) -> Place:
    try:
        parts = urlsplit(text)
        known = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        known, parts = False, urlsplit("")
    if scheme in ("http", "https") and known:
        return Place(Kind.HTTP, text)
    if scheme == "s3" and known and parts.path.strip("/") and not parts.query:
        return Place(Kind.S3, text)
    raise SettingsInvalid(f"{text.partition('?')[0]} is none of: a path, -, http(s)://HOST/…, s3://BUCKET/KEY")
