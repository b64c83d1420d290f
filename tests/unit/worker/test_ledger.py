"""The ledger of one chunk."""

from __future__ import annotations

import json

from app.domain.chunk import NO_TALLY, Tally
from app.domain.part import COMPLETED, FAILED, UNRUN
from app.domain.result import answered, unanswered
from app.domain.usage import Usage
from app.worker.ledger import Backlog
from tests.unit.worker.test_feed import new_ledger

GOOD = answered("x", status=200, body=b'{"model":"m","usage":{"prompt_tokens":2,"completion_tokens":3}}')
BAD = unanswered("x", code="c", message="m")


async def test_end_counts_each_line_once() -> None:
    backlog = Backlog()
    ledger = new_ledger(3, backlog=backlog)
    ledger.end(2, GOOD)
    ledger.end(2, BAD)
    ledger.end(0, BAD)
    assert backlog.bytes == ledger.pending_bytes == len(GOOD.row) + len(BAD.row)
    rows, tally = ledger.take()
    assert [(row.line, row.kind) for row in rows] == [(2, COMPLETED), (0, FAILED)]
    assert tally == Tally(1, 1, 0, Usage(2, 0, 3, 0, 5))
    assert ledger.model == "m"
    assert ledger.take() == ([], NO_TALLY)
    assert ledger.is_running()
    assert not ledger.kick.is_set()
    ledger.end(1, GOOD)
    assert ledger.done
    assert ledger.kick.is_set()


async def test_close_writes_off_what_has_not_ended() -> None:
    ledger = new_ledger(3)
    ledger.end(1, GOOD)
    ledger.close("expired")
    rows, tally = ledger.take()
    assert tally.unrun == 2
    assert tally.completed == 1
    unrun = [json.loads(row.text) for row in rows if row.kind == UNRUN]
    assert [(row["custom_id"], row["error"]["code"]) for row in unrun] == [
        ("0", "batch_expired"),
        ("2", "batch_expired"),
    ]
    ledger.end(0, GOOD)
    assert ledger.take() == ([], NO_TALLY)


async def test_lose_drops_everything() -> None:
    backlog = Backlog()
    ledger = new_ledger(3, backlog=backlog)
    ledger.end(1, GOOD)
    ledger.lose()
    ledger.end(0, GOOD)
    assert backlog.bytes == 0
    assert not ledger.pending
    assert not ledger.todo
    assert not ledger.is_running()
    assert ledger.kick.is_set()


async def test_recovered_ledger_knows_what_has_ended() -> None:
    assert new_ledger(3, ended=(0, 1, 2)).kick.is_set()
    ledger = new_ledger(3, ended=(1,))
    assert list(ledger.todo) == [0, 2]
    assert ledger.left == 2
