"""One real engine for the whole run: it takes half a minute and 2 GB to load."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from app.engine import embedded
from app.engine.factory import EMBEDDED_ARGUMENTS
from app.engine.vllm import VllmEngine
from tests.requirement import without

SEATS = 16
ARGUMENTS = (*EMBEDDED_ARGUMENTS, "--max-num-seqs", str(SEATS))


@dataclass
class Loaded:
    """A loaded engine, how long that took, and the longest time meanwhile that the event loop did not turn."""

    engine: VllmEngine
    load_seconds: float
    stall_seconds: float


@pytest.fixture(scope="session")
def model() -> Path:
    """The embedded model's folder. Without it or without vLLM the tests are skipped, and fail where CI is set."""
    folder = embedded.locate()
    missing = [
        what
        for what, there in (
            ("vLLM is not installed (`make setup`)", importlib.util.find_spec("vllm") is not None),
            ("the embedded model is not prepared (`make model`)", folder is not None),
        )
        if not there
    ]
    if folder is None or missing:
        without("; ".join(missing))
    return folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def loaded(model: Path) -> AsyncIterator[Loaded]:
    stalls = [0.0]
    watch = asyncio.create_task(_watch_stalls(stalls))
    loop = asyncio.get_running_loop()
    began = loop.time()
    engine = VllmEngine(model=str(model), arguments=ARGUMENTS)
    try:
        await engine.start()
        load_seconds = loop.time() - began
        await asyncio.sleep(0.02)  # or the watch would miss a stall at the very end
        watch.cancel()
        yield Loaded(engine, load_seconds, max(stalls))
    finally:
        await engine.stop()


@pytest.fixture(scope="session")
def engine(loaded: Loaded) -> VllmEngine:
    return loaded.engine


async def _watch_stalls(stalls: list[float]) -> None:
    loop = asyncio.get_running_loop()
    last = loop.time()
    while True:
        await asyncio.sleep(0.005)
        now = loop.time()
        stalls.append(now - last - 0.005)
        last = now


def engine_processes() -> list[psutil.Process]:
    """Living descendants of this process, without Python's resource tracker, which stays as long as we do."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            dead = process.status() == psutil.STATUS_ZOMBIE
            if not dead and not any("resource_tracker" in word for word in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found
