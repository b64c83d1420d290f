"""Pieces of the API document that the framework cannot read off a handler's signature."""

from __future__ import annotations

from typing import Any

from app.domain.file import UPLOAD_PURPOSES
from app.http.schemas import ErrorResponse

_MEANINGS = {
    400: "The request is wrong.",
    401: "No API key, or one that is not known.",
    403: "The caller may not do this.",
    404: "No such object in the caller's project.",
    409: "The object's state forbids it.",
    413: "The body is far too large.",
    429: "A limit is reached; `Retry-After` says when to try again.",
    500: "The server's fault.",
    503: "Something the request needs does not answer now; `Retry-After` says when to try again.",
}
_BINARY: dict[str, Any] = {"type": "string", "format": "binary"}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The envelope for each of `statuses`, and for any other."""
    named: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorResponse, "description": _MEANINGS[status]} for status in statuses
    }
    return named | {"default": {"model": ErrorResponse, "description": "Any other error."}}


FILE_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"description": "The whole file.", "content": {"application/octet-stream": {"schema": _BINARY}}},
    206: {"description": "The asked range.", "content": {"application/octet-stream": {"schema": _BINARY}}},
    416: {"model": ErrorResponse, "description": "The range is outside the file."},
}

CREATE_FILE_REQUEST: dict[str, Any] = {
    "title": "CreateFileRequest",
    "description": "A multipart form; the order of its parts does not matter.",
    "type": "object",
    "additionalProperties": False,
    "required": ["file", "purpose"],
    "properties": {
        "file": {**_BINARY, "description": "The file, with a file name."},
        "purpose": {
            "type": "string",
            "enum": [purpose.value for purpose in UPLOAD_PURPOSES],
            "description": "What the file is for.",
        },
        "expires_after": {"$ref": "#/components/schemas/FileExpirationAfter"},
    },
}

CREATE_FILE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {"$ref": "#/components/schemas/CreateFileRequest"},
                # On the wire: expires_after[anchor] and expires_after[seconds].
                "encoding": {"expires_after": {"style": "deepObject", "explode": True}},
            }
        },
    }
}
