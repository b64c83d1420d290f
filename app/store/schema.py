"""The schema's revisions: which one a database has, which one this release needs, and the way up."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from threading import Lock

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection

#: Beside the package `app`, in a checkout and in site-packages alike.
MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"

_one_at_a_time = Lock()  # alembic keeps the running environment in module globals


def config(url: URL) -> Config:
    """Alembic's configuration for `url`; `migrations/env.py` reads the attribute."""
    settings = Config()
    settings.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    settings.attributes["url"] = url
    return settings


@cache
def head() -> str:
    """The newest revision under `migrations/`."""
    scripts = Config()
    scripts.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    revision = ScriptDirectory.from_config(scripts).get_current_head()
    assert revision is not None, "migrations/versions is empty"
    return revision


def current(connection: Connection) -> str | None:
    """The revision of a database, None without one."""
    return MigrationContext.configure(connection).get_current_revision()


def upgrade(url: URL) -> None:
    """Blocking, with an event loop of its own: call it in a thread."""
    with _one_at_a_time:
        command.upgrade(config(url), "head")
