"""`/v1/quota`, an extension: what the caller may use, and what it uses now."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import Field

from app.domain.quota import UNLIMITED
from app.http.deps import ProjectDep, ServicesDep
from app.http.responses import errors
from app.http.schemas import Output

router = APIRouter(prefix="/v1/quota", tags=["Quota"])


class Quota(Output):
    """One limit. Null: there is none."""

    limit: int | None
    used: int | None = Field(description="Null where it is not counted, because there is no limit.")
    headroom: int | None = Field(description="How much is left; null without a limit.")

    @classmethod
    def of(cls, limit: int | None, used: int | None) -> Quota:
        headroom = None if limit is None or used is None else max(0, limit - used)
        return cls(limit=limit, used=used, headroom=headroom)


class ProjectQuota(Output):
    """The quotas of a project as this key has them."""

    object: Literal["quota"] = "quota"
    project: str
    open_batches: Quota = Field(description="Batches that have not ended.")
    queued_requests: Quota = Field(description="Their requests that have no answer yet.")
    enqueued_tokens: Quota = Field(description="Their estimated tokens, answers included.")
    stored_bytes: Quota = Field(description="Files, and what pending Uploads have declared.")
    requests_per_minute: Quota = Field(description="Calls of this API, this one included.")


@router.head("", include_in_schema=False)
@router.get(
    "",
    operation_id="retrieveQuota",
    summary="Limits and use",
    response_model=ProjectQuota,
    responses=errors(401, 403, 429, 500, 503),
)
async def retrieve_quota(request: Request, services: ServicesDep, project_id: ProjectDep) -> ProjectQuota:
    """An extension: OpenAI has no such call."""
    limits = request.state.caller.quotas or UNLIMITED
    use = await services.quotas.use(project_id)
    rate = getattr(request.state, "rate", None)
    return ProjectQuota(
        project=project_id,
        open_batches=Quota.of(limits.open_batches, use.open_batches),
        queued_requests=Quota.of(limits.queued_requests, use.queued_requests),
        enqueued_tokens=Quota.of(limits.enqueued_tokens, use.enqueued_tokens),
        stored_bytes=Quota.of(limits.stored_bytes, use.stored_bytes),
        requests_per_minute=Quota.of(limits.requests_per_minute, None if rate is None else rate.limit - rate.remaining),
    )
