"""Failpoints: named moments at which a test lets a process die, freeze, wait or fail.

A moment is marked by `await failpoint("part_written")`. It does nothing unless `debug.failpoint` names it, and costs
one look at an empty dictionary; none stands where a single line passes. The setting reads `NAME=ACTION`, or
`NAME=ACTION@N` for the Nth time only, several of them with commas between:

    kill            SIGKILL to this process
    freeze          SIGSTOP to this process: somebody else must send SIGCONT
    pause:SECONDS   this task waits, the process goes on
    error           app.errors.Unavailable, as if database or blob store did not answer
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from app.errors import Unavailable

log = structlog.get_logger()

#: Every moment, in the order in which a batch meets them.
NAMES = (
    "upload_stored",  # the bytes of an upload are durable, no row names them
    "upload_named",  # … and now one does; the client has no answer yet
    "upload_part_stored",  # the same of a part of an Upload
    "upload_completed",  # an Upload is a file; the client has no answer yet
    "create_recorded",  # batch and idempotency key are written, not committed
    "create_committed",  # a batch exists; the client has no answer yet
    "validation_claimed",
    "validation_recorded",  # verdict and chunks are written, not committed
    "validation_committed",
    "chunk_claimed",
    "part_written",  # the bytes of a part are durable, no row names them
    "part_recorded",  # … its row is written, not committed
    "part_committed",
    "segments_written",
    "seal_recorded",
    "sealed",  # committed; the blobs of the parts still lie there
    "finalizing_begun",
    "finish_recorded",
    "finished",
    "webhook_claimed",
    "webhook_sent",  # the receiver has it, and no row says so
    "cancel_committed",
    "purge_committed",  # the rows of a file are gone, its blobs still lie there
)

_SHAPE = re.compile(r"(?P<name>\w+)=(?P<action>kill|freeze|error|pause:(?P<seconds>\d+(\.\d+)?))(@(?P<nth>[1-9]\d*))?")


@dataclass(frozen=True, slots=True)
class Trap:
    """What happens at a point: every time, or only the `nth` time."""

    action: str
    seconds: float = 0.0
    nth: int | None = None


_armed: dict[str, Trap] = {}
_passed: dict[str, int] = {}


def parse(text: str) -> dict[str, Trap]:
    """The traps that a setting describes, by point. Raises ValueError with a sentence."""
    traps: dict[str, Trap] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        found = _SHAPE.fullmatch(item)
        if found is None:
            raise ValueError(f"a failpoint reads NAME=ACTION or NAME=ACTION@N, see app/failpoint.py: {item}")
        if found["name"] not in NAMES:
            raise ValueError(f"there is no failpoint {found['name']}; there are {', '.join(NAMES)}")
        nth = None if found["nth"] is None else int(found["nth"])
        traps[found["name"]] = Trap(found["action"].partition(":")[0], float(found["seconds"] or 0), nth)
    return traps


def arm(traps: Mapping[str, Trap]) -> None:
    """Set `traps` for this process, in place of those before."""
    _armed.clear()
    _passed.clear()
    _armed.update(traps)


async def failpoint(name: str) -> None:
    """The moment `name`. Raises Unavailable where a test asked for that."""
    if _armed and name in _armed:
        await _spring(name, _armed[name])


async def _spring(name: str, trap: Trap) -> None:
    _passed[name] = _passed.get(name, 0) + 1
    if trap.nth is not None and trap.nth != _passed[name]:
        return
    log.warning("failpoint_fired", failpoint=name, action=trap.action)
    if trap.action == "pause":
        await asyncio.sleep(trap.seconds)
    elif trap.action == "error":
        raise Unavailable(f"The failpoint {name} was asked to fail.")
    else:
        os.kill(os.getpid(), signal.SIGKILL if trap.action == "kill" else signal.SIGSTOP)
