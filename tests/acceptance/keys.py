"""`batchyard keys` as an operator uses it, on the database of a server that may be running."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from app.cli import cli


def batchyard(*arguments: str, data_dir: Path) -> Result:
    """The outcome of the command; in this process, because another one takes seconds to begin."""
    unset = {name: None for name in os.environ if name.startswith("BATCHYARD_")}
    return CliRunner(env=unset).invoke(cli, ["keys", *arguments, "--data-dir", str(data_dir)])


def make_key(data_dir: Path, *options: str) -> str:
    """A new key."""
    ended = batchyard("create", *options, data_dir=data_dir)
    assert ended.exit_code == 0, ended.output
    return ended.stdout.strip()


def revoke(data_dir: Path, key_id: str) -> None:
    ended = batchyard("revoke", key_id, data_dir=data_dir)
    assert ended.exit_code == 0, ended.output


def listed(data_dir: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(batchyard("list", "--json", data_dir=data_dir).stdout)
    return found
