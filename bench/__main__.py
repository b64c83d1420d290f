"""`python -m bench [NAME …|all] [--runs 3] [--scale 1] [--out FILE]`: measure, print the table, write JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import ModuleType

from rich.console import Console

from bench import drain, durability, engine, interactive, peers, poll, reaction, size, wire
from bench.report import Row, document, machine, markdown, show

#: Each has NAME and `measure(*, runs, scale) -> list[Row]`. A new measurement is a new module here.
MEASUREMENTS: tuple[ModuleType, ...] = (drain, wire, peers, durability, reaction, size, poll, engine, interactive)
#: Without a name, those that end within a minute or two.
QUICK = (drain, wire, peers)


def main() -> int:
    """Exit code 1 when a target is missed."""
    names = [module.NAME for module in MEASUREMENTS]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure everything but the model.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(names)}, or all")
    parser.add_argument("--runs", type=int, default=3, help="runs of each, each with a fresh server (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies sizes; targets are meant for 1")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
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
            with console.status(f"measuring {module.NAME}, {given.runs} runs …"):
                rows += module.measure(runs=given.runs, scale=given.scale)
    if given.out:
        given.out.write_text(json.dumps(document(rows, where=where), indent=2) + "\n", encoding="utf-8")
    if given.markdown:
        given.markdown.write_text(markdown(rows, where=where), encoding="utf-8")
    show(rows, where=where, console=Console(width=None if sys.stdout.isatty() else 160))
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
