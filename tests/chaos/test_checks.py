"""The checks of the chaos runs fail when they should: each is shown a service that does wrong."""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx2
import pytest

from app.failpoint import NAMES
from tests.chaos.__main__ import COVERING, MISHAPS_A_ROUND
from tests.chaos.customer import Record, step_back
from tests.chaos.errand import Errand, errand
from tests.chaos.journal import Excuse, judge
from tests.chaos.ledger import audit
from tests.chaos.mishap import points_of
from tests.chaos.receiver import Receiver

ERRAND = Errand("e1", "plain", lines=4, failing=frozenset({2}), share=0, delete_input=False)
USAGE = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


def row(number: int) -> dict[str, Any]:
    body: dict[str, Any] = {"choices": [{"message": {"content": ERRAND.text(number)}}], "usage": USAGE}
    if number in ERRAND.failing:
        body = {"error": {}}
    return {"custom_id": ERRAND.custom_id(number), "response": {"body": body}, "error": None}


def batch(**changes: Any) -> dict[str, Any]:
    return {
        "id": "batch_1",
        "status": "completed",
        "in_progress_at": 1,
        "completed_at": 2,
        "output_file_id": "out",
        "error_file_id": "err",
        "request_counts": {"total": 4, "completed": 3, "failed": 1},
        "usage": {"input_tokens": 9, "output_tokens": 9, "total_tokens": 18},
        "metadata": {"tag": "e1"},
    } | changes


def found(output: list[int], error: list[dict[str, Any]] | None = None, **changes: Any) -> list[str]:
    files = {"out": [row(number) for number in output], "err": [row(2)] if error is None else error}
    text = {name: "".join(json.dumps(line) + "\n" for line in rows) for name, rows in files.items()}
    return audit(batch(**changes), Record(ERRAND), text.__getitem__)


def test_audit_passes_what_is_right() -> None:
    assert found([0, 1, 3]) == []


@pytest.mark.parametrize(
    ("problem", "output"),
    [("lost", [0, 1]), ("doubled", [0, 1, 1, 3]), ("input order", [1, 0, 3]), ("never sent", [0, 1, 3, 7])],
)
def test_audit_sees_wrong_lines(problem: str, output: list[int]) -> None:
    assert any(problem in sentence for sentence in found(output))


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        ("stuck", {"status": "finalizing"}),
        ("instead of", {"status": "cancelled"}),
        ("counts", {"request_counts": {"total": 4, "completed": 2, "failed": 1}}),
        ("usage", {"usage": {"input_tokens": 8, "output_tokens": 9, "total_tokens": 18}}),
        ("never accepted", {"in_progress_at": None}),
    ],
)
def test_audit_sees_a_wrong_batch(problem: str, changes: dict[str, Any]) -> None:
    assert any(problem in sentence for sentence in found([0, 1, 3], **changes))


def test_audit_sees_rows_of_another_end_and_of_another_line() -> None:
    unrun = {"custom_id": "e1-2", "response": None, "error": {"code": "batch_cancelled"}}
    assert any("batch_cancelled" in sentence for sentence in found([0, 1, 3], [unrun]))
    swapped = row(3) | {"custom_id": "e1-1"}
    text = {"out": "".join(json.dumps(line) + "\n" for line in [row(0), swapped, row(3)]), "err": json.dumps(row(2))}
    assert any("another line's answer" in sentence for sentence in audit(batch(), Record(ERRAND), text.__getitem__))
    assert audit(batch(), Record(ERRAND, asked=True, cancelled=True), text.__getitem__)
    assert audit(batch(), None, text.__getitem__)


@pytest.mark.parametrize(
    ("before", "after", "backwards"),
    [
        ({}, {}, False),
        ({"status": "validating", "completed_at": None}, {}, False),
        ({}, {"status": "in_progress"}, True),
        ({"status": "cancelling", "completed_at": None}, {}, True),
        (
            {"status": "in_progress", "completed_at": None},
            {"request_counts": {"total": 4, "completed": 2, "failed": 1}},
            True,
        ),
        ({"status": "in_progress", "completed_at": None}, {"in_progress_at": 3}, True),
        ({}, {"output_file_id": "another"}, True),
    ],
)
def test_step_back_is_seen(before: dict[str, Any], after: dict[str, Any], backwards: bool) -> None:
    assert (step_back(batch(**before), batch(**after)) is not None) == backwards


def test_judge_wants_an_excuse_of_the_line_itself() -> None:
    runs = {"a": [(10, 1)], "b": [(10, 1), (50, 2)]}
    excuse = Excuse("kill", 1, 20, 21, frozenset({"a"}))
    assert judge(runs, [excuse]).unexcused == []
    assert (judge(runs, [excuse]).rerun, judge(runs, [excuse]).bound) == (1, 1)
    for other in (
        Excuse("kill", 1, 20, 21, frozenset({"a", "b"})),  # it was durable
        Excuse("kill", 3, 20, 21, frozenset()),  # it ran elsewhere
        Excuse("kill", 1, 60, 61, frozenset()),  # that came later
        Excuse("kill", 1, 5, 6, frozenset()),  # that came earlier
    ):
        assert len(judge(runs, [other]).unexcused) == 1


def test_errand_comes_from_the_seed_alone() -> None:
    assert [errand("s/0", n) for n in range(20)] == [errand("s/0", n) for n in range(20)]
    assert [errand("s/0", n) for n in range(20)] != [errand("s/1", n) for n in range(20)]
    task = errand("s/0", 3)
    bodies = [json.loads(line)["body"] for line in task.content.splitlines() if line.startswith(b'{"')]
    assert bodies == [task.body(n) for n in range(task.lines)]
    assert len(copy.copy(task.digests)) == task.lines


def test_long_run_deals_every_failpoint() -> None:
    rounds = COVERING // MISHAPS_A_ROUND
    dealt = [name for number in range(rounds) for name in points_of(f"s/{number}")]
    assert set(dealt) == set(NAMES)
    assert dealt == [name for number in range(rounds) for name in points_of(f"s/{number}")]
    assert dealt != [name for number in range(rounds) for name in points_of(f"t/{number}")]


def test_receiver_keeps_what_it_is_told() -> None:
    receiver = Receiver()
    try:
        event = {"type": "batch.completed", "data": {"id": "batch_1"}}
        for _ in range(2):
            assert httpx2.post(receiver.url, json=event, timeout=10).status_code == 200
        assert receiver.told == {"batch_1": {"batch.completed"}}
    finally:
        receiver.close()
