"""What durability costs: the same drain with it and without it (bench/undurable.py), in turn, on the echo engine.

Each pair is run back to back, in changing order, so that a machine that slows down slows both. A cost is the median
over the pairs of how much longer the durable one took. Two engines, both with 5 ms a line: one that sets the pace, as
a model does, and one that is faster than this process, so that every microsecond of ours shows. The processor time of
the server is compared too: other work on the machine disturbs it less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import httpx2

from bench.drain import drain, request_file
from bench.report import Row, judged
from bench.server import serving

NAME = "durability"
RUNS = 5
TARGET_PERCENT = 3.0
DELAY = ("--set", "engine.echo_delay_seconds=0.005")


@dataclass(frozen=True, slots=True)
class _Case:
    """`concurrent` requests at once: four make 800 lines a second, far above what a model answers."""

    name: str
    lines: int
    concurrent: int
    judged: bool = False


_CASES = (_Case("engine sets the pace", 4_000, 4, judged=True), _Case("engine outruns us", 20_000, 256))


@dataclass(frozen=True, slots=True)
class _Run:
    """Seconds from `in_progress` to `completed`, and processor time of the server meanwhile, validation included."""

    seconds: float
    processor_seconds: float


def measure(*, runs: int, scale: float) -> list[Row]:
    """`runs` pairs each; `scale` multiplies the number of lines."""
    rows: list[Row] = []
    for case in _CASES:
        rows += _compare(case, lines=max(1, int(case.lines * scale)), pairs=runs)
    return rows


def _compare(case: _Case, *, lines: int, pairs: int) -> list[Row]:
    content = request_file(lines)
    found: dict[str, list[_Run]] = {"app": [], "bench.undurable": []}
    for pair in range(pairs):
        for module in sorted(found, reverse=pair % 2 == 1):
            found[module].append(_run(module, content, lines=lines, concurrent=case.concurrent))
    durable, bare = found.values()
    what = f"{lines:,} lines, 5 ms each, {case.concurrent} at once"
    both = list(zip(durable, bare, strict=True))
    cost = Row(f"cost of durability, {case.name}", "%", _more((a.seconds, b.seconds) for a, b in both), note=what)
    if case.judged:
        cost = judged(cost, f"<= {TARGET_PERCENT:.0f}", lambda percent: percent <= TARGET_PERCENT)
    processor = _more((a.processor_seconds, b.processor_seconds) for a, b in both)
    rates = [tuple(lines / run.seconds for run in runs) for runs in (durable, bare)]
    return [
        Row(f"durable, {case.name}", "lines/s", rates[0], note=what),
        Row(f"not durable, {case.name}", "lines/s", rates[1], note="no parts, no fsync"),
        cost,
        Row(f"the same in processor time, {case.name}", "%", processor, note="of the server"),
    ]


def _more(pairs: Iterable[tuple[float, float]]) -> tuple[float, ...]:
    """By how many percent the first of each pair exceeds the second."""
    return tuple(100 * (first / second - 1) for first, second in pairs)


def _run(module: str, content: bytes, *, lines: int, concurrent: int) -> _Run:
    flags = (*DELAY, "--set", f"engine.echo_concurrent={concurrent}")
    with (
        serving(*flags, module=module) as server,
        httpx2.Client(base_url=server.base_url, timeout=60) as client,
    ):
        before = server.processor_seconds()
        seconds = drain(client, content, lines=lines).seconds
        processor = server.processor_seconds() - before
    return _Run(seconds, processor)
