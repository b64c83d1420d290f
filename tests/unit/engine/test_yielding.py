"""Who takes part in a step, over a scheduler that admits and runs as vLLM's does."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine.yielding import BATCH, BATCH_STEP_EVERY, INTERACTIVE, RESERVED_SECONDS, YieldingSteps

SEATS = 16
RESERVED = 2


@dataclass(order=True)
class Request:
    priority: int
    arrival: int
    left: int = field(default=4, compare=False)
    blocked: bool = field(default=False, compare=False)


class Queue:
    """vLLM's priority queue, by its interface. `moves` counts what all of them took in."""

    moves = 0

    def __init__(self) -> None:
        self._heap: list[Request] = []

    def add_request(self, request: Request) -> None:
        Queue.moves += 1
        heapq.heappush(self._heap, request)

    def pop_request(self) -> Request:
        return heapq.heappop(self._heap)

    def peek_request(self) -> Request:
        return self._heap[0]

    def __bool__(self) -> bool:
        return bool(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Any:
        return iter(sorted(self._heap))


class Step(list[Request]):
    """Who takes part; a token each."""

    @property
    def total_num_scheduled_tokens(self) -> int:
        return len(self)


class Scheduler:
    """Runs everybody in `running`, then admits from `waiting` up to the seats. One who is blocked keeps waiting."""

    def __init__(self) -> None:
        self.max_num_active_reqs = SEATS
        self.policy = "priority"
        self.kv_cache_manager = SimpleNamespace(usage=0.5)
        self.running: list[Request] = []
        self.waiting = Queue()

    def schedule(self) -> Step:
        blocked: list[Request] = []
        while self.waiting and len(self.running) < self.max_num_active_reqs:
            request = self.waiting.pop_request()
            (blocked if request.blocked else self.running).append(request)
        for request in blocked:
            self.waiting.add_request(request)
        assert len(self.running) <= SEATS
        return Step(self.running)


class Yielding(YieldingSteps, Scheduler):
    @staticmethod
    def new_queue(policy: str) -> Queue:
        assert policy == "priority"
        return Queue()


class Engine:
    """Steps of a scheduler; a request ends after as many as it asked for. A step without a batch takes 10 ms."""

    def __init__(self) -> None:
        self.scheduler = Yielding()
        self.scheduler.clock = lambda: self.now
        self.now = 100.0
        self.batch_step_seconds = 0.01
        self._arrivals = 0

    def ask(self, priority: int, *, left: int) -> Request:
        self._arrivals += 1
        request = Request(priority, self._arrivals, left)
        self.scheduler.waiting.add_request(request)
        return request

    def step(self) -> list[Request]:
        took_part: Step = self.scheduler.schedule()
        self.now += self.batch_step_seconds if any(one.priority == BATCH for one in took_part) else 0.01
        for request in took_part:
            request.left -= 1
            if not request.left:
                self.scheduler.running.remove(request)
        return took_part


@pytest.fixture
def engine() -> Engine:
    """Full of a batch, with more of it waiting; a client was there a moment ago."""
    engine = Engine()
    engine.ask(INTERACTIVE, left=1)
    engine.step()
    for _ in range(3 * SEATS):
        engine.ask(BATCH, left=1000)
    engine.step()
    return engine


def test_batch_leaves_seats_free(engine: Engine) -> None:
    assert len(engine.step()) == SEATS - RESERVED
    assert len(engine.scheduler.waiting) == 2 * SEATS + RESERVED


def test_batch_has_every_seat_when_no_client_came_for_a_while(engine: Engine) -> None:
    engine.now += RESERVED_SECONDS
    assert len(engine.step()) == SEATS


def test_first_client_of_a_while_has_the_next_seat_and_then_its_own_steps(engine: Engine) -> None:
    engine.now += RESERVED_SECONDS
    engine.step()
    client = engine.ask(INTERACTIVE, left=3)
    engine.scheduler.running[0].left = 2
    steps = [engine.step() for _ in range(8)]
    at = next(number for number, step in enumerate(steps) if client in step)
    assert all(len(step) in (0, SEATS) for step in steps[:at])
    assert steps[at : at + 3] == [[client]] * 3
    assert len(steps[-1]) == SEATS - 1, "the seat stays free"


def test_client_has_the_next_step_and_has_it_alone(engine: Engine) -> None:
    client = engine.ask(INTERACTIVE, left=3)
    assert engine.step() == engine.step() == engine.step() == [client]
    assert len(engine.step()) == SEATS - RESERVED
    assert len(engine.scheduler.waiting) == 2 * SEATS + RESERVED


def test_batch_has_one_step_of_eight_beside_clients(engine: Engine) -> None:
    engine.ask(INTERACTIVE, left=1000)
    sizes = [len(engine.step()) for _ in range(3 * BATCH_STEP_EVERY)]
    alone = [1] * (BATCH_STEP_EVERY - 1)
    assert sizes == [*alone, SEATS - RESERVED + 1] * 3


def test_batch_has_a_fifth_of_the_time_beside_clients_where_its_steps_are_long(engine: Engine) -> None:
    engine.batch_step_seconds = 0.15
    engine.step()
    engine.ask(INTERACTIVE, left=1000)
    sizes = [len(engine.step()) for _ in range(3 * 61)]
    assert sizes == [*[1] * 60, SEATS - RESERVED + 1] * 3


def test_time_in_which_nobody_ran_is_no_steps(engine: Engine) -> None:
    for request in [*engine.scheduler.running, *engine.scheduler.waiting]:
        request.left = 1
    while engine.scheduler.running or engine.scheduler.waiting:
        engine.step()
    engine.now += 3600
    engine.ask(BATCH, left=1000)
    engine.ask(INTERACTIVE, left=1000)
    assert [len(engine.step()) for _ in range(2 * BATCH_STEP_EVERY)] == [*[1] * (BATCH_STEP_EVERY - 1), 2] * 2


def test_many_clients_that_wait_are_not_all_moved_about(engine: Engine) -> None:
    for _ in range(500):
        engine.ask(INTERACTIVE, left=1000)
    before = Queue.moves
    engine.step()
    assert Queue.moves - before < 100


def test_clients_beyond_the_free_seats_wait_for_one(engine: Engine) -> None:
    clients = [engine.ask(INTERACTIVE, left=2) for _ in range(5)]
    assert engine.step() == clients[:RESERVED]
    engine.step()
    assert engine.step() == clients[RESERVED : 2 * RESERVED]


def test_clients_alone_may_have_every_seat() -> None:
    engine = Engine()
    for _ in range(SEATS + 3):
        engine.ask(INTERACTIVE, left=10)
    assert len(engine.step()) == SEATS


def test_full_cache_lets_everybody_go_on(engine: Engine) -> None:
    engine.scheduler.kv_cache_manager.usage = 0.95
    client = engine.ask(INTERACTIVE, left=10)
    took_part = engine.step()
    assert client in took_part
    assert len(took_part) > SEATS - RESERVED


def test_client_that_cannot_take_part_stops_nobody_for_two_steps(engine: Engine) -> None:
    client = engine.ask(INTERACTIVE, left=10)
    client.blocked = True
    assert [len(engine.step()) for _ in range(6)] == [0, SEATS - RESERVED] * 3
    client.blocked = False
    assert engine.step() == [client]


def test_nobody_is_lost_or_doubled(engine: Engine) -> None:
    everybody = {id(request) for request in [*engine.scheduler.running, *engine.scheduler.waiting]}
    for number in range(50):
        if number % 3 == 0:
            everybody.add(id(engine.ask(INTERACTIVE, left=1000)))
        engine.step()
        now = [id(request) for request in [*engine.scheduler.running, *engine.scheduler.waiting]]
        assert len(now) == len(set(now))
        assert set(now) == everybody


def test_scheduler_of_another_release_is_left_alone() -> None:
    class Other:
        def schedule(self) -> str:
            return "its own"

    class Both(YieldingSteps, Other):
        pass

    assert Both().schedule() == "its own"
