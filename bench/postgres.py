"""A Postgres server of a measurement's own: durable as installed, on a socket in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

_PROGRAMS = ("initdb", "pg_ctl", "postgres")
_USER = "postgres"


def programs() -> Path | None:
    """The folder of the server's programs; None where they are not installed."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if all((folder / name).exists() for name in _PROGRAMS)), None)


@contextlib.contextmanager
def postgres(folder: Path) -> Generator[str]:
    """The URL of an empty database. Raises RuntimeError when the server does not start."""
    # It refuses to run as root.
    user: dict[str, Any] = {"user": _USER, "group": _USER, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="batchyard-pg-") as name:
        place = Path(name)
        if user:
            shutil.chown(place, _USER, _USER)
        _run([str(folder / "initdb"), "-D", f"{place}/data", "-U", _USER, "-A", "trust", "-E", "UTF8"], place, user)
        control = [str(folder / "pg_ctl"), "-D", f"{place}/data", "-w"]
        _run([*control, "-l", f"{place}/log", "-o", f"-k {place} -c listen_addresses=", "start"], place, user)
        try:
            yield f"postgresql+asyncpg://{_USER}@/{_USER}?host={place}"
        finally:
            _run([*control, "-m", "immediate", "stop"], place, user)


def _run(command: list[str], place: Path, user: dict[str, Any]) -> None:
    # A file, not a pipe: the server that stays keeps it open.
    with (place / "output").open("ab") as output:
        done = subprocess.run(command, cwd=place, stdout=output, stderr=output, check=False, **user)
    if done.returncode:
        raise RuntimeError((place / "output").read_text(errors="replace")[-2000:])
