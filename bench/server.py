"""A server under measurement: a process of its own with the echo engine, and its memory over time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil

ROOT = Path(__file__).resolve().parents[1]
READY_SECONDS = 60.0
SAMPLE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Server:
    """A ready server: its `/v1` URL and its process."""

    base_url: str
    process: psutil.Process

    def memory_bytes(self) -> int:
        """Resident memory of the process and its children now."""
        total = 0
        for process in (self.process, *self.process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def processor_seconds(self) -> float:
        """Processor time of the process so far, user and system."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


class PeakMemory:
    """The most resident memory while the context is open: sampled every 20 ms, and the kernel's own high-water mark.

    The mark sees what falls between two samples, but not the children; so the larger of both counts.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._folder = Path("/proc") / str(server.process.pid)
        self.bytes = 0

    def __enter__(self) -> PeakMemory:
        (self._folder / "clear_refs").write_text("5")  # the mark starts again from what is resident now
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        self._thread.join()
        lines = (self._folder / "status").read_text().splitlines()
        mark = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
        self.bytes = max(self.bytes, mark)

    def _sample(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            self.bytes = max(self.bytes, self._server.memory_bytes())


@contextlib.contextmanager
def serving(
    *flags: str, split: bool = False, module: str = "app", ready_seconds: float = READY_SECONDS
) -> Generator[Server]:
    """A server with the default settings but for `flags`, on a free port and with an empty data folder.

    With `split`, the API is a process of its own, and a worker beside it. `module` is what `python -m` runs.
    """
    with tempfile.TemporaryDirectory(prefix="batchyard-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        data = ("--data-dir", str(folder / "data"), "--log-format", "json", *flags)
        role = ("--role", "api") if split else ("--engine", "echo")
        log = folder / "server.log"
        server = stack.enter_context(_process(log, "serve", *role, "--port", "0", "--no-hints", *data, module=module))
        url = _wait_ready(server, log, ready_seconds)
        if split:
            stack.enter_context(_process(folder / "worker.log", "worker", "--engine", "echo", *data, module=module))
        yield Server(url, psutil.Process(server.pid))


@contextlib.contextmanager
def _process(log: Path, *command: str, module: str) -> Generator[subprocess.Popen[bytes]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *command], cwd=ROOT, env=environment, stdout=stream, stderr=stream
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], log: Path, ready_seconds: float) -> str:
    deadline = time.monotonic() + ready_seconds
    url = None
    while time.monotonic() < deadline and process.poll() is None:
        url = url or _listening(log.read_text().splitlines())
        with contextlib.suppress(httpx2.TransportError):
            if url and httpx2.get(f"{url.removesuffix('/v1')}/ready").status_code == 200:
                return url
        time.sleep(0.05)
    raise RuntimeError(f"the server did not get ready:\n{log.read_text()[-4000:]}")


def _listening(lines: Sequence[str]) -> str | None:
    for line in lines:
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if event.get("event") == "listening":
                return str(event["base_url"])
    return None
