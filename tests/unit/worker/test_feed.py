"""The feed: who runs next."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from app.domain.chunk import ChunkSpec, Claim
from app.domain.result import unanswered
from app.worker.feed import TURN_LINES, TURN_SEATS, Feed
from app.worker.ledger import Backlog, Ledger
from app.worker.patience import Bell
from tests.unit.worker.yard import CHAT, line

OUTCOME = unanswered("x", code="c", message="m")


def new_ledger(
    lines: int, *, backlog: Backlog | None = None, chunk_id: str = "chunk_1", ended: tuple[int, ...] = ()
) -> Ledger:
    spec = ChunkSpec(position=0, start=0, end=1, first_line=1, lines=lines)
    claim = Claim(chunk_id, "token", "batch_1", "p", CHAT, "file-1", 0, False, False, spec, ())
    texts = [line(str(number)) for number in range(lines)]
    return Ledger(
        claim, texts=texts, order=range(lines), ended=ended, part_max_bytes=1 << 20, backlog=backlog or Backlog()
    )


def new_feed(backlog: Backlog | None = None, *, engine_up: bool = True) -> Feed:
    feed = Feed(backlog=backlog or Backlog(), backlog_max_bytes=1000, bell=Bell())
    if engine_up:
        feed.engine_came()
    return feed


def noting(asked: list[int]) -> Callable[[int], int]:
    """A `spawn` that makes no seat."""

    def spawn(seats: int) -> int:
        asked.append(seats)
        return 0

    return spawn


async def drain(feed: Feed) -> list[tuple[str, int]]:
    """Everything the feed deals, ended at once."""
    found = []
    while feed.undealt():
        dealt = feed.take()
        if dealt is None:
            await asyncio.sleep(0)
            continue
        ledger, index = dealt
        assert isinstance(ledger, Ledger)
        found.append((ledger.chunk_id, index))
        feed.ended(len(ledger.texts[index] or b""))
        ledger.end(index, OUTCOME)
    return found


async def test_deal_chunk_by_chunk_without_a_barrier() -> None:
    feed = new_feed()
    feed.add(new_ledger(2, chunk_id="a"))
    feed.add(new_ledger(1, chunk_id="b"))
    first, second, third = feed.take(), feed.take(), feed.take()
    assert [dealt and (dealt[0].names()["chunk_id"], dealt[1]) for dealt in (first, second, third)] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
    ]
    assert feed.running == 3
    assert feed.take() is None


async def test_deal_only_what_has_not_ended() -> None:
    feed = new_feed()
    feed.add(new_ledger(5, ended=(0, 3)))
    assert [index for _, index in await drain(feed)] == [1, 2, 4]


async def test_deal_a_bounded_number_a_turn() -> None:
    feed = new_feed()
    feed.add(new_ledger(TURN_LINES + 5))
    await asyncio.sleep(0)
    dealt = 0
    while feed.take() is not None:
        dealt += 1
    assert dealt == TURN_LINES
    await asyncio.sleep(0)
    assert feed.take() is not None


async def test_deal_nothing_while_paused() -> None:
    backlog = Backlog()
    feed = new_feed(backlog, engine_up=False)
    feed.add(new_ledger(5))
    assert feed.take() is None
    feed.engine_came()
    assert feed.take() is not None
    feed.engine_went()
    assert feed.take() is None
    feed.engine_came()
    feed.hold_until(0)
    assert feed.take() is None
    feed.hold_until(math.inf)
    backlog.bytes = 1001
    assert feed.take() is None
    backlog.settle(1)
    assert feed.take() is not None
    feed.stop()
    assert feed.take() is None


async def test_waiting_seats_wake_for_lines() -> None:
    feed = new_feed()
    spawned: list[int] = []
    feed.spawn = noting(spawned)
    seats = [asyncio.create_task(feed.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    feed.add(new_ledger(2))
    await asyncio.sleep(0.01)
    assert [seat.done() for seat in seats] == [True, True, False]
    assert spawned == []
    feed.stop()
    await asyncio.gather(*seats)


async def test_seats_are_asked_for_when_none_waits() -> None:
    feed = new_feed()
    asked: list[int] = []

    def spawn(seats: int) -> int:
        asked.append(seats)
        made = max(0, min(seats, TURN_SEATS + 1 - sum(asked[:-1])))
        for _ in range(made):
            feed.take()
        return made

    feed.spawn = spawn
    feed.add(new_ledger(TURN_SEATS + 3))
    for _ in range(9):
        await asyncio.sleep(0)
    assert asked == [TURN_SEATS, 3, 2], "the third is told that there are no more, and is the last"


def accuse(ledger: Ledger, index: int, *, deaths: int) -> None:
    for generation in range(deaths):
        ledger.doubts.died(index, generation=generation, killed=False)


async def test_line_of_two_deaths_runs_alone() -> None:
    feed = new_feed()
    ledger = new_ledger(4)
    feed.add(ledger)
    first, second = feed.take(), feed.take()
    assert first is not None
    assert second is not None
    feed.ended(0)
    accuse(ledger, 0, deaths=2)
    feed.give_back(ledger, 0)
    assert feed.take() is None, "line 1 is still in flight"
    feed.ended(0)
    assert feed.take() == (ledger, 0)
    assert feed.take() is None, "nothing beside it"
    feed.ended(0, suspect=True)
    following = feed.take()
    assert following is not None
    assert following[1] == 2


async def test_few_suspects_run_at_a_time_beside_others() -> None:
    feed = new_feed()
    feed.suspects_max = 2
    ledger = new_ledger(8)
    feed.add(ledger)
    for index in range(4):
        assert feed.take() == (ledger, index)
    for index in range(4):
        feed.ended(0)
        accuse(ledger, index, deaths=1)
        feed.give_back(ledger, index)
    dealt = [feed.take() for _ in range(7)]
    assert [found and found[1] for found in dealt] == [0, 1, 4, 5, 6, 7, None]
    assert feed.undealt() == 2
    feed.ended(0)
    assert feed.take() is None
    feed.ended(0, suspect=True)
    assert feed.take() == (ledger, 2)


async def test_suspects_are_found_among_new_lines() -> None:
    feed = new_feed()
    ledger = new_ledger(4)
    accuse(ledger, 1, deaths=1)
    accuse(ledger, 2, deaths=2)
    feed.add(ledger)
    assert feed.take() == (ledger, 0)
    assert feed.take() == (ledger, 3)
    assert feed.take() is None
    feed.ended(0)
    feed.ended(0)
    assert feed.take() == (ledger, 2)
    assert feed.take() is None
    feed.ended(0, suspect=True)
    assert feed.take() == (ledger, 1)


async def test_waiting_seats_wake_for_no_more_suspects_than_may_run() -> None:
    feed = new_feed()
    spawned: list[int] = []
    feed.spawn = noting(spawned)
    feed.suspects_max = 3
    ledger = new_ledger(100)
    for index in range(100):
        accuse(ledger, index, deaths=1)
    feed.add(ledger)
    assert feed.take() is None
    await asyncio.sleep(0)
    assert spawned == [3]


async def test_given_back_line_comes_first() -> None:
    feed = new_feed()
    ledger = new_ledger(3)
    feed.add(ledger)
    for _ in range(3):
        feed.take()
    feed.ended(0)
    feed.give_back(ledger, 1)
    assert feed.take() == (ledger, 1)


async def test_ended_line_is_not_given_back() -> None:
    feed = new_feed()
    ledger = new_ledger(1)
    feed.add(ledger)
    feed.take()
    ledger.close("cancelled")
    feed.give_back(ledger, 0)
    accuse(ledger, 0, deaths=2)
    feed.give_back(ledger, 0)
    assert feed.undealt() == 0


async def test_removed_ledger_is_not_dealt() -> None:
    feed = new_feed()
    gone, kept = new_ledger(3, chunk_id="gone"), new_ledger(1, chunk_id="kept")
    feed.add(gone)
    feed.add(kept)
    feed.take()
    feed.ended(0)
    accuse(gone, 0, deaths=2)
    feed.give_back(gone, 0)
    accuse(gone, 1, deaths=1)
    feed.give_back(gone, 1)
    feed.remove(gone)
    assert await drain(feed) == [("kept", 0)]


async def test_hungry_rings_once_lines_run_low() -> None:
    feed = new_feed()
    feed.low_water = 2
    feed.hungry = False
    feed.add(new_ledger(3))
    assert not feed.hungry
    feed.take()
    await asyncio.sleep(0)
    assert not feed.hungry
    feed.take()
    await asyncio.sleep(0)
    assert feed.hungry
