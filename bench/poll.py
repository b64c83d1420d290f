"""Polls beside a drain: GETs of a batch and of a list by another process, idle and at full speed, both roles."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import httpx2

from bench.drain import drain, request_file, upload
from bench.report import Row, judged
from bench.server import Server, serving

NAME = "poll"
LINES = 50_000
SECONDS = 2.0
#: A dashboard's pace, not a load test: the drain must keep a core.
PAUSE_SECONDS = 0.005
TARGETS_MS = {"one process": 100.0, "split roles": 20.0}


@dataclass(frozen=True, slots=True)
class _Found:
    """Of one kind of GET, a figure for each run."""

    p99_ms: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)

    def note(self, seconds: list[float]) -> None:
        self.p99_ms.append(statistics.quantiles(seconds, n=100)[98] * 1e3)
        self.rate.append(1 / statistics.fmean(seconds))


def measure(*, runs: int, scale: float) -> list[Row]:
    """`scale` multiplies the lines that are drained meanwhile."""
    content = request_file(max(1_000, int(LINES * scale)))
    lines = content.count(b"\n")
    rows: list[Row] = []
    for where, target in TARGETS_MS.items():
        found = {(what, when): _Found() for what in ("a batch", "a list") for when in ("idle", "beside a full drain")}
        for _ in range(runs):
            with serving(split=where == "split roles") as server:
                _run(server, found, content, lines)
        for (what, when), one in found.items():
            name = f"GET {what}, {when}, {where}"
            p99 = Row(name, "ms p99", tuple(one.p99_ms), note="" if when == "idle" else f"{lines:,} lines draining")
            if (what, when) == ("a batch", "beside a full drain"):
                p99 = judged(p99, f"<= {target:.0f}", lambda p99, bound=target: p99 <= bound)  # type: ignore[misc]
            rows.append(p99)
            rows.append(Row(name, "requests/s", tuple(one.rate), note="one after the other"))
    return rows


def _run(server: Server, found: dict[tuple[str, str], _Found], content: bytes, lines: int) -> None:
    with httpx2.Client(base_url=server.base_url, timeout=120) as client:
        drain(client, request_file(100), lines=100)
        batch_id = client.get("batches").raise_for_status().json()["data"][0]["id"]
        for what, path in (("a batch", f"batches/{batch_id}"), ("a list", "batches?limit=20")):
            found[what, "idle"].note(_polled(server, path, lambda: time.sleep(SECONDS)))
            file_id = upload(client, content)  # before the clock of the polls starts
            found[what, "beside a full drain"].note(_polled(server, path, _draining(client, file_id, lines)))


def _draining(client: httpx2.Client, file_id: str, lines: int) -> Callable[[], None]:
    """From the creation of a batch to its end."""

    def work() -> None:
        body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = client.post("batches", json=body).raise_for_status().json()
        while batch["status"] in {"validating", "in_progress", "finalizing"}:
            time.sleep(0.1)
            batch = client.get(f"batches/{batch['id']}").raise_for_status().json()
        if batch["request_counts"] != {"total": lines, "completed": lines, "failed": 0}:
            raise RuntimeError(f"not every line was answered: {batch['status']} {batch['request_counts']}")

    return work


def _polled(server: Server, path: str, work: Callable[[], None]) -> list[float]:
    """Seconds of each GET that another process makes while `work` runs."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    poller = context.Process(target=_poll, args=(server.base_url, path, theirs))
    poller.start()
    ours.recv()
    try:
        work()
    finally:
        ours.send(None)
    times: list[float] = ours.recv()
    poller.join()
    return times


def _poll(base_url: str, path: str, pipe: Connection) -> None:
    times = []
    with httpx2.Client(base_url=base_url, timeout=60) as client:
        client.get(path).raise_for_status()
        pipe.send(None)
        while not pipe.poll():
            began = time.perf_counter()
            client.get(path).raise_for_status()
            times.append(time.perf_counter() - began)
            time.sleep(PAUSE_SECONDS)
    pipe.recv()
    pipe.send(times)
