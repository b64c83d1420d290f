"""From the outcomes of tests to a verdict on each assertion. A test carries its numbers in its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.conformance.assertions import ASSERTIONS, DEVIATIONS

ACCEPTANCE = Path(__file__).resolve().parents[1] / "acceptance"
_NAME = re.compile(r"test_item_(\d\d(?:_and_\d\d)*)_")


class Verdict(StrEnum):
    """What is said of one assertion. Only the first two are good."""

    PASS = "pass"
    DEVIATES = "deviates"
    FAIL = "FAIL"
    MISSING = "MISSING"


GOOD = frozenset({Verdict.PASS, Verdict.DEVIATES})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one test, or of one of its parameters: passed, failed or skipped."""

    test: str
    result: str

    @property
    def function(self) -> str:
        """The test's name without file and parameters."""
        return self.test.rpartition("::")[2].partition("[")[0]


def numbers(function: str) -> list[int]:
    """The assertions that a test shows: [82, 83] for test_item_82_and_83_…"""
    found = _NAME.match(function)
    return [int(number) for number in found[1].split("_and_")] if found else []


def census() -> dict[int, list[str]]:
    """The tests that stand in the sources for each number; nothing is imported or run."""
    found: dict[int, list[str]] = {}
    for path in sorted(ACCEPTANCE.glob("test_contract_section_9_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for number in numbers(node.name):
                    found.setdefault(number, []).append(node.name)
    return found


def judge(outcomes: Sequence[Outcome], *, wanted: Mapping[int, Sequence[str]]) -> dict[int, Verdict]:
    """A verdict on each assertion. `wanted` are the tests that should have run: see `census`.

    One that was skipped or did not run has shown nothing, whatever the others say.
    """
    results: dict[str, set[str]] = {}
    for outcome in outcomes:
        results.setdefault(outcome.function, set()).add(outcome.result)
    return {number: _verdict(number, wanted.get(number, ()), results) for number in ASSERTIONS}


def _verdict(number: int, tests: Sequence[str], results: Mapping[str, set[str]]) -> Verdict:
    found = [results.get(test, set()) for test in tests]
    if any("failed" in one for one in found):
        return Verdict.FAIL
    if not tests or any(one != {"passed"} for one in found):
        return Verdict.MISSING
    deviation = DEVIATIONS.get(number)
    if deviation is None:
        return Verdict.PASS
    return Verdict.DEVIATES if deviation.test in tests else Verdict.MISSING
