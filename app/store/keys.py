"""API keys by their digest. A revoked key keeps its row: that a key was ever made means that keys are asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy import RowMapping, func, insert, inspect, select, update

from app.domain.key import ApiKey
from app.store.clock import seconds
from app.store.contract_tables import api_keys
from app.store.db import Read, Write

_SHOWN = [column for column in api_keys.c if column.name != "digest"]


def from_row(row: RowMapping) -> ApiKey:
    quotas = row["quotas"]
    return ApiKey(
        id=row["id"],
        project_id=row["project_id"],
        name=row["name"],
        hint=row["hint"],
        created_at=row["created_at"],
        revoked_at=row["revoked_at"],
        quotas={} if quotas is None else json.loads(quotas),
    )


async def create(
    tx: Write, *, id: str, project_id: str, name: str, digest: str, hint: str, quotas: Mapping[str, int]
) -> ApiKey:
    """A new key, known by `digest`."""
    values = {
        "id": id,
        "project_id": project_id,
        "name": name,
        "digest": digest,
        "hint": hint,
        "created_at": int(await tx.now()),
        "quotas": json.dumps(dict(quotas)) if quotas else None,
    }
    row = await tx.conn.execute(insert(api_keys).values(values).returning(*_SHOWN))
    return from_row(row.mappings().one())


async def by_digest(tx: Read, digest: str) -> ApiKey | None:
    """The key, unless it is unknown or revoked."""
    found = select(*_SHOWN).where(api_keys.c.digest == digest, api_keys.c.revoked_at.is_(None))
    row = (await tx.conn.execute(found)).mappings().one_or_none()
    return None if row is None else from_row(row)


async def every(tx: Read, *, project_id: str | None) -> list[ApiKey]:
    """All keys, revoked ones too, or those of one project; by project, then by age."""
    found = select(*_SHOWN).order_by(api_keys.c.project_id, api_keys.c.created_at, api_keys.c.id)
    if project_id is not None:
        found = found.where(api_keys.c.project_id == project_id)
    return [from_row(row) for row in (await tx.conn.execute(found)).mappings()]


async def revoke(tx: Write, key_id: str) -> ApiKey | None:
    """End a key; an earlier end stays as it is. None when unknown."""
    ended = func.coalesce(api_keys.c.revoked_at, seconds())
    row = await tx.conn.execute(
        update(api_keys).where(api_keys.c.id == key_id).values(revoked_at=ended).returning(*_SHOWN)
    )
    found = row.mappings().one_or_none()
    return None if found is None else from_row(found)


async def exist(tx: Read) -> bool:
    """Whether a key was ever made. False, too, for a database that does not have the table yet."""
    if not await tx.conn.run_sync(lambda conn: inspect(conn).has_table(api_keys.name)):
        return False
    return (await tx.conn.execute(select(api_keys.c.id).limit(1))).one_or_none() is not None
