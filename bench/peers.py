"""The job that other services were measured at: 2,000 lines against a model that answers at once, and after 20 ms.

Their figures (CITED_ON, the same 2-core kind of machine) are cited, not measured here.
"""

from __future__ import annotations

import httpx2

from bench.drain import drain, request_file
from bench.report import Row
from bench.server import PeakMemory, serving

NAME = "peers"
LINES = 2_000
CITED_ON = "2026-11-30, answers at once and after 20 ms, peak memory"
CITED = {
    "OGX 1.5.0": "188 and 141 lines/s, 200 MiB",
    "LiteLLM 1.110 (its database in memory)": "104 and 78 lines/s, 798 MiB",
    "AIBrix 0.8 (dry run)": "147 and 121 lines/s, 140 MiB",
}


def measure(*, runs: int, scale: float) -> list[Row]:
    """Lines a second from create to completed, and the server's whole memory at its peak."""
    lines = max(1, int(LINES * scale))
    content = request_file(lines)
    rows: list[Row] = []
    for name, delay_seconds in (("at once", 0.0), ("after 20 ms", 0.02)):
        rate, memory = [], []
        for _ in range(runs):
            with serving("--set", f"engine.echo_delay_seconds={delay_seconds}") as server:
                with PeakMemory(server) as peak, httpx2.Client(base_url=server.base_url, timeout=60) as client:
                    rate.append(lines / drain(client, content, lines=lines).wall_seconds)
                memory.append(peak.bytes / 2**20)
        cited = f"cited ({CITED_ON}): " + "; ".join(f"{peer}: {figures}" for peer, figures in CITED.items())
        rows.append(Row(f"2,000 lines, answers {name}", "lines/s", tuple(rate), note=cited))
        rows.append(Row(f"2,000 lines, answers {name}, peak memory", "MiB", tuple(memory), note="the whole process"))
    return rows
