"""The project's own source, as text and as syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("app", "tests", "bench", "examples", "migrations")


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file: `path` is relative to the project, with forward slashes."""

    path: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    def functions(self) -> Iterator[tuple[str, int]]:
        """Every function's dotted name and its length in lines, from `def` to its end, nested ones too."""
        yield from _functions(self.tree, "")


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield name, (child.end_lineno or child.lineno) - child.lineno + 1
            yield from _functions(child, f"{name}.")
        else:
            yield from _functions(child, prefix)


@cache
def modules(room: str | None = None) -> tuple[Module, ...]:
    """All modules of one top-level folder, or of all of them, in path order."""
    found = []
    for folder in (room,) if room else ROOMS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            found.append(Module(file.relative_to(ROOT).as_posix(), text, ast.parse(text, filename=str(file))))
    return tuple(found)
