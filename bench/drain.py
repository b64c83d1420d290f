"""How fast one process drains a batch, durability included, and what it costs in memory.

The clock of `drained` runs from the first poll that shows `in_progress` to the first that shows `completed`; the clock
of `wall` from the create call to the same end, so it includes validation.
"""

from __future__ import annotations

import json
import time

import httpx2

from bench.report import Row
from bench.server import PeakMemory, serving

NAME = "drain"
LINES = 20_000
LINE_BYTES = 1000
POLL_SECONDS = 0.02
IDLE_SECONDS = 2.0
TARGET_LINES_A_SECOND = 3000
TARGET_MEMORY_MB = 150


def measure(*, runs: int, scale: float) -> list[Row]:
    """`scale` multiplies the number of lines. A fresh server for each run."""
    lines = max(1, int(LINES * scale))
    content = request_file(lines)
    drained, wall, memory = [], [], []
    for _ in range(runs):
        with serving() as server:
            time.sleep(IDLE_SECONDS)
            idle = server.memory_bytes()
            with PeakMemory(server) as peak, httpx2.Client(base_url=server.base_url, timeout=60) as client:
                seconds, wall_seconds = drain(client, content, lines=lines)
            drained.append(lines / seconds)
            wall.append(lines / wall_seconds)
            memory.append((peak.bytes - idle) / 1e6)
    what = f"{lines:,} lines of {LINE_BYTES} bytes, echo engine, one process"
    rate = Row("drain", "lines/s", tuple(drained), f">= {TARGET_LINES_A_SECOND}", None, what)
    peak_row = Row("memory above idle, peak", "MB", tuple(memory), f"<= {TARGET_MEMORY_MB}", None, "upload to download")
    return [
        _judged(rate, met=rate.median >= TARGET_LINES_A_SECOND),
        Row("create to completed", "lines/s", tuple(wall), note="validation included"),
        _judged(peak_row, met=peak_row.median <= TARGET_MEMORY_MB),
    ]


def _judged(row: Row, *, met: bool) -> Row:
    return Row(row.name, row.unit, row.runs, row.target, met, row.note)


def request_file(lines: int) -> bytes:
    """`lines` chat requests of exactly LINE_BYTES bytes each, newline included."""
    rows = []
    for number in range(lines):
        request = {
            "custom_id": f"line-{number:08d}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "echo", "messages": [{"role": "user", "content": ""}], "max_tokens": 16},
        }
        missing = LINE_BYTES - 1 - len(json.dumps(request))
        request["body"]["messages"][0]["content"] = ("word " * LINE_BYTES)[:missing]  # type: ignore[index]
        rows.append(json.dumps(request).encode() + b"\n")
    return b"".join(rows)


def drain(client: httpx2.Client, content: bytes, *, lines: int) -> tuple[float, float]:
    """Upload, run, download and count: (seconds in progress, seconds since the create call)."""
    upload = client.post("files", data={"purpose": "batch"}, files={"file": ("bench.jsonl", content)})
    upload.raise_for_status()
    body = {"input_file_id": upload.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    created_at = time.monotonic()
    batch = client.post("batches", json=body).raise_for_status().json()
    in_progress_at = None
    while batch["status"] != "completed":
        if batch["status"] not in {"validating", "in_progress", "finalizing"}:
            raise RuntimeError(f"the batch ended as {batch['status']}: {batch['errors']}")
        time.sleep(POLL_SECONDS)
        batch = client.get(f"batches/{batch['id']}").raise_for_status().json()
        if in_progress_at is None and batch["status"] != "validating":
            in_progress_at = time.monotonic()
    ended_at = time.monotonic()
    if batch["request_counts"] != {"total": lines, "completed": lines, "failed": 0}:
        raise RuntimeError(f"not every line was answered: {batch['request_counts']}")
    rows = client.get(f"files/{batch['output_file_id']}/content").raise_for_status().content.count(b"\n")
    if rows != lines:
        raise RuntimeError(f"the output file has {rows} lines instead of {lines}")
    assert in_progress_at is not None
    return ended_at - in_progress_at, ended_at - created_at
