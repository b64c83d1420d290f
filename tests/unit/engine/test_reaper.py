"""Marked processes end with their owner, whatever ended it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import psutil
import pytest

from app.engine.reaper import Reaper, carriers

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
# A marked child with a marked grandchild in another session, and a process that is not marked.
OWNER = """
import os, subprocess, sys, time
from pathlib import Path
from app.engine.reaper import MARK, Reaper
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
nest = [sys.executable, "-c", f"import subprocess; subprocess.run({sleep!r}, start_new_session=True)"]
reaper = Reaper(folder=Path(sys.argv[1]))
subprocess.Popen(nest, env=os.environ | reaper.environment)
plain = subprocess.Popen(sleep)
print(reaper.environment[MARK], plain.pid, reaper.pid, flush=True)
time.sleep(60)
"""


def _wait_for(count: int, token: str) -> None:
    deadline = time.monotonic() + 10
    while len(carriers(token)) != count:
        assert time.monotonic() < deadline, carriers(token)
        time.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "socket").touch()
    return folder


@pytest.fixture
def owner(folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_owner_killed_takes_all_marked_processes_along(owner: subprocess.Popen[str], folder: Path) -> None:
    assert owner.stdout is not None
    token, plain, reaper = owner.stdout.readline().split()
    _wait_for(2, token)
    owner.send_signal(signal.SIGKILL)
    try:
        _wait_for(0, token)
        psutil.wait_procs([psutil.Process(int(reaper))] if psutil.pid_exists(int(reaper)) else [], timeout=5)
        assert not folder.exists()
        assert psutil.pid_exists(int(plain))
    finally:
        os.kill(int(plain), signal.SIGKILL)


def test_reaper_outlives_the_signals_of_a_terminal(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    token, plain, reaper = owner.stdout.readline().split()
    _wait_for(2, token)
    assert os.getsid(int(reaper)) != os.getsid(owner.pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(int(reaper), number)
    owner.send_signal(signal.SIGKILL)
    os.kill(int(plain), signal.SIGKILL)
    _wait_for(0, token)


def test_close_ends_marked_processes_and_the_folder(folder: Path) -> None:
    reaper = Reaper(folder=folder)
    with subprocess.Popen(SLEEP, env=os.environ | reaper.environment) as marked, subprocess.Popen(SLEEP) as plain:
        reaper.close()
        reaper.close()
        assert marked.wait(5) == -signal.SIGKILL
        assert plain.poll() is None
        plain.kill()
    assert not folder.exists()


def test_close_ends_marked_processes_when_the_reaper_was_killed(folder: Path) -> None:
    reaper = Reaper(folder=folder)
    with subprocess.Popen(SLEEP, env=os.environ | reaper.environment) as marked:
        os.kill(reaper.pid, signal.SIGKILL)
        reaper.close()
        assert marked.wait(5) == -signal.SIGKILL


def test_kill_spares_the_resource_tracker(folder: Path) -> None:
    reaper = Reaper(folder=folder)
    read, write = os.pipe()
    command = [sys.executable, "-c", f"from multiprocessing.resource_tracker import main;main({read})"]
    with subprocess.Popen(command, env=os.environ | reaper.environment, pass_fds=[read]) as tracker:
        os.close(read)
        assert reaper.kill() == 0
        reaper.close()
        assert tracker.poll() is None
        os.close(write)
        assert tracker.wait(5) == 0


# As killpg does, or a container's end: nobody but the reaper is left to unlink the memory.
SHARER = """
import sys, time
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *_: None
memory = shared_memory.SharedMemory(create=True, size=1000)
print(memory.name, flush=True)
time.sleep(60)
"""


def test_shared_memory_of_killed_processes_is_removed(folder: Path) -> None:
    kept = shared_memory.SharedMemory(create=True, size=1000)
    reaper = Reaper(folder=folder)
    command = [sys.executable, "-c", SHARER]
    try:
        with subprocess.Popen(
            command, env=os.environ | reaper.environment, stdout=subprocess.PIPE, text=True
        ) as marked:
            assert marked.stdout is not None
            name = marked.stdout.readline().strip()
            assert (Path("/dev/shm") / name).exists()
            time.sleep(1.5)  # it has been seen
            marked.kill()
        reaper.close()
        assert not (Path("/dev/shm") / name).exists()
        assert (Path("/dev/shm") / kept.name).exists()
    finally:
        kept.close()
        kept.unlink()


def test_shared_memory_that_others_use_too_stays(folder: Path) -> None:
    reaper = Reaper(folder=folder)
    with subprocess.Popen(
        [sys.executable, "-c", SHARER], env=os.environ | reaper.environment, stdout=subprocess.PIPE, text=True
    ) as marked:
        assert marked.stdout is not None
        name = marked.stdout.readline().strip()
        used = shared_memory.SharedMemory(name=name)
        reaper.close()
        marked.wait(5)
    assert (Path("/dev/shm") / name).exists()
    used.close()
    used.unlink()
