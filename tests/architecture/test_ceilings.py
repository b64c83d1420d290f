"""A module is at most 400 lines and a function at most 50; what is longer has a decision record that says why."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

from tests.architecture.source import ROOT, modules

MODULE_LINES = 400
FUNCTION_LINES = 50


@dataclass(frozen=True, slots=True)
class Exemption:
    path: str
    lines: int
    adr: str
    name: str = ""


def exemptions(kind: str) -> dict[tuple[str, str], Exemption]:
    listed = tomllib.loads((ROOT / "tests/architecture/ceilings.toml").read_text(encoding="utf-8")).get(kind, [])
    entries = [Exemption(**entry) for entry in listed]
    return {(entry.path, entry.name): entry for entry in entries}


def module_lengths() -> dict[tuple[str, str], int]:
    return {(module.path, ""): module.lines for module in modules()}


def function_lengths() -> dict[tuple[str, str], int]:
    return {(module.path, name): lines for module in modules() for name, lines in module.functions()}


def too_long(lengths: dict[tuple[str, str], int], kind: str, ceiling: int) -> list[str]:
    allowed = exemptions(kind)
    return [
        f"{path} {name}: {lines} lines"
        for (path, name), lines in lengths.items()
        if lines > (allowed[path, name].lines if (path, name) in allowed else ceiling)
    ]


def test_module_stays_under_its_ceiling() -> None:
    assert too_long(module_lengths(), "module", MODULE_LINES) == []


def test_function_stays_under_its_ceiling() -> None:
    assert too_long(function_lengths(), "function", FUNCTION_LINES) == []


def test_exemption_names_a_decision_and_is_still_needed() -> None:
    lengths = {"module": (module_lengths(), MODULE_LINES), "function": (function_lengths(), FUNCTION_LINES)}
    for kind, (present, ceiling) in lengths.items():
        for key, entry in exemptions(kind).items():
            assert entry.adr.startswith("docs/adr/"), entry
            assert (ROOT / entry.adr).is_file(), f"{entry}: the record is missing"
            assert present.get(key, 0) > ceiling, f"{entry}: no longer needed, or gone"


def test_counting_sees_nested_and_async_functions() -> None:
    counted = function_lengths()
    here = "tests/architecture/test_ceilings.py"
    assert counted[here, "test_counting_sees_nested_and_async_functions"] == 10

    async def inner() -> None:
        return None

    assert counted[here, "test_counting_sees_nested_and_async_functions.inner"] == 2
    assert inner.__name__ == "inner"
