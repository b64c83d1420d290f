"""Webhooks (openai-contract 1.4, 7): what is told to whom, how it is signed, and when it is tried again.

A batch that ends becomes one event; the event becomes one message to each endpoint of its project that asked for its
type; a message is delivered by one or more attempts.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from standardwebhooks import Webhook

from app.domain.batch import BatchStatus

#: Longest URL of an endpoint (openai-contract 1.4).
URL_MAX_CHARS = 2048
#: How long the secret that a rotation replaced may go on signing.
OLD_SECRET_SECONDS = 86_400
_SECRET_BYTES = 32
# What OpenAI's deliveries carry: receivers that look at it know no other.
_USER_AGENT = "OpenAI/1.0 (+https://platform.openai.com/docs/webhooks)"


class EventType(StrEnum):
    """What may be told: a batch has ended, and how."""

    BATCH_COMPLETED = "batch.completed"
    BATCH_FAILED = "batch.failed"
    BATCH_EXPIRED = "batch.expired"
    BATCH_CANCELLED = "batch.cancelled"

    @classmethod
    def of(cls, status: BatchStatus) -> EventType:
        """The event of a terminal `status`. Raises ValueError for another."""
        return cls(f"batch.{status.value}")


@dataclass(frozen=True, slots=True)
class WebhookEndpoint:
    """Somebody who wants to be told. Times are Unix seconds; `url` may carry credentials, so it is never logged."""

    id: str
    project_id: str
    name: str
    url: str = field(repr=False)
    event_types: tuple[EventType, ...]
    secret: str = field(repr=False)
    created_at: int
    updated_at: int
    #: Signs too until it ends; None when no rotation kept it.
    old_secret: str | None = field(default=None, repr=False)

    @property
    def secret_hint(self) -> str:
        """The secret with all but its last four letters masked; the base64 padding is no letter."""
        return f"whsec_********{self.secret.rstrip('=')[-4:]}"

    @property
    def signing_secrets(self) -> tuple[str, ...]:
        """Every secret that signs at this moment, the newest first."""
        return (self.secret,) if self.old_secret is None else (self.secret, self.old_secret)


def new_secret() -> str:
    """`whsec_` + base64 of 32 random bytes (openai-contract 7.2)."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode("ascii")


def payload(type: EventType, *, event_id: str, batch_id: str, created_at: int) -> str:
    """The body of every attempt, in ASCII: it is stored and signed as these very characters (openai-contract 7.1)."""
    event = {"id": event_id, "object": "event", "created_at": created_at, "type": type.value, "data": {"id": batch_id}}
    return json.dumps(event)


def signature(body: str, *, message_id: str, timestamp: int, secrets: Sequence[str]) -> str:
    """The header `webhook-signature`: one `v1,…` for each of `secrets`, space-separated (openai-contract 7.2)."""
    moment = datetime.fromtimestamp(timestamp, UTC)
    return " ".join(Webhook(secret).sign(message_id, moment, body) for secret in secrets)


def headers(body: str, *, message_id: str, timestamp: int, secrets: Sequence[str]) -> dict[str, str]:
    """All headers of one attempt (openai-contract 7.2); `timestamp` is the attempt's own, in Unix seconds."""
    return {
        "content-type": "application/json",
        "user-agent": _USER_AGENT,
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(body, message_id=message_id, timestamp=timestamp, secrets=secrets),
    }


def pause_seconds(attempts: int, *, first_seconds: float, max_seconds: float, jitter: float) -> float:
    """The gap after failed attempt number `attempts` (from 1): doubled each time up to `max_seconds`.

    `jitter` in [0, 1) takes off up to a fifth, so that gaps that still double always grow.
    """
    doubled = first_seconds * 2.0 ** min(attempts - 1, 60)
    return min(max_seconds, doubled) * (1 - 0.2 * jitter)
