"""The files of the contest, and how its contenders are compared."""

from __future__ import annotations

from bench.engine import CASES, by_hand_rows, rows_of
from bench.requests import plain, shared, stragglers


def test_contenders_are_compared_round_by_round() -> None:
    seconds = {"ours": [2.0, 4.0, 8.0], "run_batch": [4.0, 4.0, 4.0], "limit": [1.0]}
    rows = {row.name: row for row in rows_of(CASES[0], seconds, tokens=8, lines=1)}
    assert rows["plain: ours"].runs == (4.0, 2.0, 1.0)
    assert rows["plain: ours / run_batch"].runs == (2.0, 1.0, 0.5)
    assert rows["plain: ours / run_batch"].met is True
    assert rows["plain: ours / limit"].runs == (0.5,)
    assert rows["plain: ours / limit"].met is False


def test_files_are_the_same_each_time_and_as_large_as_said() -> None:
    assert (len(plain(1)), len(shared(1)), len(stragglers(1))) == (256, 64, 128)
    for file in (plain, shared, stragglers):
        assert file(0.5) == file(0.5)
        assert all(request.max_tokens <= 400 for request in file(1))
    assert len({request.prompt.split(" Question")[0] for request in shared(1)}) == 4


def test_lines_sorted_by_hand_show_what_an_order_can_gain() -> None:
    case = CASES[1]
    assert case.by_hand is not None
    prefixes = [request.prompt.split(" Question")[0] for request in case.by_hand(shared(1))]
    assert [prefixes[number : number + 16].count(prefixes[number]) for number in (0, 16, 32, 48)] == [16] * 4
    rate, seconds, ratio = by_hand_rows(case, [4.0, 2.0], [2.0], tokens=8)
    assert (rate.runs, seconds.runs, ratio.runs) == ((4.0,), (2.0,), (0.5,))
