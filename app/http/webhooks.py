"""`/v1/webhook_endpoints` and `/v1/webhook_event_types` (openai-contract 1.4, 2)."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from app.domain.webhook import EventType
from app.http.conditional import NOT_MODIFIED, unless_known
from app.http.deps import After, IdempotencyKeyDep, PageSize, ProjectDep, ServicesDep, single_valued
from app.http.responses import errors
from app.http.webhook_schemas import (
    CreateWebhookEndpointRequest,
    DeletedWebhookEndpoint,
    RotateWebhookSecretRequest,
    TestWebhookEndpointRequest,
    UpdateWebhookEndpointRequest,
    WebhookEndpoint,
    WebhookEndpointList,
    WebhookEndpointTestResult,
    WebhookEndpointWithSecret,
    WebhookEventTypeList,
)

router = APIRouter(prefix="/v1", tags=["Webhooks"])


@router.post(
    "/webhook_endpoints",
    operation_id="createWebhookEndpoint",
    summary="Create a webhook endpoint",
    response_model=WebhookEndpointWithSecret,
    responses=errors(400, 401, 409, 413, 429, 500, 503),
)
async def create_webhook_endpoint(
    body: CreateWebhookEndpointRequest,
    services: ServicesDep,
    project_id: ProjectDep,
    idempotency_key: IdempotencyKeyDep,
) -> WebhookEndpointWithSecret:
    """The reply shows the signing secret, this once."""
    endpoint = await services.webhooks.create(
        project_id,
        name=body.name,
        url=body.url,
        event_types=[EventType(one) for one in body.event_types],
        idempotency_key=idempotency_key,
    )
    return WebhookEndpointWithSecret.of(endpoint)


@router.head("/webhook_endpoints", include_in_schema=False)
@router.get(
    "/webhook_endpoints",
    operation_id="listWebhookEndpoints",
    summary="List webhook endpoints",
    response_model=WebhookEndpointList,
    responses=errors(400, 401, 500, 503) | NOT_MODIFIED,
    dependencies=[Depends(single_valued)],
)
async def list_webhook_endpoints(
    request: Request,
    services: ServicesDep,
    project_id: ProjectDep,
    after: After = None,
    limit: PageSize = 20,
) -> Response:
    """Webhook endpoints of the project, newest first."""
    page = await services.webhooks.page(project_id, after=after, limit=limit)
    data = [WebhookEndpoint.of(endpoint) for endpoint in page.items]
    return unless_known(request, WebhookEndpointList.of(data, has_more=page.has_more))


@router.head("/webhook_endpoints/{webhook_endpoint_id}", include_in_schema=False)
@router.get(
    "/webhook_endpoints/{webhook_endpoint_id}",
    operation_id="retrieveWebhookEndpoint",
    summary="Retrieve a webhook endpoint",
    response_model=WebhookEndpoint,
    responses=errors(401, 404, 500, 503) | NOT_MODIFIED,
)
async def retrieve_webhook_endpoint(
    webhook_endpoint_id: str, request: Request, services: ServicesDep, project_id: ProjectDep
) -> Response:
    """How the endpoint is configured, without its secret."""
    endpoint = await services.webhooks.get(project_id, webhook_endpoint_id)
    return unless_known(request, WebhookEndpoint.of(endpoint))


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}",
    operation_id="updateWebhookEndpoint",
    summary="Change a webhook endpoint",
    response_model=WebhookEndpoint,
    responses=errors(400, 401, 404, 413, 500, 503),
)
async def update_webhook_endpoint(
    webhook_endpoint_id: str, body: UpdateWebhookEndpointRequest, services: ServicesDep, project_id: ProjectDep
) -> WebhookEndpoint:
    """A change that changes nothing leaves `updated_at` as it is."""
    types = None if body.event_types is None else [EventType(one) for one in body.event_types]
    endpoint = await services.webhooks.change(
        project_id, webhook_endpoint_id, name=body.name, url=body.url, event_types=types
    )
    return WebhookEndpoint.of(endpoint)


@router.delete(
    "/webhook_endpoints/{webhook_endpoint_id}",
    operation_id="deleteWebhookEndpoint",
    summary="Delete a webhook endpoint",
    response_model=DeletedWebhookEndpoint,
    responses=errors(401, 404, 500, 503),
)
async def delete_webhook_endpoint(
    webhook_endpoint_id: str, services: ServicesDep, project_id: ProjectDep
) -> DeletedWebhookEndpoint:
    """Deliveries that wait are dropped with it."""
    await services.webhooks.delete(project_id, webhook_endpoint_id)
    return DeletedWebhookEndpoint(id=webhook_endpoint_id)


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/rotate_secret",
    operation_id="rotateWebhookSecret",
    summary="Replace the signing secret",
    response_model=WebhookEndpointWithSecret,
    responses=errors(400, 401, 404, 413, 500, 503),
)
async def rotate_webhook_secret(
    webhook_endpoint_id: str,
    services: ServicesDep,
    project_id: ProjectDep,
    body: RotateWebhookSecretRequest | None = None,
) -> WebhookEndpointWithSecret:
    """The reply shows the new secret, this once. A body is not needed."""
    keep_old = body is not None and body.keep_old_secret_active_for_24_hours
    endpoint = await services.webhooks.rotate(project_id, webhook_endpoint_id, keep_old=keep_old)
    return WebhookEndpointWithSecret.of(endpoint)


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/test",
    operation_id="testWebhookEndpoint",
    summary="Send a sample event",
    response_model=WebhookEndpointTestResult,
    responses=errors(400, 401, 404, 413, 500, 503),
)
async def test_webhook_endpoint(
    webhook_endpoint_id: str, body: TestWebhookEndpointRequest, services: ServicesDep, project_id: ProjectDep
) -> WebhookEndpointTestResult:
    """Sent at once and only once; a receiver that does not answer is a 400."""
    event_type = EventType(body.event_type)
    status = await services.webhooks.test(project_id, webhook_endpoint_id, event_type=event_type)
    return WebhookEndpointTestResult(webhook_endpoint_id=webhook_endpoint_id, event_type=event_type, status_code=status)


@router.head("/webhook_event_types", include_in_schema=False)
@router.get(
    "/webhook_event_types",
    operation_id="listWebhookEventTypes",
    summary="List event types",
    response_model=WebhookEventTypeList,
    responses=errors(401, 500, 503),
)
async def list_webhook_event_types() -> WebhookEventTypeList:
    """Everything that an endpoint can ask for."""
    return WebhookEventTypeList(data=list(EventType))
