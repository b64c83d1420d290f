"""The `batchyard` command. Exit codes: 0 done, 1 it did not work, 2 the command line or a setting is wrong."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

from app.cli.commands import cli
from app.errors import BatchyardError, SettingsInvalid

__all__ = ["cli", "main", "program"]


def program() -> NoReturn:
    """`main` as a process of its own, which ends here.

    The threads of the S3 client cannot be stopped, and one that drops a Python object while the interpreter is taken
    down aborts the process (exit code 134 instead of 0, in one of six on a busy machine). So it is not taken down.
    """
    code: int | str | None = None
    try:
        main()
    except SystemExit as exc:
        code = exc.code
    if "obstore" in sys.modules and not isinstance(code, str):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(code)


def main() -> None:
    """Run the command line. An expected failure is one line on stderr, never a traceback. Raises SystemExit."""
    try:
        cli(prog_name="batchyard")
    except SettingsInvalid as exc:
        _end(f"error: {exc.message}", 2)
    except BatchyardError as exc:
        _end(f"error: {exc.message}", 1)


def _end(line: str, code: int) -> NoReturn:
    sys.stderr.write(line + "\n")
    sys.exit(code)
