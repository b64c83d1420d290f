"""`Idempotency-Key`: a create call that is repeated with its key gives the object that the first one made.

The key belongs to its project and operation. What was asked is compared by digest: another request with the same key
is a conflict. A call that was refused made nothing, so its key is still free.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from app.errors import Conflict
from app.settings import RetentionSettings
from app.store.idempotency import KeyUse

Operation = Literal[
    "files.create",
    "batches.create",
    "batches.retry",
    "uploads.create",
    "uploads.complete",
    "webhook_endpoints.create",
]


def digest_of(asked: dict[str, Any]) -> str:
    """SHA-256 over values that JSON can say, whatever their order; hex."""
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def key_use(
    key: str | None, operation: Operation, *, project_id: str, asked: dict[str, Any], retention: RetentionSettings
) -> KeyUse | None:
    """How this call uses `key`; None without a key."""
    if key is None:
        return None
    return KeyUse(project_id, operation, key, digest_of(asked), retention.idempotency_seconds)


def object_gone() -> Conflict:
    """The refusal when the object that a key stands for was deleted or has expired: it is not made a second time."""
    return Conflict(
        "The object that this Idempotency-Key made does not exist any more. Send a new key to make another.",
        code="idempotency_key_object_gone",
    )
