"""What handlers ask for: the services, the caller's project, and strict query parameters."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request
from pydantic import BeforeValidator, StringConstraints
from pydantic_core import PydanticCustomError

from app.errors import InvalidRequest
from app.service.services import Services

_INTEGER = re.compile(r"-?[0-9]{1,1000}")


async def services(request: Request) -> Services:
    """The services that the lifespan yielded."""
    found: Services = request.state.services
    return found


async def project_id(request: Request) -> str:
    """The project of the caller's key."""
    found: str = request.state.project_id
    return found


def _integer(value: Any) -> Any:
    """Pydantic reads `1_0`, ` 7` and `3.0` as integers too."""
    if isinstance(value, str) and not _INTEGER.fullmatch(value):
        raise PydanticCustomError("int_type", "not an integer")
    return value


async def single_valued(request: Request) -> None:
    """Refuse a repeated query parameter that the route knows; unknown ones are ignored."""
    for name in ("after", "limit", "order", "purpose", "offset", "kind"):
        if len(request.query_params.getlist(name)) > 1:
            raise InvalidRequest(f"Duplicate parameter: '{name}'.", code="invalid_value", param=name)


async def idempotency_key(
    request: Request,
    key: Annotated[
        Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[ -~]*$")] | None,
        Header(
            alias="Idempotency-Key",
            description=(
                "Extension. The same call again with the same key gives the object that the first one made, for a day; "
                "another call with it is a 409."
            ),
        ),
    ] = None,
) -> str | None:
    """The key of a create call, None without one."""
    if len(request.headers.getlist("idempotency-key")) > 1:
        raise InvalidRequest("The header 'Idempotency-Key' is repeated.", code="invalid_value", param="Idempotency-Key")
    return key


ServicesDep = Annotated[Services, Depends(services)]
ProjectDep = Annotated[str, Depends(project_id)]
IdempotencyKeyDep = Annotated[str | None, Depends(idempotency_key)]
StrictInteger = BeforeValidator(_integer)
PageSize = Annotated[int, StrictInteger, Query(ge=1, le=100, description="Size of the page.")]
After = Annotated[str | None, Query(description="The id of the last object already seen; the page begins behind it.")]
