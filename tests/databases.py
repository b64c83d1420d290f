"""Databases for tests: SQLite, and a private PostgreSQL server that lives as long as the test session.

A test that takes `database` runs once on each, and finds it migrated and empty: a copied file, and truncated tables.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest

from app.store import schema
from app.store.contract_tables import metadata  # which brings those of `tables` along
from app.store.db import Database, parse
from tests.requirement import without

T = TypeVar("T")

_names = count()
_MIGRATED = "batchyard"
_RESET = f"""
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{_MIGRATED}' AND pid <> pg_backend_pid();
TRUNCATE {", ".join(metadata.tables)};
UPDATE alembic_version SET version_num = '{schema.head()}';
"""
# The shell that starts the server outlives a test run that is killed, sees its standard input end, and tidies up.
_SERVE = """
exec 3>&1 >"$1/output" 2>&1
set -- "$@" "-k $1 -c listen_addresses= -c fsync=off -c synchronous_commit=off -c full_page_writes=off"
"$2/initdb" -D "$1/data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 -N 3>&- &&
"$2/pg_ctl" -D "$1/data" -l "$1/log" -o "$3" -w start 3>&- &&
echo ready >&3
exec 3>&-
read -r _
"$2/pg_ctl" -D "$1/data" -m immediate -w stop
cd / && rm -rf "$1"
"""


class Postgres:
    """A running server, reached through a socket in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def url(self, name: str) -> str:
        return f"postgresql+asyncpg://postgres@/{name}?host={self.folder}"

    def execute(self, statement: str, *, name: str = "postgres") -> None:
        async def run() -> None:
            connection = await asyncpg.connect(host=str(self.folder), user="postgres", database=name)
            try:
                await connection.execute(statement)
            finally:
                await connection.close()

        _apart(lambda: asyncio.run(run()))


def _apart(work: Callable[[], T]) -> T:
    """`work` in a thread, where an event loop of its own does not touch the tests' loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def binaries() -> Path | None:
    """The folder of initdb, pg_ctl and postgres; None where they are not installed."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    wanted = ("initdb", "pg_ctl", "postgres")
    return next((folder for folder in folders if all((folder / name).exists() for name in wanted)), None)


def programs() -> Path:
    """As `binaries`; the test is skipped (in CI: failed) where they are not installed."""
    found = binaries()
    if found is None:
        without("PostgreSQL's initdb and pg_ctl are neither on PATH nor under /usr/lib/postgresql")
    return found


def server_user() -> dict[str, Any]:
    """How to start the server: it refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        without("PostgreSQL does not run as root, and there is no OS user `postgres`")
    return {"user": "postgres", "group": "postgres", "extra_groups": []}


@pytest.fixture(scope="session")
def postgres_server() -> Generator[Postgres]:
    """Started on first use, without a network port or fsync; skipped (in CI: failed) where it is not installed."""
    bin_folder = programs()
    user = server_user()
    folder = Path(tempfile.mkdtemp(prefix="batchyard-pg-"))
    if user:
        shutil.chown(folder, user["user"], user["group"])
    command = ["sh", "-c", _SERVE, "serve", str(folder), str(bin_folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, start_new_session=True, stdin=pipe, stdout=pipe, **user) as keeper:
        assert keeper.stdout is not None
        if keeper.stdout.readline() != b"ready\n":
            raise RuntimeError((folder / "output").read_text(errors="replace"))
        server = Postgres(folder)
        server.execute(f"CREATE DATABASE {_MIGRATED}")
        _apart(lambda: schema.upgrade(parse(server.url(_MIGRATED))))
        yield server


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file, to be copied."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    _apart(lambda: schema.upgrade(parse(f"sqlite+aiosqlite:///{path}")))
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of a migrated SQLite database of this test's own."""
    path = tmp_path / "batchyard.db"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite+aiosqlite:///{path}"


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> str:
    """The URL of a migrated Postgres database that is empty and that nobody else is connected to."""
    postgres_server.execute(_RESET, name=_MIGRATED)
    return postgres_server.url(_MIGRATED)


@pytest.fixture
def empty_postgres_url(postgres_server: Postgres) -> Generator[str]:
    """The URL of a Postgres database without a schema."""
    name = f"test_{next(_names)}"
    postgres_server.execute(f"CREATE DATABASE {name}")
    yield postgres_server.url(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


BOTH = [pytest.param("sqlite", id="sqlite"), pytest.param("postgres", id="postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=BOTH)
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of a migrated database, once on each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=BOTH)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without a schema, once on each kind."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/empty.db"
    url: str = request.getfixturevalue("empty_postgres_url")
    return url


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    """A migrated database, once on each kind; every connection must be back at the end."""
    async for opened in _opened(database_url):
        yield opened


@pytest.fixture
async def sqlite_database(sqlite_url: str) -> AsyncGenerator[Database]:
    """A migrated SQLite database, for rooms that do not care which kind."""
    async for opened in _opened(sqlite_url):
        yield opened


async def _opened(url: str) -> AsyncGenerator[Database]:
    opened = Database(url)
    try:
        yield opened
        assert opened.checked_out == 0, "a connection was not given back"
    finally:
        await opened.close()
