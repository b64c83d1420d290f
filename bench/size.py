"""What grows with size, and what must not: cost per line, memory, finalizing, bodies of 50 kB, embeddings, start-up."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

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
    """The largest size runs once, whatever `runs` says: a minute's drain averages by itself."""
    rows = _startup(runs)
    rows += _growth(runs, scale)
    rows += _bodies(runs, scale)
    return rows


def _startup(runs: int) -> list[Row]:
    seconds = []
    for _ in range(runs):
        began = time.monotonic()
        with serving():
            seconds.append(time.monotonic() - began)
    return [Row("start-up", "s", tuple(seconds), note="process start to /ready, echo engine, empty data folder")]


@dataclass(frozen=True, slots=True)
class _Drained:
    """One batch: seconds a line by the clock and of the server's processor time; the rest whole."""

    line_seconds: float
    line_processor_seconds: float
    memory_bytes: float
    finalize_seconds: float


def _growth(runs: int, scale: float) -> list[Row]:
    sizes = {size: max(100, int(size * scale)) for size in SIZES}
    found: dict[int, list[_Drained]] = {size: [] for size in SIZES}
    # Half of the small ones run before the large one and half after it: the machine changes its pace meanwhile.
    for size in (*SIZES[:-1] * runs, SIZES[-1], *SIZES[:-1] * runs):
        if size < 100_000 or len(found[size]) < 2:
            found[size].append(_drained(sizes[size]))
    rows: list[Row] = []
    for size, drains in found.items():
        name = f"{sizes[size]:,} lines"
        line = tuple(run.line_seconds * 1e6 for run in drains)
        rows.append(Row(name, "µs a line", line, note=f"create to completed, {LINE_BYTES} B a line"))
        processor = tuple(run.line_processor_seconds * 1e6 for run in drains)
        rows.append(Row(f"{name}, processor time", "µs a line", processor, note="of the server"))
        memory = Row(f"{name}, memory above idle", "MB", tuple(run.memory_bytes / MEGABYTE for run in drains))
        rows.append(judged(memory, "<= 100", lambda size: size <= 100))
        finalize = Row(f"{name}, finalize", "s", tuple(run.finalize_seconds for run in drains))
        rows.append(judged(finalize, "<= 2", lambda seconds: seconds <= 2))
    return [*rows, *_slopes(found)]


def _slopes(found: dict[int, list[_Drained]]) -> list[Row]:
    """1,000,000 lines against 10,000, a line; the small ones by their median."""
    rows = []
    for name, of in (("", "line_seconds"), (", processor time", "line_processor_seconds")):
        small = statistics.median(getattr(run, of) for run in found[10_000])
        ratio = tuple(getattr(run, of) / small for run in found[1_000_000])
        rows.append(Row(f"cost a line, 1,000,000 against 10,000{name}", "ratio", ratio))
    return [judged(rows[0], "<= 1.1", lambda ratio: ratio <= 1.1), rows[1]]


def _drained(lines: int) -> _Drained:
    with serving(*_UNLIMITED) as server, httpx2.Client(base_url=server.base_url, timeout=600) as client:
        drain(client, request_file(200, line_bytes=LINE_BYTES), lines=200)  # warm
        idle = server.memory_bytes()
        before = server.processor_seconds()
        with PeakMemory(server) as peak:
            run = drain(client, request_lines(lines, line_bytes=LINE_BYTES), lines=lines)
        processor = server.processor_seconds() - before
    return _Drained(run.wall_seconds / lines, processor / lines, peak.bytes - idle, run.finalize_seconds)


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
