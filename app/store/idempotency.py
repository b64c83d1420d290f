"""Idempotency keys: which object a create call made, written in the transaction that makes it.

So a key names an object exactly when the object exists, whatever crashed; and of two calls with one key at once, the
second waits for the first to commit, and then finds its object.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite

from app.errors import Conflict
from app.store.clock import seconds
from app.store.contract_tables import idempotency_keys as keys
from app.store.db import Read, Write


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A key as one call uses it. `digest` stands for all that was asked; it is kept for `lifetime_seconds`."""

    project_id: str
    operation: str
    key: str
    digest: str
    lifetime_seconds: int


async def earlier(tx: Read, use: KeyUse) -> str | None:
    """The id of the object that an earlier call with this key made. Raises Conflict when that call asked for other."""
    mine = (keys.c.project_id == use.project_id, keys.c.operation == use.operation, keys.c.key == use.key)
    found = select(keys.c.digest, keys.c.object_id).where(*mine, keys.c.expires_at > seconds())
    row = (await tx.conn.execute(found)).one_or_none()
    if row is None:
        return None
    digest, object_id = row
    if digest != use.digest:
        raise Conflict(
            "This Idempotency-Key was used before with another request. Send a new key with a new request.",
            code="idempotency_key_reused",
        )
    return str(object_id)


async def claim(tx: Write, use: KeyUse, *, object_id: str) -> str | None:
    """Let the key stand for `object_id`, which `tx` is about to make: None. Otherwise what `earlier` says."""
    into = postgresql.insert if tx.conn.dialect.name == "postgresql" else sqlite.insert
    now = seconds()
    row = into(keys).values(
        project_id=use.project_id,
        operation=use.operation,
        key=use.key,
        digest=use.digest,
        object_id=object_id,
        created_at=now,
        expires_at=now + use.lifetime_seconds,
    )
    new = row.excluded
    # A key whose time is over is as good as none. An insert waits for another one of the same key to commit.
    taken = row.on_conflict_do_update(
        index_elements=[keys.c.project_id, keys.c.operation, keys.c.key],
        set_={name: new[name] for name in ("digest", "object_id", "created_at", "expires_at")},
        where=keys.c.expires_at <= seconds(),
    )
    if (await tx.conn.execute(taken.returning(keys.c.object_id))).one_or_none() is not None:
        return None
    return await earlier(tx, use)


async def forget(tx: Write, *, limit: int) -> int:
    """Drop at most `limit` keys whose time is over; returns how many."""
    names = (keys.c.project_id, keys.c.operation, keys.c.key)
    over = (await tx.conn.execute(select(*names).where(keys.c.expires_at <= seconds()).limit(limit))).all()
    for project_id, operation, key in over:
        mine = (keys.c.project_id == project_id, keys.c.operation == operation, keys.c.key == key)
        # Asked again: the key may have been taken for a new object meanwhile.
        await tx.conn.execute(delete(keys).where(*mine, keys.c.expires_at <= seconds()))
    return len(over)
