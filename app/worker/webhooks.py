"""Delivery of webhooks: takes due messages off the outbox, makes one attempt each, and writes down what came of it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import structlog

from app.domain.webhook import pause_seconds
from app.errors import Unavailable
from app.failpoint import failpoint
from app.service.courier import Courier, Outcome
from app.settings import WebhookSettings
from app.store import outbox
from app.store.db import Database
from app.store.outbox import Claimed
from app.telemetry import WEBHOOK_DELIVERIES, WEBHOOKS_PENDING
from app.worker.patience import Bell

log = structlog.get_logger()

# On top of the attempt itself: the time to write down what came of it.
LEASE_MARGIN_SECONDS = 10.0
TIDY_SECONDS = 15.0
_FORGOTTEN_AT_ONCE = 1000


class WebhookDelivery:
    """Several workers may deliver: a lease lets one of them try one message.

    A seat is taken before a message is. What a crash leaves behind is due again when its lease lapses.
    """

    def __init__(self, *, database: Database, courier: Courier, settings: WebhookSettings) -> None:
        self._database = database
        self._courier = courier
        self._settings = settings
        self._under_way: Counter[str] = Counter()  # endpoint id → attempts
        self.bell = Bell()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, and then until the attempts under way have ended: each takes `timeout_seconds` at most."""
        loop = asyncio.get_running_loop()
        tidy_at = loop.time()
        async with asyncio.TaskGroup() as attempts:
            while not stop.is_set():
                try:
                    for claimed in await self._claim():
                        self._under_way[claimed.endpoint.id] += 1
                        attempts.create_task(self._attempt(claimed))
                    if loop.time() >= tidy_at:
                        await self._tidy()
                        tidy_at = loop.time() + TIDY_SECONDS
                except Unavailable as exc:
                    log.warning("webhooks_wait", reason=exc.message)
                await self.bell.wait(self._settings.poll_seconds)

    async def _claim(self) -> list[Claimed]:
        seats = self._settings.concurrency - self._under_way.total()
        if seats <= 0:
            return []
        async with self._database.read() as tx:
            if not await outbox.is_due(tx):
                return []
        async with self._database.write() as tx:
            claimed = await outbox.claim(
                tx,
                limit=seats,
                per_endpoint=self._settings.concurrency_per_endpoint,
                lease_seconds=self._settings.timeout_seconds + LEASE_MARGIN_SECONDS,
                held=self._under_way,
            )
        if claimed:
            await failpoint("webhook_claimed")
        return claimed

    async def _attempt(self, claimed: Claimed) -> None:
        endpoint = claimed.endpoint
        try:
            outcome = await self._courier.deliver(
                endpoint.url, claimed.body, message_id=claimed.message_id, secrets=endpoint.signing_secrets
            )
            await failpoint("webhook_sent")
            await self._record(claimed, outcome)
        except Unavailable as exc:
            log.warning("webhook_outcome_not_saved", message_id=claimed.message_id, reason=exc.message)
        finally:
            self._under_way[endpoint.id] -= 1
            if not self._under_way[endpoint.id]:
                del self._under_way[endpoint.id]
            self.bell.ring()

    async def _record(self, claimed: Claimed, outcome: Outcome) -> None:
        told = {
            "message_id": claimed.message_id,
            "endpoint_id": claimed.endpoint.id,
            "batch_id": claimed.batch_id,
            "attempt": claimed.attempts + 1,
            "status": outcome.status,
        }
        if outcome.ok and outcome.status is not None:
            async with self._database.write() as tx:
                await outbox.delivered(tx, claimed, status=outcome.status)
            WEBHOOK_DELIVERIES.labels("delivered").inc()
            log.info("webhook_delivered", **told)
            return
        pause = pause_seconds(
            claimed.attempts + 1,
            first_seconds=self._settings.retry_first_seconds,
            max_seconds=self._settings.retry_max_seconds,
            jitter=random.random(),  # noqa: S311 - spreads load, no secret
        )
        async with self._database.write() as tx:
            over = await outbox.failed(
                tx,
                claimed,
                status=outcome.status,
                pause_seconds=pause,
                give_up_seconds=self._settings.give_up_seconds,
            )
        if over:
            WEBHOOK_DELIVERIES.labels("given_up").inc()
            log.warning("webhook_given_up", **told, reason=outcome.reason)
        else:
            WEBHOOK_DELIVERIES.labels("failed").inc()
            log.info("webhook_failed", **told, reason=outcome.reason, pause_seconds=round(pause, 1))

    async def _tidy(self) -> None:
        """Count what waits, and forget what was settled long ago."""
        async with self._database.read() as tx:
            WEBHOOKS_PENDING.set(await outbox.pending(tx))
            old = await outbox.has_old(tx, after_seconds=self._settings.keep_seconds)
        if old:
            async with self._database.write() as tx:
                await outbox.forget(tx, after_seconds=self._settings.keep_seconds, limit=_FORGOTTEN_AT_ONCE)
