"""Counts and token usage as columns: their names are those of Tally and Usage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import ColumnElement, RowMapping, Table

from app.domain.chunk import Tally
from app.domain.usage import Usage

_USAGE = Usage.__struct_fields__


def from_row(row: RowMapping) -> Tally:
    """The tally of a batch, chunk or part row. A batch has no column `unrun`: the wire does not count such lines."""
    usage = Usage(**{name: row[name] for name in _USAGE})
    return Tally(completed=row["completed"], failed=row["failed"], unrun=row.get("unrun", 0), usage=usage)


def columns(tally: Tally) -> dict[str, int]:
    """The values of a new row."""
    return {"completed": tally.completed, "failed": tally.failed, "unrun": tally.unrun, **asdict(tally.usage)}


def shrunk(table: Table, tally: Tally) -> Mapping[str, ColumnElement[Any]]:
    """SET clauses that take `tally` off the columns that `table` has."""
    return {name: table.c[name] - value for name, value in columns(tally).items() if value and name in table.c}


def grown(table: Table, tally: Tally) -> Mapping[str, ColumnElement[Any]]:
    """SET clauses that add `tally` to the columns that `table` has."""
    return {name: table.c[name] + value for name, value in columns(tally).items() if value and name in table.c}
