from __future__ import annotations

import pytest

from app.domain.key import Caller
from app.domain.quota import Quotas
from app.http import throttle as module
from app.http.throttle import Bucket, Throttle


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("app.http.throttle.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_take_gives_a_minutes_calls_at_once_and_then_an_even_flow(clock: Clock) -> None:
    bucket = Bucket(60)
    assert [bucket.take()[0] for _ in range(61)] == [True] * 60 + [False]
    clock.now += 0.9
    assert not bucket.take()[0]
    clock.now += 0.1
    assert bucket.take()[0]
    assert not bucket.take()[0]
    clock.now += 1000
    assert [bucket.take()[0] for _ in range(61)] == [True] * 60 + [False]


def test_take_tells_how_the_caller_stands(clock: Clock) -> None:
    bucket = Bucket(2)
    taken, rate = bucket.take()
    assert taken
    assert (rate.limit, rate.remaining, rate.reset_seconds, rate.wait_seconds) == (2, 1, 30, 0)
    bucket.take()
    taken, rate = bucket.take()
    assert not taken
    assert (rate.remaining, rate.reset_seconds, rate.wait_seconds) == (0, 60, 30)
    clock.now += 29
    assert bucket.take()[1].wait_seconds == pytest.approx(1)


def test_take_of_the_smallest_limit_waits_within_what_the_sdk_obeys(clock: Clock) -> None:
    bucket = Bucket(1)
    bucket.take()
    refusal = module._refusal("team", bucket.take()[1])
    assert refusal.headers() == {"retry-after": "60"}
    clock.now += refusal.retry_after_seconds
    assert bucket.take()[0]


class Calls:
    """What the application and the client see of calls through a Throttle."""

    def __init__(self) -> None:
        self.reached = 0
        self.throttle = Throttle(self.application)

    async def application(self, scope: object, receive: object, send: object) -> None:
        self.reached += 1

    async def call(self, caller: Caller | None) -> int:
        """The status that the throttle itself answered, 0 for none."""
        status = 0

        async def send(message: object) -> None:
            nonlocal status
            assert isinstance(message, dict)
            status = message.get("status", status)

        async def receive() -> dict[str, object]:
            raise AssertionError("the body was asked for")

        state = {} if caller is None else {"caller": caller}
        scope = {"type": "http", "method": "POST", "path": "/v1/files", "headers": [], "state": state}
        await self.throttle(scope, receive, send)
        return status


async def test_throttle_counts_each_bucket_apart(clock: Clock) -> None:
    calls = Calls()
    first, second = (Caller(bucket=name, quotas=Quotas(requests_per_minute=1)) for name in "ab")
    assert [await calls.call(caller) for caller in (first, first, second, second)] == [0, 429, 0, 429]
    assert calls.reached == 2


async def test_throttle_lets_callers_without_a_limit_pass(clock: Clock) -> None:
    calls = Calls()
    for caller in (None, Caller()):
        assert [await calls.call(caller) for _ in range(5)] == [0] * 5
    assert calls.throttle._buckets == {}


async def test_throttle_keeps_few_buckets_and_follows_a_changed_limit(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BUCKETS_MAX", 3)
    calls = Calls()
    for number in range(9):
        await calls.call(Caller(bucket=str(number), quotas=Quotas(requests_per_minute=1)))
    assert list(calls.throttle._buckets) == ["6", "7", "8"]
    assert await calls.call(Caller(bucket="8", quotas=Quotas(requests_per_minute=5))) == 0
