"""Failpoints: nothing unless named; then what was named, as often as was said."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from app import failpoint
from app.errors import SettingsInvalid, Unavailable
from app.failpoint import NAMES, Trap, arm, parse
from app.settings import load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def disarmed() -> Generator[None]:
    yield
    arm({})


def test_parse_reads_every_form() -> None:
    assert parse("") == {}
    assert parse("part_written=kill, sealed=pause:1.5@3,finished=error,chunk_claimed=freeze@2") == {
        "part_written": Trap("kill"),
        "sealed": Trap("pause", 1.5, 3),
        "finished": Trap("error"),
        "chunk_claimed": Trap("freeze", 0, 2),
    }


@pytest.mark.parametrize("text", ["part_written", "part_written=die", "nowhere=kill", "sealed=pause", "sealed=kill@0"])
def test_load_refuses_a_wrong_failpoint(text: str) -> None:
    with pytest.raises(SettingsInvalid, match=r"debug\.failpoint"):
        load(environ={"BATCHYARD_DEBUG_FAILPOINT": text})


async def test_pass_a_point_that_is_not_armed() -> None:
    arm(parse("sealed=error"))
    await failpoint.failpoint("part_written")


async def test_fail_the_second_time_only() -> None:
    arm(parse("sealed=error@2"))
    await failpoint.failpoint("sealed")
    with pytest.raises(Unavailable):
        await failpoint.failpoint("sealed")
    await failpoint.failpoint("sealed")


async def test_pause_lets_the_loop_go_on() -> None:
    arm(parse("sealed=pause:1"))
    began = time.monotonic()
    pausing = asyncio.create_task(failpoint.failpoint("sealed"))
    await asyncio.sleep(0.01)
    assert not pausing.done()
    await pausing
    assert time.monotonic() - began >= 0.9


@pytest.mark.parametrize(("action", "number"), [("kill", signal.SIGKILL), ("freeze", signal.SIGSTOP)])
def test_kill_and_freeze_send_the_signal(action: str, number: signal.Signals) -> None:
    code = f"""
import asyncio, os
from app import failpoint
os.kill = lambda pid, number: print(pid == os.getpid(), int(number))
failpoint.arm(failpoint.parse("sealed={action}"))
asyncio.run(failpoint.failpoint("sealed"))
"""
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    )
    assert told.stdout.split()[-2:] == ["True", str(int(number))]


def test_every_name_stands_in_the_code_and_every_point_has_a_name() -> None:
    sources = [path.read_text() for path in (ROOT / "app").rglob("*.py") if path.name != "failpoint.py"]
    placed = {name for text in sources for name in re.findall(r'await failpoint\("(\w+)"\)', text)}
    assert placed == set(NAMES)
