"""What the webhook endpoint API means (openai-contract 1.4). Every call is scoped by a project."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from app.domain.id import is_plausible, new_event_id, new_webhook_endpoint_id, new_webhook_message_id
from app.domain.webhook import EventType, WebhookEndpoint, new_secret, payload
from app.errors import InvalidRequest, NotFound
from app.service.courier import Courier
from app.service.files import unknown_cursor
from app.service.idempotency import key_use, object_gone
from app.settings import RetentionSettings, WebhookSettings
from app.store import idempotency, webhooks
from app.store.db import Database, Read
from app.store.page import Page

log = structlog.get_logger()

#: The batch that a test's sample event names; there is none.
SAMPLE_BATCH_ID = "batch_test"

_WHY = {
    "timeout": "it did not answer in time",
    "unreachable": "no connection could be made",
    "no_such_host": "its host name cannot be resolved",
    "address_refused": "its host has no public address",
    "scheme_refused": "its URL does not begin with 'https://'",
}


class WebhookService:
    """Endpoints: create, read, list, change, rotate, test, delete. The worker delivers."""

    def __init__(
        self, *, database: Database, courier: Courier, settings: WebhookSettings, retention: RetentionSettings
    ) -> None:
        self._database = database
        self._courier = courier
        self._settings = settings
        self._retention = retention

    async def create(
        self,
        project_id: str,
        *,
        name: str,
        url: str,
        event_types: Sequence[EventType],
        idempotency_key: str | None = None,
    ) -> WebhookEndpoint:
        """A new endpoint with a secret of its own, or the one that `idempotency_key` made before.

        Raises InvalidRequest for a bad URL, and for one too many; Conflict for a key that was used for another.
        """
        self._courier.check(url)
        asked = {"name": name, "url": url, "event_types": _unique(event_types)}
        use = key_use(
            idempotency_key, "webhook_endpoints.create", project_id=project_id, asked=asked, retention=self._retention
        )
        endpoint_id = new_webhook_endpoint_id()
        async with self._database.write() as tx:
            known = None if use is None else await idempotency.claim(tx, use, object_id=endpoint_id)
            if known is not None:
                before = await webhooks.get(tx, known, project_id=project_id)
                if before is None:
                    raise object_gone()
                return before
            await self._admit(tx, project_id)
            endpoint = await webhooks.create(
                tx,
                id=endpoint_id,
                project_id=project_id,
                name=name,
                url=url,
                event_types=_unique(event_types),
                secret=new_secret(),
            )
        log.info("webhook_endpoint_created", endpoint_id=endpoint.id)
        return endpoint

    async def _admit(self, tx: Read, project_id: str) -> None:
        if await webhooks.count(tx, project_id=project_id) >= self._settings.endpoints_max:
            raise InvalidRequest(
                f"The project has {self._settings.endpoints_max} webhook endpoints already, which is the limit.",
                code="webhook_endpoint_limit_exceeded",
            )

    async def get(self, project_id: str, endpoint_id: str) -> WebhookEndpoint:
        """Raises NotFound."""
        if is_plausible(endpoint_id):
            async with self._database.read() as tx:
                endpoint = await webhooks.get(tx, endpoint_id, project_id=project_id)
            if endpoint is not None:
                return endpoint
        raise _unknown(endpoint_id)

    async def page(self, project_id: str, *, after: str | None, limit: int) -> Page[WebhookEndpoint]:
        """Newest first. Raises InvalidRequest for an unknown `after`."""
        if after is not None and not is_plausible(after):
            raise unknown_cursor(after)
        async with self._database.read() as tx:
            return await webhooks.page(tx, project_id=project_id, after=after, limit=limit)

    async def change(
        self,
        project_id: str,
        endpoint_id: str,
        *,
        name: str | None = None,
        url: str | None = None,
        event_types: Sequence[EventType] | None = None,
    ) -> WebhookEndpoint:
        """Replace what is not None; messages that wait go to the new URL. Raises InvalidRequest, NotFound."""
        if url is not None:
            self._courier.check(url)
        endpoint = None
        if is_plausible(endpoint_id):
            async with self._database.write() as tx:
                endpoint = await webhooks.change(
                    tx,
                    endpoint_id,
                    project_id=project_id,
                    name=name,
                    url=url,
                    event_types=None if event_types is None else _unique(event_types),
                )
        if endpoint is None:
            raise _unknown(endpoint_id)
        log.info("webhook_endpoint_changed", endpoint_id=endpoint.id)
        return endpoint

    async def rotate(self, project_id: str, endpoint_id: str, *, keep_old: bool) -> WebhookEndpoint:
        """A new secret; with `keep_old` the one before signs too, for 24 hours. Raises NotFound."""
        endpoint = None
        if is_plausible(endpoint_id):
            async with self._database.write() as tx:
                endpoint = await webhooks.rotate(
                    tx, endpoint_id, project_id=project_id, secret=new_secret(), keep_old=keep_old
                )
        if endpoint is None:
            raise _unknown(endpoint_id)
        log.info("webhook_secret_rotated", endpoint_id=endpoint.id, keep_old=keep_old)
        return endpoint

    async def delete(self, project_id: str, endpoint_id: str) -> None:
        """Forget the endpoint; messages that wait are dropped. Raises NotFound."""
        gone = False
        if is_plausible(endpoint_id):
            async with self._database.write() as tx:
                gone = await webhooks.delete(tx, endpoint_id, project_id=project_id)
        if not gone:
            raise _unknown(endpoint_id)
        log.info("webhook_endpoint_deleted", endpoint_id=endpoint_id)

    async def test(self, project_id: str, endpoint_id: str, *, event_type: EventType) -> int:
        """Send a sample event now, once; the HTTP status that the receiver answered.

        Ends within `webhooks.timeout_seconds`. Raises NotFound, and InvalidRequest when there was no answer.
        """
        endpoint = await self.get(project_id, endpoint_id)
        async with self._database.read() as tx:
            now = int(await tx.now())
        outcome = await self._courier.deliver(
            endpoint.url,
            payload(event_type, event_id=new_event_id(), batch_id=SAMPLE_BATCH_ID, created_at=now),
            message_id=new_webhook_message_id(),
            secrets=endpoint.signing_secrets,
        )
        log.info("webhook_tested", endpoint_id=endpoint.id, status=outcome.status, reason=outcome.reason)
        if outcome.status is None:
            raise InvalidRequest(
                f"The webhook endpoint could not be tested: {_WHY[outcome.reason]}.", code="webhook_test_failed"
            )
        return outcome.status


def _unique(event_types: Sequence[EventType]) -> list[EventType]:
    return list(dict.fromkeys(event_types))


def _unknown(endpoint_id: str) -> NotFound:
    return NotFound(f"No webhook endpoint found with id '{endpoint_id[:128]}'.")
