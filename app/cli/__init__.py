"""The `batchyard` command. Exit codes: 0 done, 1 it did not work, 2 the command line or a setting is wrong."""

from __future__ import annotations

import sys

from app.cli.commands import cli
from app.errors import BatchyardError, SettingsInvalid

__all__ = ["cli", "main"]


def main() -> None:
    """Run the command line of this process. An expected failure is one line on stderr, never a traceback."""
    try:
        cli(prog_name="batchyard")
    except SettingsInvalid as exc:
        _end(f"error: {exc.message}", 2)
    except BatchyardError as exc:
        _end(f"error: {exc.message}", 1)


def _end(line: str, code: int) -> None:
    sys.stderr.write(line + "\n")
    sys.exit(code)
