"""The product as users start it: a process of its own, reached by socket; its log and database can be looked into."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-acceptance-5f1d0c2b7a"

#: Quick reactions, so that a test waits for work and not for a poll. One restart test runs with the defaults instead.
QUICK = {
    "BATCHYARD_WORKER_POLL_SECONDS": "0.02",
    "BATCHYARD_WORKER_PART_SECONDS": "0.1",
    "BATCHYARD_WORKER_LEASE_SECONDS": "1",
    "BATCHYARD_WORKER_HEARTBEAT_SECONDS": "0.25",
}


@dataclass
class Server:
    """One running process.

    `settings` are environment variables on top of the key and the data directory; `expected_errors` are event words
    that a test provokes at level error; `plain_lines` allows log lines that are no JSON.
    """

    data_dir: Path
    log_path: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    flags: Sequence[str] = ("--engine", "echo")
    key: str | None = KEY
    ready_seconds: float = 45
    expected_errors: frozenset[str] = frozenset()
    plain_lines: bool = False
    process: subprocess.Popen[bytes] = field(init=False)
    url: str = field(init=False)
    _started_at: int = field(init=False, default=0)

    def start(self, *, wait: str = "/ready") -> Server:
        """Start it on a free port and wait until `wait` (a path) answers 200."""
        self._spawn("serve", "--port", "0", *self.flags)
        deadline = time.monotonic() + self.ready_seconds
        self.url = f"http://127.0.0.1:{self._port(deadline)}"
        while self._status_of(wait) != 200:
            self._still_starting(deadline, f"{wait} does not answer 200")
        return self

    def start_worker(self) -> Server:
        """Start it as a worker without HTTP; it is not waited for."""
        self._spawn("worker", *self.flags)
        return self

    def _spawn(self, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
        environment |= {"BATCHYARD_DATA_DIR": str(self.data_dir), **QUICK, **self.settings}
        if self.key is not None:
            environment["BATCHYARD_SERVER_API_KEYS"] = self.key
        self._started_at = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app", *arguments],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _port(self, deadline: float) -> int:
        while True:
            self._still_starting(deadline, "it does not listen")
            with contextlib.suppress(psutil.Error):
                for connection in psutil.Process(self.process.pid).net_connections(kind="tcp4"):
                    if connection.status == psutil.CONN_LISTEN:
                        return int(connection.laddr.port)

    def _still_starting(self, deadline: float, complaint: str) -> None:
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode} while starting\n{self.log()}")
        if time.monotonic() > deadline:
            self.kill()
            raise AssertionError(f"the server did not start: {complaint}\n{self.log()}")
        time.sleep(0.03)

    def _status_of(self, path: str) -> int:
        try:
            return httpx2.get(self.url + path, timeout=5).status_code
        except httpx2.TransportError:
            return 0

    def stop(self, *, within_seconds: float = 30) -> None:
        """SIGTERM; asserts that it ends in time, with exit code 0 and a clean log."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(within_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server was still there {within_seconds} s after SIGTERM\n{self.log()}") from None
        assert code == 0, f"exit code {code}\n{self.log()}"
        self.check_log()

    def kill(self) -> None:
        """kill -9 of the process and of whatever it started. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def log(self, *, since: int | None = None, tail: int = 40_000) -> str:
        """What it wrote since its last start, or since byte `since` of the log file; the last `tail` characters."""
        with self.log_path.open("rb") as stream:
            stream.seek(self._started_at if since is None else since)
            return stream.read().decode(errors="replace")[-tail:]

    def events(self, *, since: int | None = None) -> list[dict[str, Any]]:
        """The log as JSON objects; a line that is none fails the test."""
        found = []
        for line in self.log(since=since, tail=1 << 30).splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                assert self.plain_lines, f"not a JSON log line: {line!r}"
        return found

    def check_log(self) -> None:
        """No traceback and, but for `expected_errors`, nothing at level error or above since the last start."""
        text = self.log(tail=1 << 30)
        assert "Traceback (most recent call last)" not in text, text[-40_000:]
        events = self.events()
        traced = [event for event in events if "exception" in event]
        assert not traced, traced
        loud = [event for event in events if event.get("level") in {"error", "critical"}]
        unexpected = [event for event in loud if event["event"] not in self.expected_errors]
        assert not unexpected, unexpected

    def sdk(self, **options: Any) -> openai.OpenAI:
        """A client of the official SDK; retries off unless asked for, so that a refusal is seen once."""
        usual: dict[str, Any] = {"base_url": f"{self.url}/v1", "api_key": self.key or "none"}
        return openai.OpenAI(**(usual | {"max_retries": 0, "timeout": 60} | options))

    def http(self, *, key: str | None = None, **options: Any) -> httpx2.Client:
        """A plain HTTP client with the right key, or with `key`; "" sends none."""
        key = self.key if key is None else key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60, **options)

    @contextlib.contextmanager
    def database(self) -> Generator[sqlite3.Connection]:
        """The server's own database, to look behind the API and to shift time; commits at the end."""
        connection = sqlite3.connect(self.data_dir / "batchyard.db", timeout=15)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    def blobs(self) -> set[Path]:
        """Every file below the blob folder, unfinished writes included."""
        return {path for path in (self.data_dir / "blobs").rglob("*") if path.is_file()}

    def metrics(self) -> dict[str, float]:
        """Samples of `/metrics` by name and sorted labels: `batch_lines_total{outcome=completed}`."""
        with self.http() as http:
            reply = http.get("/metrics")
        assert reply.status_code == 200, reply.text
        samples = {}
        for family in text_string_to_metric_families(reply.text):
            for sample in family.samples:
                labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
                samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = float(sample.value)
        return samples

    def memory_bytes(self) -> int:
        """Resident memory of the process now."""
        return int(psutil.Process(self.process.pid).memory_info().rss)
