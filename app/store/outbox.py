"""The outbox of webhooks: messages written in the transaction that ends a batch, delivered afterwards under a lease.

    announce ──► due ──claim──► leased ──► delivered
                  ▲                │
                  └── failed ──────┴─────► given up

A lease lapses when its worker is gone; the message is due again then, so a receiver may see it twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, case, delete, func, insert, literal, or_, select, update

from app.domain.batch import Batch, timestamp_field
from app.domain.id import new_event_id, new_lease_token, new_webhook_message_id
from app.domain.webhook import EventType, WebhookEndpoint, payload
from app.store.clock import moment, seconds
from app.store.contract_tables import webhook_endpoints as endpoints
from app.store.contract_tables import webhook_messages as messages
from app.store.db import Read, Write
from app.store.webhooks import from_row, signs_too

_NO_LEASE: dict[str, Any] = {"lease_token": None, "leased_until": None}


@dataclass(frozen=True, slots=True)
class Claimed:
    """The right to make one attempt at a message, fenced by `token`. `attempts` were made before, and failed."""

    message_id: str
    token: str
    endpoint: WebhookEndpoint
    batch_id: str
    type: EventType
    body: str
    created_at: int
    attempts: int


def _open() -> ColumnElement[bool]:
    return messages.c.delivered_at.is_(None) & messages.c.gave_up_at.is_(None)


def _due() -> ColumnElement[bool]:
    free = or_(messages.c.leased_until.is_(None), messages.c.leased_until <= moment())
    return _open() & (messages.c.due_at <= moment()) & free


def _fence(claimed: Claimed) -> tuple[ColumnElement[bool], ...]:
    return messages.c.id == claimed.message_id, messages.c.lease_token == claimed.token, _open()


async def announce(tx: Write, batch: Batch) -> int:
    """Write one message to each endpoint that wants to hear of the end of `batch`; how many.

    Belongs into the transaction that ends the batch: either both happened or neither.
    """
    type = EventType.of(batch.status)
    ended_at = getattr(batch, timestamp_field(batch.status))
    # Held against deletion until this commits: a message must not lose its endpoint half-way.
    listeners = select(endpoints.c.id, endpoints.c.event_types).where(endpoints.c.project_id == batch.project_id)
    found = await tx.conn.execute(listeners.order_by(endpoints.c.id).with_for_update(read=True, key_share=True))
    body = payload(type, event_id=new_event_id(), batch_id=batch.id, created_at=ended_at)
    rows = [
        {
            "id": new_webhook_message_id(),
            "endpoint_id": endpoint_id,
            "batch_id": batch.id,
            "type": type.value,
            "body": body,
            "created_at": ended_at,
            "attempts": 0,
            "due_at": float(ended_at),
        }
        for endpoint_id, event_types in found
        if type.value in json.loads(event_types)
    ]
    if rows:
        await tx.conn.execute(insert(messages), rows)
    return len(rows)


async def is_due(tx: Read) -> bool:
    """Whether a claim would find something: the question of every poll, asked without a write."""
    return (await tx.conn.execute(select(messages.c.id).where(_due()).limit(1))).first() is not None


async def claim(
    tx: Write, *, limit: int, per_endpoint: int, lease_seconds: float, held: Mapping[str, int] | None = None
) -> list[Claimed]:
    """Up to `limit` due messages, of one endpoint at most `per_endpoint`: a slow receiver does not hold up the others.

    `held` counts the attempts that the caller has under way already, by endpoint id.
    """
    place = func.row_number().over(partition_by=messages.c.endpoint_id, order_by=(messages.c.due_at, messages.c.id))
    mine = case(dict(held), value=messages.c.endpoint_id, else_=0) if held else literal(0)
    ranked = select(messages.c.id, messages.c.due_at, (place + mine).label("place")).where(_due()).subquery()
    first = select(ranked.c.id).where(ranked.c.place <= per_endpoint).order_by(ranked.c.due_at).limit(limit)
    chosen = select(messages.c.id).where(messages.c.id.in_(first), _due()).with_for_update(skip_locked=True)
    token = new_lease_token()
    taken = update(messages).where(messages.c.id.in_(chosen), _due())
    taken = taken.values(lease_token=token, leased_until=moment() + lease_seconds)
    rows = (await tx.conn.execute(taken.returning(*messages.c))).mappings().all()
    if not rows:
        return []
    wanted = select(endpoints, signs_too()).where(endpoints.c.id.in_({row["endpoint_id"] for row in rows}))
    known = {row["id"]: from_row(row) for row in (await tx.conn.execute(wanted)).mappings()}
    return [
        Claimed(
            message_id=row["id"],
            token=token,
            endpoint=known[row["endpoint_id"]],
            batch_id=row["batch_id"],
            type=EventType(row["type"]),
            body=row["body"],
            created_at=row["created_at"],
            attempts=row["attempts"],
        )
        for row in rows
    ]


async def delivered(tx: Write, claimed: Claimed, *, status: int) -> bool:
    """The receiver took it, with this HTTP `status`. False when the lease, or the endpoint, is gone."""
    values = {"delivered_at": seconds(), "last_status": status, "attempts": messages.c.attempts + 1, **_NO_LEASE}
    return await _settle(tx, claimed, values)


async def failed(
    tx: Write, claimed: Claimed, *, status: int | None, pause_seconds: float, give_up_seconds: float
) -> bool | None:
    """The attempt failed: due again `pause_seconds` from now, the last time `give_up_seconds` after the event.

    True when that time is over, and the message is given up. None when the lease, or the endpoint, is gone.
    """
    now = await tx.now()
    until = claimed.created_at + give_up_seconds
    over = now >= until
    values = {"last_status": status, "attempts": messages.c.attempts + 1, **_NO_LEASE}
    values |= {"gave_up_at": int(now)} if over else {"due_at": min(now + pause_seconds, until)}
    return over if await _settle(tx, claimed, values) else None


async def _settle(tx: Write, claimed: Claimed, values: dict[str, Any]) -> bool:
    settled = update(messages).where(*_fence(claimed)).values(values).returning(messages.c.id)
    return (await tx.conn.execute(settled)).one_or_none() is not None


async def pending(tx: Read) -> int:
    """Messages neither delivered nor given up."""
    return int((await tx.conn.execute(select(func.count()).select_from(messages).where(_open()))).scalar_one())


def _old(after_seconds: int) -> ColumnElement[bool]:
    return func.coalesce(messages.c.delivered_at, messages.c.gave_up_at) <= seconds() - after_seconds


async def has_old(tx: Read, *, after_seconds: int) -> bool:
    """Whether `forget` would find something."""
    return (await tx.conn.execute(select(messages.c.id).where(_old(after_seconds)).limit(1))).first() is not None


async def forget(tx: Write, *, after_seconds: int, limit: int) -> int:
    """Remove up to `limit` messages that were settled `after_seconds` ago; how many."""
    old = select(messages.c.id).where(_old(after_seconds)).limit(limit)
    gone = await tx.conn.execute(delete(messages).where(messages.c.id.in_(old)).returning(messages.c.id))
    return len(gone.scalars().all())
