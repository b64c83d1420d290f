"""Object ids: a prefix, the creation time in milliseconds, then randomness. Ids of one prefix sort by creation time."""

from __future__ import annotations

import re
import secrets
import time

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SHAPE = re.compile(r"[A-Za-z0-9_-]{1,96}")


def _millis() -> int:
    return time.time_ns() // 1_000_000


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))


def new_file_id() -> str:
    """`file-` + 22 alphanumerics (openai-contract 1.1): 8 of time, 14 random (83 bits)."""
    return "file-" + _base62(_millis(), 8) + _base62(secrets.randbits(83), 14)


def new_batch_id() -> str:
    """`batch_` + 32 hex digits (openai-contract 1.3): 12 of time, 20 random."""
    return f"batch_{_millis():012x}{secrets.token_hex(10)}"


def new_upload_id() -> str:
    """`upload_` + 32 hex digits (openai-contract 1.2)."""
    return f"upload_{_millis():012x}{secrets.token_hex(10)}"


def new_upload_part_id() -> str:
    """`part_` + 32 hex digits (openai-contract 1.2)."""
    return f"part_{_millis():012x}{secrets.token_hex(10)}"


def new_chunk_id() -> str:
    """`chunk_` + 32 hex digits. Internal: never on the wire."""
    return f"chunk_{_millis():012x}{secrets.token_hex(10)}"


def new_webhook_endpoint_id() -> str:
    """`whe_` + 32 hex digits (openai-contract 1.4)."""
    return f"whe_{_millis():012x}{secrets.token_hex(10)}"


def new_webhook_message_id() -> str:
    """`wh_` + 32 hex digits (openai-contract 7.2): the header `webhook-id` of every attempt at one message."""
    return f"wh_{_millis():012x}{secrets.token_hex(10)}"


def new_event_id() -> str:
    """`evt_` + 32 hex digits (openai-contract 7.1)."""
    return f"evt_{_millis():012x}{secrets.token_hex(10)}"


def new_key_id() -> str:
    """`key_` + 32 hex digits: names an API key, and is no secret."""
    return f"key_{_millis():012x}{secrets.token_hex(10)}"


def new_request_id() -> str:
    """`req_` + 32 hex digits: names one HTTP exchange (header `x-request-id`)."""
    return f"req_{secrets.token_hex(16)}"


def new_lease_token() -> str:
    """128 random bits as hex. Fresh for every claim, so a worker that comes back late holds a token nobody honours."""
    return secrets.token_hex(16)


def is_plausible(text: str) -> bool:
    """True when `text` could be an id of ours; anything else is answered like an unknown id, without a query."""
    return _SHAPE.fullmatch(text) is not None
