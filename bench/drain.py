"""How fast one process drains a batch, durability included, and what it costs in memory.

The clock of `drained` runs from the first poll that shows `in_progress` to the first that shows `completed`; the clock
of `wall` from the create call to the same end, so it includes validation.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import httpx2

from bench.postgres import postgres, programs
from bench.report import Row, judged
from bench.server import PeakMemory, serving

NAME = "drain"
LINES = 20_000
LINE_BYTES = 1000
POLL_SECONDS = 0.02
IDLE_SECONDS = 2.0
TARGET_LINES_A_SECOND = 10_000
TARGET_MEMORY_MB = 100


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
                run = drain(client, content, lines=lines)
            drained.append(lines / run.seconds)
            wall.append(lines / run.wall_seconds)
            memory.append((peak.bytes - idle) / 1e6)
    what = f"{lines:,} lines of {LINE_BYTES} bytes, echo engine, one process"
    rate = Row("drain", "lines/s", tuple(drained), note=what)
    memory_row = Row("memory above idle, peak", "MB", tuple(memory), note="upload to download")
    return [
        judged(rate, f">= {TARGET_LINES_A_SECOND:,}", lambda rate: rate >= TARGET_LINES_A_SECOND),
        Row("create to completed", "lines/s", tuple(wall), note="validation included"),
        judged(memory_row, f"<= {TARGET_MEMORY_MB}", lambda size: size <= TARGET_MEMORY_MB),
        _on_postgres(content, lines=lines, runs=runs, sqlite=rate.median),
    ]


def _on_postgres(content: bytes, *, lines: int, runs: int, sqlite: float) -> Row:
    """The same drain on a Postgres of its own, on the same two cores."""
    name, folder = "drain, Postgres", programs()
    if folder is None:
        return Row(name, "lines/s", (), note="PostgreSQL is not installed")
    drained = []
    for _ in range(runs):
        with (
            postgres(folder) as url,
            serving("--set", f"store.url={url}") as server,
            httpx2.Client(base_url=server.base_url, timeout=60) as client,
        ):
            drained.append(lines / drain(client, content, lines=lines).seconds)
    row = Row(name, "lines/s", tuple(drained), note="fsync on; the server beside us on the same cores")
    return judged(row, ">= a third of SQLite's", lambda rate: rate >= sqlite / 3)


def request_file(lines: int, *, line_bytes: int = LINE_BYTES) -> bytes:
    """`lines` chat requests of exactly `line_bytes` bytes each, newline included."""
    return b"".join(request_lines(lines, line_bytes=line_bytes))


def request_lines(lines: int, *, line_bytes: int = LINE_BYTES) -> Iterator[bytes]:
    """The same, a line at a time."""
    for number in range(lines):
        request = {
            "custom_id": f"line-{number:08d}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "echo", "messages": [{"role": "user", "content": ""}], "max_tokens": 16},
        }
        line = json.dumps(request).encode()
        missing = line_bytes - 1 - len(line)
        content = ("word " * (missing // 5 + 1))[:missing].encode()
        yield line.replace(b'"content": ""', b'"content": "%s"' % content) + b"\n"


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of one batch: in progress, since the create call, and from the last line counted to `completed`."""

    seconds: float
    wall_seconds: float
    finalize_seconds: float


def drain(
    client: httpx2.Client, content: bytes | Iterable[bytes], *, lines: int, endpoint: str = "/v1/chat/completions"
) -> Run:
    """Upload, run, download and count. Raises RuntimeError unless every line is answered."""
    body = {"input_file_id": upload(client, content), "endpoint": endpoint, "completion_window": "24h"}
    created_at = time.monotonic()
    batch = client.post("batches", json=body).raise_for_status().json()
    in_progress_at = counted_at = None
    while batch["status"] != "completed":
        if batch["status"] not in {"validating", "in_progress", "finalizing"}:
            raise RuntimeError(f"the batch ended as {batch['status']}: {batch['errors']}")
        time.sleep(POLL_SECONDS)
        batch = client.get(f"batches/{batch['id']}").raise_for_status().json()
        if in_progress_at is None and batch["status"] != "validating":
            in_progress_at = time.monotonic()
        if counted_at is None and batch["request_counts"]["completed"] == lines:
            counted_at = time.monotonic()
    ended_at = time.monotonic()
    if batch["request_counts"] != {"total": lines, "completed": lines, "failed": 0}:
        raise RuntimeError(f"not every line was answered: {batch['request_counts']}")
    with client.stream("GET", f"files/{batch['output_file_id']}/content") as answer:
        rows = sum(piece.count(b"\n") for piece in answer.raise_for_status().iter_raw())
    if rows != lines:
        raise RuntimeError(f"the output file has {rows} lines instead of {lines}")
    assert in_progress_at is not None
    return Run(ended_at - in_progress_at, ended_at - created_at, ended_at - (counted_at or ended_at))


def upload(client: httpx2.Client, content: bytes | Iterable[bytes]) -> str:
    """The id of a new input file."""
    with tempfile.TemporaryFile() as stream:
        stream.writelines([content] if isinstance(content, bytes) else content)
        stream.seek(0)
        made = client.post("files", data={"purpose": "batch"}, files={"file": ("bench.jsonl", stream)})
    return str(made.raise_for_status().json()["id"])
