"""`/health`, `/ready`, `/metrics`: for machines that watch this one. No key is asked for."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from app import telemetry
from app.http.deps import ServicesDep
from app.http.schemas import Health, Readiness

router = APIRouter(tags=["Health"])


@router.head("/health", include_in_schema=False)
@router.get("/health", operation_id="health", summary="The process lives", response_model=Health)
async def health() -> Health:
    """Answers also while a model loads."""
    return Health()


@router.head("/ready", include_in_schema=False)
@router.get(
    "/ready",
    operation_id="ready",
    summary="The service can work",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "Something does not answer."}},
)
async def ready(services: ServicesDep) -> Response:
    """Engine, database and blob store, each asked now (storage at most a second ago)."""
    found = await services.health.ready()
    body = Readiness(ready=found.ok, checks=found.checks)
    return JSONResponse(body.model_dump(), status_code=200 if found.ok else 503)


@router.head("/metrics", include_in_schema=False)
@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"description": "Prometheus text format.", "content": {"text/plain": {}}}},
)
async def metrics() -> Response:
    """Every metric of this process."""
    return Response(telemetry.metrics_text(), headers={"content-type": CONTENT_TYPE_LATEST})
