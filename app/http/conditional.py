"""ETag and 304: whoever polls gets the body again only when it has changed."""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

#: For `responses=` of a route that answers so.
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "What `If-None-Match` names is still current."}}


def unless_known(request: Request, body: BaseModel) -> Response:
    """`body` as JSON with its ETag; a 304 without a body when `If-None-Match` names it already."""
    content = body.model_dump_json().encode()
    etag = f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'
    # Theirs alone, and never without asking: a batch may have ended since.
    headers = {"etag": etag, "cache-control": "private, no-cache", "vary": "authorization"}
    if is_known(request, etag):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="application/json", headers=headers)


def is_known(request: Request, etag: str) -> bool:
    """Whether If-None-Match names `etag`, by weak comparison as RFC 9110 asks. Our tags have no comma inside."""
    values = request.headers.getlist("if-none-match")
    tags = [tag.strip().removeprefix("W/") for value in values for tag in value.split(",")]
    return etag in tags or "*" in tags
