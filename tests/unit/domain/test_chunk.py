"""Tallies."""

from __future__ import annotations

from app.domain.chunk import NO_TALLY, Tally
from app.domain.usage import Usage


def test_tally_adds_up() -> None:
    total = NO_TALLY + Tally(1, 2, 3, Usage(total_tokens=4)) + Tally(10, 20, 30, Usage(total_tokens=40))
    assert total == Tally(11, 22, 33, Usage(total_tokens=44))
    assert total.lines == 66
