"""The whole product around an engine that is killed and frozen in the middle of batches.

`BATCHYARD_CHAOS_KILLS=5` (`make chaos-engine`) kills it that often; each kill costs a load of the model.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.acceptance.batch import by_id, chat, counts, create, rows, wait
from tests.acceptance.server import Server

KILLS = int(os.environ.get("BATCHYARD_CHAOS_KILLS", "2"))
MODEL = "SmolLM2-135M-Instruct"
LOAD_SECONDS = 300
HANG_SECONDS = 10
LINES_A_LIFE = 50

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900 + 300 * KILLS)]


def until(condition: Callable[[], bool], *, seconds: float) -> float:
    """How long it took to come true, in seconds."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it did not come true"
        time.sleep(0.01)
    return time.monotonic() - start


def ask(custom_id: str, **body: Any) -> dict[str, Any]:
    return chat(custom_id, f"Tell me a story about {custom_id}.", model=MODEL, temperature=0, **body)


def engine_processes(server: Server) -> list[psutil.Process]:
    """EngineCore and its workers, without the resource tracker and the reaper."""
    found = []
    for process in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name().startswith("VLLM::"):
                found.append(process)
    return found


def pick(server: Server, name: str) -> psutil.Process:
    return next(process for process in engine_processes(server) if name in process.name())


def traces(server: Server) -> set[Path]:
    """What the engine of this moment has made on this machine: shared memory, and a folder for everything else."""
    found = set()
    for process in engine_processes(server):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            found.add(Path(process.environ()["TMPDIR"]))
            maps = Path("/proc", str(process.pid), "maps").read_text()
            found |= {Path("/dev/shm") / name for name in re.findall(r" /dev/shm/(\S+)", maps)}
    assert len(found) > 1
    assert any(path.name.startswith("batchyard-") for path in found)
    return found


def left(traced: set[Path]) -> list[Path]:
    return [path for path in traced if path.exists()]


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    assert model.is_dir()
    folder = tmp_path_factory.mktemp("deaths")
    settings = {
        "BATCHYARD_ENGINE_REBUILD_FIRST_SECONDS": "0.2",
        "BATCHYARD_ENGINE_REBUILD_MAX_SECONDS": "0.5",
        "BATCHYARD_ENGINE_HANG_SECONDS": str(HANG_SECONDS),
    }
    server = Server(
        folder / "data",
        folder / "server.log",
        settings=settings,
        flags=("--engine", "vllm", "--max-num-seqs", "16"),
        ready_seconds=LOAD_SECONDS,
        plain_lines=True,
    )
    try:
        server.start()
        yield server
        # Not `server.stop`: vLLM logs each death with tracebacks.
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(35) == 0
    except BaseException:
        print(server.log())
        raise
    finally:
        server.kill()


def ready(server: Server) -> bool:
    with server.http(key="") as http:
        return http.get("/ready").status_code == 200


def test_engine_killed_in_a_batch_loses_nothing_and_leaves_nothing(server: Server) -> None:
    dead: list[psutil.Process] = []
    traced: set[Path] = set()
    lines = LINES_A_LIFE * (KILLS + 1)
    fastest = float("inf")
    print()
    with server.sdk() as client, server.http(key="") as http:
        batch = create(client, [ask(str(number), max_tokens=24) for number in range(lines)])
        done = 0
        for kill in range(KILLS):
            goal = done + LINES_A_LIFE // 2
            until(lambda goal=goal: counts(client.batches.retrieve(batch.id))[1] >= goal, seconds=180)  # type: ignore[misc]
            dead += engine_processes(server)
            traced |= traces(server)
            victim = pick(server, "Worker" if kill % 2 else "EngineCore")
            victim_name = victim.name()
            victim.kill()
            noticed = until(lambda: http.get("/ready").status_code == 503, seconds=5)
            fastest = min(fastest, noticed)
            back = until(lambda: ready(server), seconds=LOAD_SECONDS)
            done = counts(client.batches.retrieve(batch.id))[1]
            own = psutil.Process(server.process.pid)
            print(
                f"kill {kill + 1} of {victim_name}: /ready 503 after {noticed:.2f} s, 200 again after {back:.1f} s, "
                f"{done} of {lines} lines done, {own.num_fds()} descriptors, {own.memory_info().rss >> 20} MiB"
            )
        batch = wait(client, batch.id, until={"completed"}, seconds=300)
        assert counts(batch) == (lines, lines, 0)
        assert set(by_id(rows(client, batch.output_file_id))) == {str(number) for number in range(lines)}
    assert fastest < 1, "a busy machine may delay one of them, not all"
    assert not [process for process in dead if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    metrics = server.metrics()
    print(
        f"deaths {metrics['batch_engine_deaths_total']:.0f}, lines run again {metrics['batch_lines_rerun_total']:.0f}"
    )
    assert metrics["batch_engine_deaths_total"] == KILLS


def test_frozen_engine_is_killed_and_its_lines_run_again(server: Server) -> None:
    deaths = server.metrics()["batch_engine_deaths_total"]
    with server.sdk() as client:
        # In flight at one death only, so nothing runs alone: the freeze is not held against a line.
        batch = create(client, [ask(f"long {number}", max_tokens=400, ignore_eos=True) for number in range(8)])
        until(lambda: server.metrics()["batch_inflight"] == 8, seconds=30)
        time.sleep(1)
        core = pick(server, "EngineCore")
        core.suspend()
        noticed = until(lambda: not ready(server), seconds=HANG_SECONDS + 10)
        print(f"\nfrozen; killed after {noticed:.1f} s (hang_seconds {HANG_SECONDS})")
        assert noticed >= HANG_SECONDS / 2
        batch = wait(client, batch.id, until={"completed"}, seconds=LOAD_SECONDS + 120)
        assert counts(batch) == (8, 8, 0)
    assert not core.is_running() or core.status() == psutil.STATUS_ZOMBIE
    assert "engine_hung" in {event.get("event") for event in server.events()}
    assert server.metrics()["batch_engine_deaths_total"] == deaths + 1


def test_stop_with_a_dead_engine_does_not_wait_for_its_lines(server: Server) -> None:
    with server.sdk() as client:
        create(client, [ask(str(number), max_tokens=400, ignore_eos=True) for number in range(30)])
        until(lambda: server.metrics()["batch_inflight"] > 0, seconds=30)
    processes, traced = engine_processes(server), traces(server)
    pick(server, "EngineCore").kill()
    until(lambda: not ready(server), seconds=5)
    start = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(35) == 0
    took = time.monotonic() - start
    print(f"\nstopped with a dead engine in {took:.1f} s")
    assert took < 12, "half of server.stop_seconds is for lines in flight, and there are none"
    assert not [process for process in processes if process.is_running()]
    assert left(traced) == []
