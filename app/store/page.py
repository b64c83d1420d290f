"""A page of a listing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import Select, Table, literal, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.errors import InvalidRequest

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some items in listing order; `has_more` says that others follow."""

    items: list[T]
    has_more: bool


async def keyset(
    conn: AsyncConnection, table: Table, *, project_id: str, after: str | None, limit: int, descending: bool
) -> Select[*tuple[object, ...]]:
    """The rows of a project that follow row `after` by (created_at, id), one more than `limit`.

    The row `after` only marks the place: whatever became of its object, the listing goes on behind it. Raises
    InvalidRequest when the project has no such row (openai-contract 2).
    """
    position = tuple_(table.c.created_at, table.c.id)
    order = [table.c.created_at, table.c.id]
    rows = select(table).where(table.c.project_id == project_id).limit(limit + 1)
    rows = rows.order_by(*(column.desc() if descending else column.asc() for column in order))
    if after is None:
        return rows
    mark = select(*order).where(table.c.id == after, table.c.project_id == project_id)
    found = (await conn.execute(mark)).one_or_none()
    if found is None:
        raise InvalidRequest(f"No object with id '{after}' to list after.", param="after")
    there = tuple_(*(literal(value, column.type) for value, column in zip(found, order, strict=True)))
    return rows.where(position < there if descending else position > there)
