"""The state machine."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.domain.batch import (
    TERMINAL,
    TRANSITIONS,
    Batch,
    BatchStatus,
    advance,
    sources,
    timestamp_field,
    window_seconds,
)
from app.errors import IllegalTransition

TIMES = ("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at")
ENDS = ("completed_at", "failed_at", "expired_at", "cancelled_at")


def new_batch(status: BatchStatus = BatchStatus.VALIDATING) -> Batch:
    return Batch("batch_1", "p", "/v1/chat/completions", "file-1", "24h", status, created_at=1, expires_at=86_401)


def test_every_status_can_be_reached() -> None:
    reached = {BatchStatus.VALIDATING}
    while True:
        further = reached | {exit_ for status in reached for exit_ in TRANSITIONS[status]}
        if further == reached:
            break
        reached = further
    assert reached == set(BatchStatus) == set(TRANSITIONS)


def test_every_status_leads_to_an_end() -> None:
    ending = set(TERMINAL)
    for _ in BatchStatus:
        ending |= {status for status, exits in TRANSITIONS.items() if exits & ending}
    assert ending == set(BatchStatus)
    assert {"completed", "failed", "expired", "cancelled"} == TERMINAL


@pytest.mark.parametrize("to", BatchStatus)
def test_sources_are_the_table_backwards(to: BatchStatus) -> None:
    assert sources(to) == {status for status in BatchStatus if to in TRANSITIONS[status]}


def test_nothing_leads_back() -> None:
    for status in BatchStatus:
        seen: set[BatchStatus] = set()
        ahead = set(TRANSITIONS[status])
        while ahead:
            seen |= ahead
            ahead = {exit_ for one in ahead for exit_ in TRANSITIONS[one]} - seen
        assert status not in seen


class Life(RuleBasedStateMachine):
    """Any sequence of attempts: a batch moves along the table's edges, and time stamps are set once."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = new_batch()
        self.now = 1
        self.path = [BatchStatus.VALIDATING]

    @rule(to=st.sampled_from(BatchStatus))
    def attempt(self, to: BatchStatus) -> None:
        self.now += 1
        before = self.batch
        if to not in TRANSITIONS[before.status]:
            with pytest.raises(IllegalTransition):
                advance(before, to, now=self.now)
            return
        self.batch = advance(before, to, now=self.now)
        self.path.append(to)
        assert getattr(self.batch, timestamp_field(to)) == self.now

    @invariant()
    def stamps_tell_the_path(self) -> None:
        stamped = {field for field in TIMES if getattr(self.batch, field) is not None}
        assert stamped == {timestamp_field(status) for status in self.path[1:]}
        assert self.batch.created_at == 1
        assert sum(field in stamped for field in ENDS) == int(self.batch.is_terminal)


TestLife = Life.TestCase


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("24h", 86_400), ("1m", 60), ("90m", 5400), ("7d", 604_800), ("999999d", 86_399_913_600)],
)
def test_window_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert window_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "24", "0h", "01h", "1 h", "1H", "1s", "-1h", "1h\n", "1000000h", "٢h", "any"]
)
def test_other_words_are_no_window(text: str) -> None:
    assert window_seconds(text) is None
