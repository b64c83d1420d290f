"""Names of blobs: made here from our own ids and randomness, never from a client's words.

    uploads/<32 hex>                                    an uploaded file
    parts/<batch id>/<chunk id>/<32 hex>                a part of a chunk
    segments/<batch id>/<chunk id>-<16 hex>.<kind>      a sealed segment, kind `output` or `error`

Each key is fresh, so two writers never meet at one name, not even when a zombie repeats its work.
"""

from __future__ import annotations

import re
import secrets
from typing import Literal

UPLOADS = "uploads/"
PARTS = "parts/"
SEGMENTS = "segments/"

#: Names joined by slashes; a name is never empty and never begins with a dot.
_KEY = re.compile(r"[a-z0-9_-][a-z0-9_.-]{0,127}(?:/[a-z0-9_-][a-z0-9_.-]{0,127}){1,7}")


def upload_key() -> str:
    """A fresh key for an uploaded file."""
    return f"{UPLOADS}{secrets.token_hex(16)}"


def part_key(batch_id: str, chunk_id: str, token: str) -> str:
    """A fresh key for one part. Eight digits of the lease token tell leases apart in a listing, no more."""
    return f"{PARTS}{batch_id}/{chunk_id}/{token[:8]}{secrets.token_hex(12)}"


def segment_key(batch_id: str, chunk_id: str, kind: Literal["output", "error"]) -> str:
    """A fresh key for a chunk's sealed `output` or `error` rows."""
    return f"{SEGMENTS}{batch_id}/{chunk_id}-{secrets.token_hex(8)}.{kind}"


def chunk_of(key: str) -> str | None:
    """The chunk that a part or a segment belongs to; None for another blob."""
    kind, *rest = key.split("/")
    if len(rest) == 3 and f"{kind}/" == PARTS:
        return rest[1]
    if len(rest) == 2 and f"{kind}/" == SEGMENTS:
        return rest[1].rpartition("-")[0] or None
    return None


def is_key(text: str) -> bool:
    """True for the shape above. A store checks it before a key becomes a path or an address."""
    return _KEY.fullmatch(text) is not None
