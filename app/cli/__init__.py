"""The `batchyard` command. Exit codes: 0 done, 1 it did not work, 2 the command line or a setting is wrong."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

from app.cli.commands import cli
from app.errors import BatchyardError, SettingsInvalid

__all__ = ["cli", "main"]


def main() -> NoReturn:
    """Run the command line of this process. An expected failure is one line on stderr, never a traceback."""
    try:
        cli(prog_name="batchyard")
        code: int | str | None = 0
    except SettingsInvalid as exc:
        code = _failure(exc, 2)
    except BatchyardError as exc:
        code = _failure(exc, 1)
    except SystemExit as exc:  # how a command ends
        code = exc.code
    _leave(code)


def _failure(exc: BatchyardError, code: int) -> int:
    sys.stderr.write(f"error: {exc.message}\n")
    return code


def _leave(code: int | str | None) -> NoReturn:
    """End the process.

    The threads of the S3 client cannot be stopped, and one that drops a Python object while the interpreter is taken
    down aborts the process (exit code 134 instead of 0, in one of six on a busy machine). So it is not taken down.
    """
    if "obstore" in sys.modules and (code is None or isinstance(code, int)):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(code)
