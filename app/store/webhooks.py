"""Webhook endpoints as their project sees them. Their secrets stand here in the clear: they must sign."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Label, RowMapping, case, func, insert, select, update
from sqlalchemy import delete as removal

from app.domain.webhook import OLD_SECRET_SECONDS, EventType, WebhookEndpoint
from app.store.clock import seconds
from app.store.contract_tables import webhook_endpoints as endpoints
from app.store.db import Read, Write
from app.store.page import Page, keyset


def from_row(row: RowMapping) -> WebhookEndpoint:
    """`row` has the column `signs_too`, or no old secret counts."""
    return WebhookEndpoint(
        id=row["id"],
        project_id=row["project_id"],
        name=row["name"],
        url=row["url"],
        event_types=tuple(EventType(name) for name in json.loads(row["event_types"])),
        secret=row["secret"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        old_secret=row.get("signs_too"),
    )


def signs_too() -> Label[Any]:
    """The old secret while it still signs, by the database's clock."""
    return case((endpoints.c.old_secret_until > seconds(), endpoints.c.old_secret)).label("signs_too")


def _types(event_types: Sequence[EventType]) -> str:
    return json.dumps([type.value for type in event_types])


async def create(
    tx: Write, *, id: str, project_id: str, name: str, url: str, event_types: Sequence[EventType], secret: str
) -> WebhookEndpoint:
    """A new endpoint."""
    now = int(await tx.now())
    values = {
        "id": id,
        "project_id": project_id,
        "name": name,
        "url": url,
        "event_types": _types(event_types),
        "secret": secret,
        "created_at": now,
        "updated_at": now,
    }
    row = await tx.conn.execute(insert(endpoints).values(values).returning(*endpoints.c))
    return from_row(row.mappings().one())


async def count(tx: Read, *, project_id: str) -> int:
    """How many endpoints the project has."""
    many = select(func.count()).where(endpoints.c.project_id == project_id)
    return int((await tx.conn.execute(many)).scalar_one())


async def get(tx: Read, endpoint_id: str, *, project_id: str) -> WebhookEndpoint | None:
    """None when unknown or of another project."""
    mine = (endpoints.c.id == endpoint_id, endpoints.c.project_id == project_id)
    row = (await tx.conn.execute(select(endpoints, signs_too()).where(*mine))).mappings().one_or_none()
    return None if row is None else from_row(row)


async def page(tx: Read, *, project_id: str, after: str | None, limit: int) -> Page[WebhookEndpoint]:
    """A project's endpoints, newest first. Raises InvalidRequest for an unknown `after`."""
    rows = await keyset(tx.conn, endpoints, project_id=project_id, after=after, limit=limit, descending=True)
    found = (await tx.conn.execute(rows)).mappings().all()
    return Page([from_row(row) for row in found[:limit]], has_more=len(found) > limit)


async def change(
    tx: Write,
    endpoint_id: str,
    *,
    project_id: str,
    name: str | None = None,
    url: str | None = None,
    event_types: Sequence[EventType] | None = None,
) -> WebhookEndpoint | None:
    """Replace what is not None. `updated_at` moves only when that differs (openai-contract 1.4). None when unknown."""
    mine = (endpoints.c.id == endpoint_id, endpoints.c.project_id == project_id)
    row = (await tx.conn.execute(select(endpoints).where(*mine).with_for_update())).mappings().one_or_none()
    if row is None:
        return None
    before = from_row(row)
    values: dict[str, Any] = {}
    if name is not None and name != before.name:
        values["name"] = name
    if url is not None and url != before.url:
        values["url"] = url
    if event_types is not None and set(event_types) != set(before.event_types):
        values["event_types"] = _types(event_types)
    if not values:
        return before
    changed = update(endpoints).where(*mine).values(updated_at=seconds(), **values).returning(*endpoints.c)
    return from_row((await tx.conn.execute(changed)).mappings().one())


async def rotate(
    tx: Write, endpoint_id: str, *, project_id: str, secret: str, keep_old: bool
) -> WebhookEndpoint | None:
    """Sign with `secret` from now on; with `keep_old`, for 24 hours also with the one it replaces, and no older one.

    None when unknown.
    """
    mine = (endpoints.c.id == endpoint_id, endpoints.c.project_id == project_id)
    values: dict[str, Any] = {"secret": secret, "updated_at": seconds(), "old_secret": None, "old_secret_until": None}
    if keep_old:
        values |= {"old_secret": endpoints.c.secret, "old_secret_until": seconds() + OLD_SECRET_SECONDS}
    rotated = update(endpoints).where(*mine).values(values).returning(*endpoints.c)
    row = (await tx.conn.execute(rotated)).mappings().one_or_none()
    return None if row is None else from_row(row)


async def delete(tx: Write, endpoint_id: str, *, project_id: str) -> bool:
    """Forget the endpoint and with it every message to it. False when unknown."""
    mine = (endpoints.c.id == endpoint_id, endpoints.c.project_id == project_id)
    gone = removal(endpoints).where(*mine).returning(endpoints.c.id)
    return (await tx.conn.execute(gone)).one_or_none() is not None
