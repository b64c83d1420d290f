"""The database's clock in SQL: processes that share a database agree on it, whatever their own clock says."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class moment(FunctionElement[float]):
    """Unix seconds with their fraction, at the start of the statement."""

    type = Double()
    inherit_cache = True


class seconds(FunctionElement[int]):
    """Whole Unix seconds, rounded down, at the start of the statement."""

    type = BigInteger()
    inherit_cache = True


# SQLite before 3.42 has no sub-second unixepoch(); a Julian day carries milliseconds.
@compiles(moment, "sqlite")
def _moment_sqlite(element: moment, compiler: Any, **options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(seconds, "sqlite")
def _seconds_sqlite(element: seconds, compiler: Any, **options: Any) -> str:
    return "CAST(strftime('%s', 'now') AS INTEGER)"


# Not now(): that is the start of the transaction, and a transaction may have waited for a lock since.
@compiles(moment, "postgresql")
def _moment_postgresql(element: moment, compiler: Any, **options: Any) -> str:
    return "CAST(extract(epoch FROM statement_timestamp()) AS DOUBLE PRECISION)"


@compiles(seconds, "postgresql")
def _seconds_postgresql(element: seconds, compiler: Any, **options: Any) -> str:
    return "CAST(floor(extract(epoch FROM statement_timestamp())) AS BIGINT)"
