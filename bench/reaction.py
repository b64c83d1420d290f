"""How soon work begins: a new batch's first line, and the lines of a worker that was killed.

Read from the echo engine's journal, by the machine's steady clock; all settings have their defaults.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx2

from bench.drain import request_file
from bench.report import Row, judged
from bench.server import serving

NAME = "reaction"
BATCHES = 20
CHUNK_LINES = 1000
PATIENCE_SECONDS = 60.0
START_TARGET_SECONDS = 1.0
TAKE_OVER_TARGET_SECONDS = 10.0


def measure(*, runs: int, scale: float) -> list[Row]:
    """`scale` multiplies the number of batches; every run kills one worker."""
    batches = max(1, int(BATCHES * scale))
    rows = []
    for split, where in ((False, "in the same process"), (True, "in another process")):
        row = Row(f"create to first line, {where}", "s", tuple(_starts(batches, split=split)), note="one line a batch")
        target = f"<= {START_TARGET_SECONDS:.0f}, every one"
        rows.append(replace(row, target=target, met=max(row.runs) <= START_TARGET_SECONDS))
    taken = Row("kill -9 to take-over", "s", tuple(_take_over() for _ in range(runs)), note="two processes, SQLite")
    return [*rows, judged(taken, f"<= {TAKE_OVER_TARGET_SECONDS:.0f}", lambda s: s <= TAKE_OVER_TARGET_SECONDS)]


def _starts(batches: int, *, split: bool) -> list[float]:
    """Seconds from the moment before each create call to the moment its only line is begun."""
    with tempfile.TemporaryDirectory(prefix="batchyard-bench-") as name:
        journal = Path(name) / "journal"
        journal.touch()
        flags = ("--set", f"engine.echo_journal={journal}")
        found = []
        with (
            serving(*flags, split=split) as server,
            httpx2.Client(base_url=server.base_url, timeout=60) as client,
        ):
            for number in range(batches):
                asked_at = _submit(client, lines=1)
                _until(partial(_has_more, journal, number))
                found.append(_runs(journal)[number][0] - asked_at)
                time.sleep(0.3 + 0.25 * number / batches)  # at every phase of the worker's polls
    # The first batch also waits for a worker of its own process to have loaded.
    return found[1:] or found


def _take_over() -> float:
    """Two processes and one chunk: seconds from the death of the one that runs it to the other's first line of it."""
    with tempfile.TemporaryDirectory(prefix="batchyard-bench-") as name:
        folder = Path(name)
        journal = folder / "journal"
        journal.touch()
        pace = ("--set", "engine.echo_delay_seconds=0.1", "--set", "engine.echo_concurrent=8")
        flags = ("--set", f"engine.echo_journal={journal}", *pace, "--data-dir", str(folder / "data"))
        with serving(*flags) as first, serving(*flags) as second:
            with httpx2.Client(base_url=first.base_url, timeout=60) as client:
                _submit(client, lines=CHUNK_LINES)
            _until(lambda: len(_runs(journal)) > 50)
            victim = _runs(journal)[0][1]
            assert victim in (first.process.pid, second.process.pid)
            os.kill(victim, signal.SIGKILL)
            killed_at = time.monotonic()
            _until(lambda: any(pid != victim for _, pid in _runs(journal)))
            return next(moment for moment, pid in _runs(journal) if pid != victim) - killed_at


def _submit(client: httpx2.Client, *, lines: int) -> float:
    files = {"file": ("bench.jsonl", request_file(lines))}
    upload = client.post("files", data={"purpose": "batch"}, files=files).raise_for_status().json()
    body = {"input_file_id": upload["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    asked_at = time.monotonic()
    client.post("batches", json=body).raise_for_status()
    return asked_at


def _runs(journal: Path) -> list[tuple[float, int]]:
    """(seconds, pid) of each request begun, in order."""
    whole = journal.read_bytes().rpartition(b"\n")[0].splitlines()
    return [(int(line.split()[0]) / 1e9, int(line.split()[1])) for line in whole]


def _has_more(journal: Path, number: int) -> bool:
    return len(_runs(journal)) > number


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing happened for {PATIENCE_SECONDS} s")
        time.sleep(0.01)
