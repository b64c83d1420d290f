"""A client who waits, beside a batch that fills the engine: its latency alone, and with each scheduling policy.

A real engine with the embedded model and 16 seats; the batch's lines are long, and there are more of them than seats.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import httpx2

from bench.report import Row, judged
from bench.server import Server, serving

NAME = "interactive"
MODEL = "SmolLM2-135M-Instruct"
SEATS = 16
REQUESTS = 60
#: Without priority each waits for a seat behind the whole window; so few are enough to see it.
REQUESTS_WITHOUT = 4
ANSWER_TOKENS = 16
LINES = 400
LINE_TOKENS = 400
READY_SECONDS = 300.0
TARGET = 1.5
FLAGS = ("--engine", "vllm", "--max-num-seqs", str(SEATS))


def measure(*, runs: int, scale: float) -> list[Row]:
    """`scale` multiplies the number of requests. Once, whatever `runs` says: minutes, and an engine for each policy."""
    return latencies(MODEL, flags=(), scale=scale)


def latencies(model: str, *, flags: Sequence[str], scale: float, policies: bool = True) -> list[Row]:
    """Of `model`, served with `flags`. Without `policies` only with the default one."""
    alone: list[list[float]] = []
    beside: list[list[float]] = []
    without: list[list[float]] = []
    with serving(*FLAGS, *flags, ready_seconds=READY_SECONDS) as server:
        _latencies(server, 5, model)
        alone.append(_latencies(server, max(5, int(REQUESTS * scale)), model))
        _fill(server, model)
        beside.append(_latencies(server, max(5, int(REQUESTS * scale)), model))
    if policies:
        with serving(*FLAGS, *flags, "--scheduling-policy", "fcfs", ready_seconds=READY_SECONDS) as server:
            _latencies(server, 5, model)
            _fill(server, model)
            without.append(_latencies(server, max(3, int(REQUESTS_WITHOUT * scale)), model))
    note = f"{ANSWER_TOKENS} tokens, one request at a time"
    rows = []
    for name, found in (("alone", alone), ("beside a batch", beside), ("beside a batch, no priority", without)):
        if found:
            rows.append(Row(f"interactive p50, {name}", "s", tuple(_rank(run, 0.5) for run in found), note=note))
            rows.append(Row(f"interactive p99, {name}", "s", tuple(_rank(run, 0.99) for run in found), note=note))
    ratios = tuple(_rank(b, 0.99) / _rank(a, 0.99) for a, b in zip(alone, beside, strict=True))
    ratio = Row("interactive p99, beside a batch / alone", "x", ratios, note=f"{SEATS} seats, all taken by the batch")
    return [*rows, judged(ratio, f"<= {TARGET}", lambda x: x <= TARGET)]


def _latencies(server: Server, count: int, model: str) -> list[float]:
    """Seconds from request to whole answer, one after the other."""
    found = []
    with httpx2.Client(base_url=server.base_url, timeout=600) as client:
        for number in range(count):
            body = _body(f"Count from {number} on.", ANSWER_TOKENS, model)
            began = time.monotonic()
            client.post("chat/completions", json=body).raise_for_status()
            found.append(time.monotonic() - began)
    return found


def _fill(server: Server, model: str) -> None:
    """Start a batch that keeps every seat taken, and wait until it does."""
    lines = [
        json.dumps(
            {
                "custom_id": str(number),
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": _body(f"Tell me story {number}.", LINE_TOKENS, model),
            }
        )
        for number in range(LINES)
    ]
    with httpx2.Client(base_url=server.base_url, timeout=60) as client:
        files = {"file": ("bench.jsonl", "\n".join(lines).encode())}
        upload = client.post("files", data={"purpose": "batch"}, files=files).raise_for_status().json()
        body = {"input_file_id": upload["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        client.post("batches", json=body).raise_for_status()
        metrics = server.base_url.removesuffix("/v1") + "/metrics"
        while _inflight(client.get(metrics).text) < 2 * SEATS:
            time.sleep(0.2)
    time.sleep(5)  # every seat has its prompt behind it


def _inflight(metrics: str) -> float:
    line = next(line for line in metrics.splitlines() if line.startswith("batch_inflight "))
    return float(line.split()[1])


def _body(text: str, tokens: int, model: str) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": tokens, "ignore_eos": True}


def _rank(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
