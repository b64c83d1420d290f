"""Database and blobs seen from outside, and a Postgres that can be taken away."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import asyncpg

from tests.databases import Postgres, binaries, server_user

_CUSTOM_ID = re.compile(rb'"custom_id":"([^"]+)"')
# The machine does not crash, so nothing need reach the disk; but what was committed must survive an immediate stop.
_OPTIONS = "-c listen_addresses= -c fsync=off -c synchronous_commit=on -c full_page_writes=off"
#: Every blob that a row names, but for uploads: parts, sealed segments, and the segments of result files.
_RESULT_KEYS = """
SELECT key FROM parts
UNION SELECT output_key FROM chunks WHERE output_key IS NOT NULL
UNION SELECT error_key FROM chunks WHERE error_key IS NOT NULL
UNION SELECT key FROM segments WHERE key LIKE 'segments/%'
"""
_OWNED_KEYS = f"{_RESULT_KEYS} UNION SELECT key FROM segments"


class Rows(Protocol):
    """A database to look into. Raises OSError or the driver's error when it is away."""

    url: str

    def query(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        """Rows of a statement with placeholders `$1`, `$2` …; committed."""

    def blocked(self) -> bool:
        """Nobody can write at the moment."""


class SqliteRows:
    """A file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite+aiosqlite:///{path}"

    def query(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        with closing(sqlite3.connect(self._path, timeout=30)) as connection, connection:
            return connection.execute(re.sub(r"\$(\d)", r"?\1", statement), values).fetchall()

    def blocked(self) -> bool:
        with closing(sqlite3.connect(self._path, timeout=0.3, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            connection.execute("ROLLBACK")
            return False


class PostgresRows:
    """A database of a server that is reached by a socket."""

    def __init__(self, server: Postgres, name: str) -> None:
        self._folder = server.folder
        self._name = name
        self.url = server.url(name)

    def query(self, statement: str, *values: Any) -> list[Sequence[Any]]:
        async def run() -> list[Sequence[Any]]:
            connection = await asyncpg.connect(host=str(self._folder), user="postgres", database=self._name, timeout=10)
            try:
                return [tuple(row) for row in await connection.fetch(statement, *values)]
            finally:
                await connection.close()

        return asyncio.run(run())

    def blocked(self) -> bool:
        return False


class PrivatePostgres(Postgres):
    """A server of this run's own. It can be stopped, also roughly, and started again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        found = binaries()
        if found is None:
            raise RuntimeError("PostgreSQL's initdb and pg_ctl are neither on PATH nor under /usr/lib/postgresql")
        self._binaries = found
        self._run("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N")

    def start(self) -> None:
        self._run("pg_ctl", "-l", str(self.folder / "log"), "-o", f"-k {self.folder} {_OPTIONS}", "-w", "start")

    def stop(self, *, mode: str = "fast") -> None:
        self._run("pg_ctl", "-m", mode, "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), "-D", str(self.folder / "data"), *arguments]
        output = self.folder / "output"
        with output.open("ab") as stream:
            code = subprocess.run(command, cwd=self.folder, stdout=stream, stderr=stream, **server_user()).returncode
        if code:
            raise RuntimeError(f"{program} ended with {code}: {output.read_text(errors='replace')[-2000:]}")


@contextmanager
def private_postgres() -> Generator[PrivatePostgres]:
    """Started; gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="batchyard-chaos-pg-"))
    user = server_user()
    if user:
        shutil.chown(folder, user["user"], user["group"])
    try:
        server = PrivatePostgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop(mode="immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Storage:
    """Rows and blobs of one service."""

    def __init__(self, rows: Rows, blobs: Path) -> None:
        self.rows = rows
        self._blobs = blobs
        self._read: dict[str, frozenset[str]] = {}  # blobs never change
        self._lock = threading.Lock()

    def durable(self) -> frozenset[str]:
        """The custom_id of every line whose result is committed now."""
        with self._lock:
            for _ in range(20):
                keys = [row[0] for row in self.rows.query(_RESULT_KEYS)]
                try:
                    return frozenset().union(*(self._custom_ids(key) for key in keys))
                except FileNotFoundError:
                    continue  # its chunk was sealed at this moment: look again
        raise RuntimeError("blobs that the database names are missing")

    def _custom_ids(self, key: str) -> frozenset[str]:
        if key not in self._read:
            found = _CUSTOM_ID.findall((self._blobs / key).read_bytes())
            self._read[key] = frozenset(name.decode() for name in found)
        return self._read[key]

    def blocked(self) -> bool:
        """Nobody can write at the moment: a process that froze has the lock."""
        return self.rows.blocked()

    def ownerless(self) -> set[str]:
        """Blobs, and unfinished writes, that no row names."""
        stored = {
            str((Path(folder) / name).relative_to(self._blobs))
            for folder, _, names in os.walk(self._blobs)  # unlike rglob, it does not mind a folder that goes
            for name in names
        }
        return stored - {row[0] for row in self.rows.query(_OWNED_KEYS)}

    def missing(self) -> set[str]:
        """Blobs that a row names and that are not there, or not as long as it says."""
        named = self.rows.query("SELECT key, bytes FROM segments")
        return {key for key, size in named if not _is(self._blobs / key, size)}

    def age(self, batch_id: str) -> None:
        """Let the deadline of this batch pass."""
        self.rows.query("UPDATE batches SET expires_at = created_at - 1 WHERE id = $1", batch_id)


def _is(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False
