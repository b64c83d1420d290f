"""Alembic's environment: one transaction a run. The URL comes from `app.store.schema` or from `-x url=…`."""

from __future__ import annotations

import asyncio

from alembic import context
from sqlalchemy import URL, Connection, text

from app.errors import SettingsInvalid
from app.store.contract_tables import metadata  # which brings those of `tables` along
from app.store.db import connector, parse

_LOCK = 0x6261746368  # one migration at a time on a Postgres server's database; SQLite's BEGIN IMMEDIATE says the same


def _url() -> URL:
    given = context.config.attributes.get("url")
    if isinstance(given, URL):
        return given
    named = context.get_x_argument(as_dictionary=True).get("url")
    if named is None:
        raise SettingsInvalid("Say which database: alembic -x url=sqlite+aiosqlite:///PATH …")
    return parse(named)


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,
        compare_type=True,
        transactional_ddl=True,
    )
    with context.begin_transaction():
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        context.run_migrations()


async def _online() -> None:
    # Without foreign keys: SQLite changes a table by replacing it, and dropping the old one would break its children.
    engine = connector(_url(), foreign_keys=False)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_run)
    finally:
        await engine.dispose()


asyncio.run(_online())
