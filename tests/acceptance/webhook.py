"""Webhooks in tests: settings that let a receiver on the loopback be told, the outbox from behind, time shifted."""

from __future__ import annotations

import time
from typing import Any

import openai
from openai.types.webhooks import (
    BatchCancelledWebhookEvent,
    BatchCompletedWebhookEvent,
    BatchExpiredWebhookEvent,
    BatchFailedWebhookEvent,
    WebhookEndpointWithSecret,
)

from tests.acceptance.server import Server

OPEN = {
    "BATCHYARD_WEBHOOKS_ALLOW_PRIVATE_ADDRESSES": "true",
    "BATCHYARD_WEBHOOKS_ALLOW_HTTP": "true",
    "BATCHYARD_WEBHOOKS_POLL_SECONDS": "0.05",
    "BATCHYARD_WEBHOOKS_TIMEOUT_SECONDS": "1",
}
EVENTS: dict[str, Any] = {
    "batch.completed": BatchCompletedWebhookEvent,
    "batch.failed": BatchFailedWebhookEvent,
    "batch.expired": BatchExpiredWebhookEvent,
    "batch.cancelled": BatchCancelledWebhookEvent,
}
THREE_DAYS = 3 * 86_400


def listen(client: openai.OpenAI, url: str, *types: Any) -> WebhookEndpointWithSecret:
    return client.webhooks.create(name="mine", url=url, event_types=[*(types or EVENTS)])


def messages(server: Server) -> list[dict[str, Any]]:
    """The outbox, behind the API."""
    with server.database() as database:
        cursor = database.execute("SELECT * FROM webhook_messages ORDER BY id")
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]


def until(server: Server, *, seconds: float = 20, **wanted: Any) -> dict[str, Any]:
    """The one message once it has these values; `...` is anything but null."""
    deadline = time.monotonic() + seconds
    while True:
        found = messages(server)
        for row in found:
            if all(row[name] is not None if value is ... else row[name] == value for name, value in wanted.items()):
                return row
        assert time.monotonic() < deadline, f"wanted {wanted}, found {found}"
        time.sleep(0.02)


def make_due(server: Server, *, older_by: int = 0) -> None:
    """Shift time: every message that waits is due now, and its event `older_by` seconds further back."""
    with server.database() as database:
        database.execute(
            "UPDATE webhook_messages SET due_at = 0, created_at = created_at - ? WHERE lease_token IS NULL", [older_by]
        )
