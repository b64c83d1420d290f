"""What grows with size, and what must not: cost per line, memory, finalizing, bodies of 50 kB, embeddings, start-up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx2

from bench.drain import drain, request_file, request_lines
from bench.report import Row, judged
from bench.server import PeakMemory, serving

NAME = "size"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
LINE_BYTES = 250
BIG_LINE_BYTES = 50_000
_UNLIMITED = ("--set", "limits.batch_max_lines=10000000", "--set", "limits.batch_file_max_bytes=10000000000")
MEGABYTE = 1e6


def measure(*, runs: int, scale: float) -> list[Row]:
    """The large sizes run once each, whatever `runs` says: a minute's drain averages by itself."""
    rows = _startup(runs)
    rows += _growth(scale)
    rows += _bodies(runs, scale)
    return rows


def _startup(runs: int) -> list[Row]:
    seconds = []
    for _ in range(runs):
        began = time.monotonic()
        with serving():
            seconds.append(time.monotonic() - began)
    return [Row("start-up", "s", tuple(seconds), note="process start to /ready, echo engine, empty data folder")]


def _growth(scale: float) -> list[Row]:
    rows: list[Row] = []
    per_line, finalize = {}, {}
    for size in SIZES:
        lines = max(100, int(size * scale))
        with serving(*_UNLIMITED) as server, httpx2.Client(base_url=server.base_url, timeout=600) as client:
            drain(client, request_file(200, line_bytes=LINE_BYTES), lines=200)  # warm
            idle = server.memory_bytes()
            with PeakMemory(server) as peak:
                run = drain(client, request_lines(lines, line_bytes=LINE_BYTES), lines=lines)
            memory = (peak.bytes - idle) / MEGABYTE
        per_line[size], finalize[size] = run.wall_seconds / lines, run.finalize_seconds
        rows.append(
            Row(f"{lines:,} lines", "µs a line", (per_line[size] * 1e6,), note=f"create to completed, {LINE_BYTES} B")
        )
        memory_row = Row(f"{lines:,} lines, memory above idle", "MB", (memory,), note="upload to download")
        rows.append(judged(memory_row, "<= 100", lambda size: size <= 100) if size == SIZES[-1] else memory_row)
        rows.append(Row(f"{lines:,} lines, finalize", "s", (finalize[size],), note="last line counted to completed"))
    slope = Row("cost a line, 1,000,000 against 10,000", "ratio", (per_line[1_000_000] / per_line[10_000],))
    rows.append(judged(slope, "<= 1.1", lambda ratio: ratio <= 1.1))
    last = Row("finalize, 1,000,000 lines", "s", (finalize[1_000_000],))
    rows.append(judged(last, "<= 2", lambda seconds: seconds <= 2))
    return rows


def _bodies(runs: int, scale: float) -> list[Row]:
    big, embedded = [], []
    lines = max(50, int(3_000 * scale))
    for _ in range(runs):
        with serving() as server, httpx2.Client(base_url=server.base_url, timeout=600) as client:
            big.append(lines / drain(client, request_file(lines, line_bytes=BIG_LINE_BYTES), lines=lines).seconds)
            content = b"".join(_embedding_lines(lines))
            embedded.append(lines / drain(client, content, lines=lines, endpoint="/v1/embeddings").seconds)
    return [
        Row("drain, 50 kB bodies", "lines/s", tuple(big), note=f"{lines:,} lines, answers of the same size"),
        Row("drain, embeddings", "lines/s", tuple(embedded), note=f"{lines:,} lines, 1,536 dimensions as floats"),
    ]


def _embedding_lines(lines: int) -> Iterator[bytes]:
    for number in range(lines):
        body = {"model": "echo", "input": f"text {number}", "dimensions": 1536}
        line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/embeddings", "body": body}
        yield json.dumps(line).encode() + b"\n"
