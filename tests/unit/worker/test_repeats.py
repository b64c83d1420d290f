"""Which ids stand twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.worker.repeats import Hashes, Suspects


def test_ids_that_stand_once_leave_nothing_to_read_again() -> None:
    hashes = Hashes()
    assert not any(hashes.note(f"line-{number}") for number in range(10_000))
    assert not hashes.repeated()


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-600, 600), max_size=200))
def test_repeated_are_the_hashes_noted_more_than_once_in_order(values: list[int]) -> None:
    hashes = Hashes(int)
    for value in values:
        hashes.note(str(value))
    assert list(hashes.repeated()) == sorted({value for value in values if values.count(value) > 1})


def test_suspects_are_told_apart_by_the_whole_id() -> None:
    suspects = Suspects([7], lambda custom_id: 8 if custom_id == "other" else 7)
    ids = ["a", "b", "a", "other", "other", "b", "c"]
    assert [suspects.note(custom_id) for custom_id in ids] == [False, False, True, False, False, True, False]
