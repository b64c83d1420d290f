"""A real engine: ours (hosted, durable) against vLLM's own run_batch and the engine's limit (bench/contest.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from app.engine import embedded
from bench.contest import CONTENDERS, LIMIT, OURS, RUN_BATCH, Model, loaded
from bench.report import Row, judged
from bench.requests import Request, plain, shared, stragglers

NAME = "engine"
RUNS = 5
#: Of a contender that no target speaks of.
ROUNDS_UNJUDGED = 3
TIGHT = ("--block-size", "32", "--num-gpu-blocks-override", "60", "--max-num-seqs", "4", "--max-model-len", "1024")


@dataclass(frozen=True, slots=True)
class Case:
    """A file and the flags of the engine that runs it. `targets`: contender → (target in words, test of the median).

    `by_hand` puts the lines into the order that suits the engine best: what an order can gain at all.
    """

    name: str
    flags: tuple[str, ...]
    requests: Callable[[float], list[Request]]
    targets: dict[str, tuple[str, Callable[[float], bool]]]
    by_hand: Callable[[list[Request]], list[Request]] | None = None


CASES = (
    Case(
        "plain",
        (),
        plain,
        {RUN_BATCH: (">= 1.00", lambda ratio: ratio >= 1.0), LIMIT: (">= 0.98", lambda ratio: ratio >= 0.98)},
    ),
    Case(
        "shared prefixes, tight cache",
        TIGHT,
        shared,
        {RUN_BATCH: (">= 5", lambda ratio: ratio >= 5)},
        by_hand=lambda requests: sorted(requests, key=lambda request: request.prompt),
    ),
    Case(
        "stragglers",
        ("--max-num-seqs", "16"),
        stragglers,
        {RUN_BATCH: (">= 1.05 (time <= 0.95)", lambda ratio: ratio >= 1 / 0.95)},
    ),
)


def measure(*, runs: int, scale: float) -> list[Row]:
    """`runs` rounds; `scale` multiplies the number of requests. Every case loads its engine once."""
    source = embedded.prepare()
    rows: list[Row] = []
    for case in CASES:
        model = Model(embedded.MODEL_NAME, None, source, case.flags)
        rows += asyncio.run(contest(case, model, rounds=runs, scale=scale))
    return rows


async def contest(case: Case, model: Model, *, rounds: int, scale: float) -> list[Row]:
    """The rows of one case on one model."""
    requests = case.requests(scale)
    judged_ones = {OURS, *case.targets}
    runs = {name: rounds if name in judged_ones else min(rounds, ROUNDS_UNJUDGED) for name in CONTENDERS}
    async with loaded(model) as contenders:
        seconds = await contenders.rounds(requests, runs=runs)
        tokens = sum(request.max_tokens for request in requests)
        rows = rows_of(case, seconds, tokens=tokens, lines=len(requests))
        if case.by_hand is not None:
            once = {OURS: 0, LIMIT: 0, RUN_BATCH: min(rounds, ROUNDS_UNJUDGED)}
            sorted_seconds = (await contenders.rounds(case.by_hand(requests), runs=once))[RUN_BATCH]
            rows += by_hand_rows(case, seconds[OURS], sorted_seconds, tokens=tokens)
    return rows


def by_hand_rows(case: Case, ours: list[float], by_hand: list[float], *, tokens: int) -> list[Row]:
    """run_batch on the same lines, sorted by hand, and how ours on the unsorted file compares."""
    name = f"{case.name}: {RUN_BATCH}, lines sorted by hand"
    note = "what an order can gain at all on this file"
    rows = [
        Row(name, "tokens/s", tuple(tokens / value for value in by_hand), note=note),
        Row(f"{name}, time to the last line", "s", tuple(by_hand)),
    ]
    ratios = tuple(theirs / mine for theirs, mine in zip(by_hand, ours, strict=False))
    return [*rows, Row(f"{case.name}: ours / {RUN_BATCH} sorted by hand", "speed ratio", ratios)]


def rows_of(case: Case, seconds: dict[str, list[float]], *, tokens: int, lines: int) -> list[Row]:
    """Tokens a second and seconds of each contender, and how much faster ours is than the others, round by round."""
    what = f"{lines} chat lines, {tokens} tokens out"
    rows = []
    for name, values in seconds.items():
        rows.append(Row(f"{case.name}: {name}", "tokens/s", tuple(tokens / value for value in values), note=what))
        rows.append(Row(f"{case.name}: {name}, time to the last line", "s", tuple(values)))
    for other in (RUN_BATCH, LIMIT):
        # A contender with fewer rounds is compared in those it ran.
        ratios = tuple(theirs / ours for theirs, ours in zip(seconds[other], seconds[OURS], strict=False))
        row = Row(f"{case.name}: ours / {other}", "speed ratio", ratios, note="time to the last line, round by round")
        rows.append(judged(row, *case.targets[other]) if other in case.targets else row)
    return rows
