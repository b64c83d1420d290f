"""Polls beside a drain: GET of a batch and of a list by another process, idle and at full speed, one process or two."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import httpx2

from bench.drain import drain, request_file
from bench.report import Row, judged
from bench.server import serving

NAME = "poll"
LINES = 50_000
SECONDS = 2.0
_PAUSE_SECONDS = 0.005  # a dashboard, not a load test: the drain must keep a core


def measure(*, runs: int, scale: float) -> list[Row]:
    """`scale` multiplies the lines that are drained meanwhile."""
    content = request_file(max(1_000, int(LINES * scale)))
    lines = content.count(b"\n")
    rows: list[Row] = []
    for name, split, target in (("one process", False, 100.0), ("split roles", True, 20.0)):
        idle, busy, lists = [], [], []
        for _ in range(runs):
            with serving(split=split) as server, httpx2.Client(base_url=server.base_url, timeout=120) as client:
                drain(client, request_file(100), lines=100)
                batch_id = client.get("batches").raise_for_status().json()["data"][0]["id"]
                idle.append(_polled(server.base_url, f"batches/{batch_id}", lambda: time.sleep(SECONDS)))
                work = _draining(client, content, lines)
                busy.append(_polled(server.base_url, f"batches/{batch_id}", work))
                work = _draining(client, content, lines)
                lists.append(_polled(server.base_url, "batches?limit=20", work))
        rows.append(Row(f"GET a batch, idle, {name}", "ms p99", tuple(idle)))
        row = Row(f"GET a batch beside a full drain, {name}", "ms p99", tuple(busy), note=f"{lines:,} lines draining")
        rows.append(judged(row, f"<= {target:.0f}", lambda p99, bound=target: p99 <= bound))  # type: ignore[misc]
        rows.append(Row(f"GET a list beside a full drain, {name}", "ms p99", tuple(lists)))
    return rows


def _draining(client: httpx2.Client, content: bytes, lines: int) -> Callable[[], None]:
    return lambda: _discard(drain(client, content, lines=lines))


def _discard(_: object) -> None:
    return None


def _polled(base_url: str, path: str, work: Callable[[], None]) -> float:
    """The 99th percentile in milliseconds of GETs by another process while `work` runs."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    poller = multiprocessing.get_context("spawn").Process(target=_poll, args=(base_url, path, theirs))
    poller.start()
    ours.recv()
    try:
        work()
    finally:
        ours.send(None)
    times: list[float] = ours.recv()
    poller.join()
    return statistics.quantiles(times, n=100)[98] * 1e3


def _poll(base_url: str, path: str, pipe: Connection) -> None:
    times = []
    with httpx2.Client(base_url=base_url, timeout=60) as client:
        client.get(path).raise_for_status()
        pipe.send(None)
        while not pipe.poll():
            began = time.perf_counter()
            client.get(path).raise_for_status()
            times.append(time.perf_counter() - began)
            time.sleep(_PAUSE_SECONDS)
    pipe.recv()
    pipe.send(times)
