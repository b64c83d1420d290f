"""`python -m bench [NAME …|all] [--runs N] [--scale 1] [--out FILE]`: measure, print the table, write JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from rich.console import Console

from bench import drain, durability, engine, interactive, peers, poll, ray, reaction, size, wire
from bench.report import Row, document, earlier, load, machine, markdown, show

#: Each has NAME, `measure(*, runs, scale) -> list[Row]`, and RUNS where it is not 3. A new measurement is a new module.
MEASUREMENTS: tuple[ModuleType, ...] = (drain, wire, peers, durability, reaction, size, poll, engine, interactive, ray)
RUNS = 3
#: Without a name, those that end within a minute or two.
QUICK = (drain, wire, peers)


def main() -> int:
    """Exit code 1 when a target is missed."""
    names = [module.NAME for module in MEASUREMENTS]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure everything but the model.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(names)}, or all")
    parser.add_argument("--runs", type=int, help="runs of each; without it 3, and 5 of engine and durability")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies sizes; targets are meant for 1")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    parser.add_argument("--join", type=Path, metavar="FILE", help="keep what this JSON says of other measurements")
    parser.add_argument("--markdown", type=Path, help="write the page docs/benchmarks.md here")
    given = parser.parse_args()
    if unknown := set(given.names) - {*names, "all"}:
        parser.error(f"no such measurement: {', '.join(sorted(unknown))}")
    console = Console(stderr=True)
    where = machine()
    rows: list[Row] = []
    wanted = set(given.names or (module.NAME for module in QUICK))
    for module in MEASUREMENTS:
        if module.NAME in wanted or "all" in wanted:
            runs = given.runs or getattr(module, "RUNS", RUNS)
            with console.status(f"measuring {module.NAME}, {runs} runs …"):
                before, began = load(), time.monotonic()
                found = module.measure(runs=runs, scale=given.scale)
            console.print(f"{module.NAME}: {time.monotonic() - began:.0f} s", highlight=False)
            rows += [replace(row, measurement=module.NAME, load=before) for row in found]
    if given.join:
        rows = _joined(rows, earlier(given.join))
    if given.out:
        given.out.write_text(json.dumps(document(rows, where=where), indent=2) + "\n", encoding="utf-8")
    if given.markdown:
        given.markdown.write_text(markdown(rows, where=where), encoding="utf-8")
    show(rows, where=where, console=Console(width=None if sys.stdout.isatty() else 160))
    return 1 if any(row.met is False for row in rows) else 0


def _joined(rows: list[Row], before: list[Row]) -> list[Row]:
    """Both, each measurement at its place; those in `rows` are newer."""
    measured = {row.measurement for row in rows}
    order = [module.NAME for module in MEASUREMENTS]
    every = [*rows, *(row for row in before if row.measurement not in measured)]
    return sorted(every, key=lambda row: order.index(row.measurement))


if __name__ == "__main__":
    sys.exit(main())
