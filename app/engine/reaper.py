"""Ends an engine's processes when ours is gone, however it went.

    our process ──pipe── reaper
        └─ engine processes, each with MARK=<token> in its environment

The reaper is a small process in its own session that reads the pipe. End of file means that our process ended (also by
kill -9) or let go on purpose; then it kills every process that carries the token, removes the folder and the shared
memory that they leave behind, and exits.
Whatever carries the token is found through /proc, so grandchildren count, and so do children that we never heard of.
A parent-death signal would not do: it follows the thread that forked, and grandchildren do not inherit it.

This file runs as a script in the reaper, without site-packages: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "BATCHYARD_ENGINE"
# It unlinks the shared memory of those that were killed, and ends by itself when the last of them has.
_SPARED = b"multiprocessing.resource_tracker"
_PAUSE_SECONDS = 0.1
_SHARED_NAME = re.compile(r" /dev/shm/([^/\n]+?)(?: \(deleted\))?$", re.MULTILINE)
# How often the reaper looks which shared memory is in use: at first often, for most is made while the engine loads.
_LOOK_FIRST_SECONDS = 0.5
_LOOK_MAX_SECONDS = 15.0
_SHARED = Path("/dev/shm")  # noqa: S108 - where Linux keeps it
_QUIET_ROUNDS = 3  # rounds in a row that found nothing; a process just forked shows its token only after its exec


class Reaper:
    """Watches over the processes of one engine. `folder` is removed with them.

    `environment` is what marks them; it must be in os.environ while they are started. All methods block (milliseconds;
    `close` until the processes are gone, a second or so).
    """

    def __init__(self, *, folder: Path) -> None:
        token = secrets.token_hex(16)
        # setproctitle, which vLLM's processes use, writes the title over their environment unless told not to.
        self.environment = {MARK: token, "SPT_NOENV": "1"}
        self._token = token
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and file
            [sys.executable, "-I", "-S", __file__, token, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
        # Until it says so, a signal to the whole control group would end it like any other process.
        assert self._process.stdout is not None
        with self._process.stdout:
            self._process.stdout.read(1)

    @property
    def pid(self) -> int:
        """The reaper's own process."""
        return self._process.pid

    def carriers(self, *, named: str) -> list[int]:
        """Pids of what carries the token now, and whose name begins with `named`."""
        return [pid for pid in carriers(self._token) if _name(pid).startswith(named)]

    def kill(self) -> int:
        """Kill what carries the token now; returns how many."""
        return kill(self._token)

    def close(self) -> None:
        """Kill until nothing is left, remove the folder, and end the reaper. Idempotent."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait()
        # Should the reaper itself have been killed.
        while kill(self._token):
            time.sleep(_PAUSE_SECONDS)


def carriers(token: str) -> list[int]:
    """Pids of the living processes that carry `token`, without the resource tracker."""
    mark = f"{MARK}={token}".encode()
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit() and _carries(entry.name, mark)]


def kill(token: str) -> int:
    """SIGKILL every carrier of `token`; returns how many."""
    mark = f"{MARK}={token}".encode()
    killed = 0
    for pid in carriers(token):
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                # The pid may have passed on to another process between the scan and the open.
                if _carries(str(pid), mark):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    killed += 1
            finally:
                os.close(handle)
    return killed


def _name(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "comm").read_text()
    except OSError:
        return ""


def _carries(pid: str, mark: bytes) -> bool:
    try:
        # Zombies have an empty environment; other users' processes do not let us read theirs.
        if mark not in Path("/proc", pid, "environ").read_bytes().split(b"\0"):
            return False
        return _SPARED not in Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return False


def _names() -> set[str]:
    try:
        return {entry.name for entry in _SHARED.iterdir()}
    except OSError:
        return set()


def _mapped(pids: Iterable[int]) -> set[str]:
    """Names of the shared memory that these processes have mapped, as far as they let us read that."""
    found: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.update(_SHARED_NAME.findall(Path("/proc", str(pid), "maps").read_text(errors="replace")))
    return found


def main(token: str, folder: str) -> None:
    """The reaper's own process."""
    others = _names()  # there before the engine was: not for us to remove
    names: set[str] = set()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, b"+")
    os.close(1)
    look_seconds = _LOOK_FIRST_SECONDS
    # Readable: the end of the file, for nothing is ever written.
    while not select.select([0], [], [], look_seconds)[0]:
        names |= _mapped(carriers(token))
        look_seconds = min(_LOOK_MAX_SECONDS, look_seconds * 1.2)
    quiet = 0
    while quiet < _QUIET_ROUNDS:
        names |= _mapped(carriers(token))
        quiet = 0 if kill(token) else quiet + 1
        time.sleep(_PAUSE_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    in_use = _mapped(int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    for name in names - others - in_use:
        with contextlib.suppress(OSError):
            (_SHARED / name).unlink()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
