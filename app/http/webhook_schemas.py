"""Bodies of the webhook endpoint API (openai-contract 1.4). Named as in OpenAI's SDK."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from app.domain import webhook as domain_webhook
from app.domain.webhook import URL_MAX_CHARS, EventType
from app.http.schemas import Identified, Input, ListPage, Output, Storable

Name = Annotated[str, StringConstraints(min_length=1, max_length=256), Storable]
# The scheme is checked by the service: a setting may allow another.
Url = Annotated[
    str,
    StringConstraints(max_length=URL_MAX_CHARS),
    Storable,
    Field(json_schema_extra={"format": "uri", "pattern": "^https://"}),
]
Event = Literal["batch.completed", "batch.failed", "batch.expired", "batch.cancelled"]
Events = Annotated[list[Event], Field(min_length=1)]


class CreateWebhookEndpointRequest(Input):
    """A new webhook endpoint."""

    name: Name = Field(description="For people.")
    url: Url = Field(description="Where deliveries go.")
    event_types: Events = Field(description="What to tell of.")


class UpdateWebhookEndpointRequest(Input):
    """What is absent or null stays as it is."""

    name: Name | None = Field(None, description="For people.")
    url: Url | None = Field(None, description="Where deliveries go, also those that wait already.")
    event_types: Events | None = Field(None, description="The whole new set.")


class RotateWebhookSecretRequest(Input):
    """How to rotate."""

    keep_old_secret_active_for_24_hours: bool = Field(
        False, description="Sign with the old secret too, for a day; otherwise it ends at once."
    )


class TestWebhookEndpointRequest(Input):
    """What to send."""

    event_type: Event = Field(description="The type of the sample event.")


class WebhookEndpoint(Identified):
    """A webhook endpoint. Times are Unix seconds."""

    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    created_at: int
    updated_at: int = Field(description="The last change of the configuration or of the secret.")
    name: str
    url: str
    event_types: list[EventType]
    signing_secret_hint: str | None = Field(description="The secret, masked but for its last letters.")

    @classmethod
    def of(cls, endpoint: domain_webhook.WebhookEndpoint) -> WebhookEndpoint:
        return cls(
            id=endpoint.id,
            created_at=endpoint.created_at,
            updated_at=endpoint.updated_at,
            name=endpoint.name,
            url=endpoint.url,
            event_types=list(endpoint.event_types),
            signing_secret_hint=endpoint.secret_hint,
        )


class WebhookEndpointWithSecret(WebhookEndpoint):
    """The only two replies that show the secret are those of create and rotate."""

    signing_secret: str

    @classmethod
    def of(cls, endpoint: domain_webhook.WebhookEndpoint) -> WebhookEndpointWithSecret:
        shown = WebhookEndpoint.of(endpoint)
        return cls(**shown.model_dump(), signing_secret=endpoint.secret)


class WebhookEndpointList(ListPage[WebhookEndpoint]):
    """A page of webhook endpoints, newest first."""


class DeletedWebhookEndpoint(Output):
    """The endpoint is gone."""

    id: str
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"
    deleted: bool = True


class WebhookEndpointTestResult(Output):
    """The receiver answered; `status_code` says what."""

    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    webhook_endpoint_id: str
    event_type: EventType
    status_code: int
    success: Literal[True] = True


class WebhookEventTypeList(Output):
    """What an endpoint can ask for."""

    object: Literal["list"] = "list"
    data: list[EventType]
