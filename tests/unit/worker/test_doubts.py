"""What is noted of a job's lines, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from app.domain.suspicion import SUSPECT, TRUSTED, Doubt
from app.worker.doubts import Doubts


async def test_one_death_counts_once_however_often_it_is_noticed() -> None:
    doubts = Doubts()
    for _ in range(3):
        doubts.died(4, generation=1, killed=False)
    assert doubts.of(4) == SUSPECT
    assert doubts.of(5) == TRUSTED
    assert doubts.died(4, generation=2, killed=False).alone


async def test_unsaved_is_told_once() -> None:
    doubts = Doubts()
    for index in range(2):
        doubts.died(index, generation=1, killed=False)
    assert doubts.take_unsaved() == {0: SUSPECT, 1: SUSPECT}
    assert doubts.take_unsaved() == {}
    doubts.give_back([1])
    assert doubts.take_unsaved() == {1: SUSPECT}


async def test_line_that_runs_alone_is_noted_first_and_set_right_afterwards() -> None:
    noted: list[Mapping[int, Doubt]] = []

    async def record(lines: Mapping[int, Doubt]) -> bool:
        noted.append(dict(lines))
        return True

    doubts = Doubts({0: Doubt(2), 1: SUSPECT})
    assert not doubts.noteworthy(0), "nobody to note it"
    doubts.record = record
    assert doubts.noteworthy(0)
    assert not doubts.noteworthy(1)
    assert await doubts.begin(0)
    assert noted == [{0: Doubt(3, strikes=1)}]
    assert doubts.take_unsaved() == {}, "in flight: the note must stand"
    doubts.ended(0)
    assert doubts.take_unsaved() == {0: Doubt(2)}
    assert await doubts.begin(0)
    await doubts.answered(0)
    doubts.ended(0)
    assert noted[1:] == [{0: Doubt(3, strikes=1)}, {0: Doubt(2)}]
    assert doubts.take_unsaved() == {}


async def test_cautious_job_notes_every_line_and_runs_none_that_cannot_be_noted() -> None:
    async def refuse(lines: Mapping[int, Doubt]) -> bool:
        return not lines

    doubts = Doubts({}, cautious=True)
    doubts.record = refuse
    assert doubts.noteworthy(7)
    assert not await doubts.begin(7)
    assert doubts.take_unsaved() == {7: TRUSTED}, "the note may have been made: it is set right"


async def test_line_that_is_aborted_while_it_is_noted_is_set_right() -> None:
    """The note may be in the database already, and the line never ran."""

    async def slow(lines: Mapping[int, Doubt]) -> bool:
        await asyncio.Event().wait()
        return bool(lines)

    doubts = Doubts({0: Doubt(2)})
    doubts.record = slow
    beginning = asyncio.create_task(doubts.begin(0))
    await asyncio.sleep(0)
    assert doubts.take_unsaved() == {}, "not while the note is being made"
    beginning.cancel()
    await asyncio.wait([beginning])
    doubts.ended(0)
    assert doubts.take_unsaved() == {0: Doubt(2)}
