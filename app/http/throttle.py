"""Requests a minute, by project or by key: a token bucket each, in this process."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.domain.key import Caller
from app.errors import RateLimited
from app.http.errors import answer

_BUCKETS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Rate:
    """How a caller stands. `reset_seconds`: until nothing is used; `wait_seconds`: until the next call is let in."""

    limit: int
    remaining: int
    reset_seconds: float
    wait_seconds: float

    def headers(self) -> dict[str, str]:
        """The three that OpenAI sends (openai-contract 8.2)."""
        return {
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(self.remaining),
            "x-ratelimit-reset-requests": f"{self.reset_seconds:.3f}s",
        }


class Bucket:
    """Holds a minute's calls at most and fills evenly."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = float(limit)
        self._at = monotonic()

    def take(self) -> tuple[bool, Rate]:
        """Take one call, if there is one. A refused one takes nothing."""
        now = monotonic()
        self._held = min(self.limit, self._held + (now - self._at) * self.limit / 60)
        self._at = now
        taken = self._held >= 1
        if taken:
            self._held -= 1
        seconds_each = 60 / self.limit
        rate = Rate(
            limit=self.limit,
            remaining=math.floor(self._held),
            reset_seconds=(self.limit - self._held) * seconds_each,
            wait_seconds=max(0.0, 1 - self._held) * seconds_each,
        )
        return taken, rate


class Throttle:
    """Refuses calls above the caller's `requests_per_minute`, and tells every caller that has one how it stands."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller | None = scope.get("state", {}).get("caller") if scope["type"] == "http" else None
        limit = None if caller is None else caller.quotas.requests_per_minute
        if caller is None or limit is None:
            await self._app(scope, receive, send)
            return
        taken, rate = self._bucket(caller.bucket, limit).take()
        scope["state"]["rate"] = rate

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(rate.headers())
            await send(message)

        if taken:
            await self._app(scope, receive, told)
        else:
            await answer(_refusal(caller.project_id, rate))(scope, receive, told)

    def _bucket(self, name: str, limit: int) -> Bucket:
        bucket = self._buckets.get(name)
        if bucket is None or bucket.limit != limit:
            bucket = self._buckets[name] = Bucket(limit)
        self._buckets.move_to_end(name)
        while len(self._buckets) > _BUCKETS_MAX:
            self._buckets.popitem(last=False)
        return bucket


def _refusal(project_id: str, rate: Rate) -> RateLimited:
    used = rate.limit - rate.remaining
    # Never sooner than the bucket has one, also for a client that rounds down.
    wait_seconds = max(1, math.ceil(rate.wait_seconds))
    return RateLimited(
        f"Rate limit reached in project {project_id} on requests per min (RPM): Limit {rate.limit}, Used {used}, "
        f"Requested 1. Please try again in {wait_seconds}s.",
        retry_after_seconds=wait_seconds,
    )
