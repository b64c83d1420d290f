"""Ends that come before the engine is ready, or from outside. No other engine runs meanwhile: this file sorts first."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from app.engine.base import Health
from app.engine.vllm import VllmEngine
from app.errors import EngineDead, SettingsInvalid
from tests.vllm.conftest import ARGUMENTS, engine_processes

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),  # torch and vLLM warn while they are imported, in our process
]

OWNER = """
import asyncio, json, os, sys
from app.engine.vllm import VllmEngine

async def main():
    engine = VllmEngine(model=sys.argv[1], arguments=sys.argv[2:])
    await engine.start()
    print("ready", os.environ["VLLM_RPC_BASE_PATH"], flush=True)
    body = {"model": (await engine.models())[0], "prompt": "Once", "max_tokens": 1800, "ignore_eos": True}
    while True:
        await engine.call("/v1/completions", json.dumps(body).encode())

asyncio.run(main())
"""


def _shared_memory(processes: list[psutil.Process]) -> set[str]:
    """Names of the shared memory that `processes` have mapped."""
    maps = "".join(Path("/proc", str(process.pid), "maps").read_text() for process in processes)
    return set(re.findall(r"/dev/shm/(\S+)", maps))


def test_owner_killed_leaves_no_process_no_folder_no_shared_memory(model: Path) -> None:
    """With it Python's resource tracker, which would unlink the shared memory. Engines are nobody's children then."""
    command = [sys.executable, "-c", OWNER, str(model), *ARGUMENTS]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as owner:
        trackers: list[psutil.Process] = []
        try:
            assert owner.stdout is not None
            ready, folder = next(line for line in owner.stdout if line.startswith("ready")).split()
            processes = psutil.Process(owner.pid).children(recursive=True)
            assert any("EngineCore" in process.name() for process in processes)
            trackers = [process for process in processes if "resource_tracker" in " ".join(process.cmdline())]
            assert trackers
            shared = _shared_memory(processes)
            assert shared
        finally:
            owner.kill()
            for tracker in trackers:
                tracker.kill()
        _, alive = psutil.wait_procs(processes, timeout=5)
        assert alive == []
    assert ready
    deadline = time.monotonic() + 5  # the reaper tidies up after the last of them
    while Path(folder).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.2)
    assert shared.isdisjoint(entry.name for entry in Path("/dev/shm").iterdir())


async def test_stop_while_loading_leaves_no_process(model: Path) -> None:
    engine = VllmEngine(model=str(model), arguments=ARGUMENTS)
    start = asyncio.create_task(engine.start())
    while not any("spawn_main" in " ".join(process.cmdline()) for process in engine_processes()):
        assert not start.done()
        await asyncio.sleep(0.1)
    began = time.monotonic()
    await engine.stop()
    print(f"\nstopped while loading in {time.monotonic() - began:.1f} s")
    assert time.monotonic() - began < 15
    with pytest.raises(EngineDead):
        await start
    assert engine.health() is Health.STOPPED
    assert engine_processes() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-such-flag"], "no-such-flag"),
        (["--max-model-len", "many"], "max-model-len"),
        (["--max-model-len", "999999999"], "999999999"),
        (["--headless"], "--headless"),
        (["--enable-auto-tool-choice"], "tool-call-parser"),
    ],
)
async def test_start_with_flags_vllm_refuses_is_settings_invalid(model: Path, arguments: list[str], said: str) -> None:
    engine = VllmEngine(model=str(model), arguments=arguments)
    with pytest.raises(SettingsInvalid, match=said):
        await engine.start()
    await engine.stop()
    assert engine_processes() == []


async def test_start_with_a_folder_that_holds_no_model_is_settings_invalid(model: Path, tmp_path: Path) -> None:
    engine = VllmEngine(model=str(tmp_path), arguments=["--enforce-eager"])
    with pytest.raises(SettingsInvalid, match="refuses the model"):
        await engine.start()
    await engine.stop()
    assert engine_processes() == []
