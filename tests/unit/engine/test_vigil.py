"""The end of a process is told at once, and once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from app.engine.vigil import Vigil

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
# Prints its child's pid: a process that is not ours to wait for.
NEST = [sys.executable, "-c", f"import subprocess; c = subprocess.Popen({SLEEP!r}); print(c.pid, flush=True); c.wait()"]


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_end_of_a_grandchild_is_told_once() -> None:
    told: list[float] = []
    loop = asyncio.get_running_loop()
    with start(NEST) as parent, start(SLEEP) as other:
        assert parent.stdout is not None
        grandchild = int(await asyncio.to_thread(parent.stdout.readline))
        vigil = Vigil([grandchild, other.pid], ended=lambda: told.append(loop.time()))
        await asyncio.sleep(0.2)
        assert told == []
        os.kill(grandchild, 9)
        async with asyncio.timeout(5):
            while not told:  # noqa: ASYNC110 - a moment
                await asyncio.sleep(0.001)
        other.kill()
        await asyncio.sleep(0.2)
        vigil.close()
        parent.kill()
    assert len(told) == 1


async def test_process_that_has_gone_already_is_told() -> None:
    told: list[int] = []
    with start([sys.executable, "-c", ""]) as gone:
        gone.wait()
    vigil = Vigil([gone.pid], ended=lambda: told.append(1))
    await asyncio.sleep(0.05)
    assert told == [1]
    vigil.close()


async def test_nothing_is_told_after_close() -> None:
    told: list[int] = []
    with start(SLEEP) as process:
        vigil = Vigil([process.pid], ended=lambda: told.append(1))
        vigil.close()
        vigil.close()
        process.kill()
    await asyncio.sleep(0.1)
    assert told == []
