from __future__ import annotations

import json
from typing import Any

import pytest

from app.domain.tokens import estimate


def of(**fields: Any) -> int:
    """The estimate without the share of the body's own bytes."""
    raw = json.dumps(fields).encode()
    return estimate(raw) - -(-len(raw) // 4)


def test_estimate_takes_a_quarter_of_the_bytes_rounded_up() -> None:
    assert [estimate(b"{" + b" " * more + b"}") for more in (0, 2, 3, 6)] == [1, 1, 2, 2]
    assert estimate('{"a":"éé"}'.encode()) == 3


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_estimate_adds_what_the_answer_may_take(name: str) -> None:
    assert of(**{name: 100}) == 100
    assert of(**{name: 100, "n": 3}) == 300


def test_estimate_prefers_the_newer_name() -> None:
    assert of(max_tokens=5, max_completion_tokens=7) == 7


@pytest.mark.parametrize("value", [None, -1, 0, "9", 1.5, True, [9], {"a": 9}], ids=repr)
def test_estimate_leaves_odd_values_to_the_engine(value: Any) -> None:
    assert of(max_tokens=value, n=value) == 0


@pytest.mark.parametrize("number", [b"1e400", b"1" + b"0" * 400, b"99999999999999999999"])
def test_estimate_survives_numbers_that_no_machine_holds(number: bytes) -> None:
    assert estimate(b'{"max_tokens":%b}' % number) >= 0
