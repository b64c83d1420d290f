"""The API document. `python -m app.http.openapi [FILE]` writes it (default: openapi.yaml at the top level)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.http.access import X_API_KEY_PATHS
from app.http.links import LINKS
from app.http.responses import CREATE_FILE_REQUEST
from app.http.upload_schemas import ADD_UPLOAD_PART_REQUEST

_OPEN_PATHS = ("/health", "/ready", "/metrics")
_HEADERS = {
    "x-request-id": {
        "description": "Names this exchange; the server's log has it too.",
        "schema": {"type": "string"},
    }
}


def install(app: FastAPI) -> None:
    """Let `app.openapi()` and `/openapi.json` give the document below."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # the framework's documented way


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes, servers=[{"url": "/"}]
    )
    components = document["components"]
    components["schemas"]["CreateFileRequest"] = CREATE_FILE_REQUEST
    components["schemas"]["AddUploadPartRequest"] = ADD_UPLOAD_PART_REQUEST
    components["schemas"] = dict(sorted(components["schemas"].items()))
    components["securitySchemes"] = {
        "ApiKeyAuth": {"type": "http", "scheme": "bearer", "description": "Not asked for when the server has no keys."},
        "AnthropicKeyAuth": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    document["security"] = [{"ApiKeyAuth": []}]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path in _OPEN_PATHS:
                operation["security"] = []
            elif path in X_API_KEY_PATHS:
                operation["security"] = [{"ApiKeyAuth": []}, {"AnthropicKeyAuth": []}]
            for response in operation["responses"].values():
                response["headers"] = {**response.get("headers", {}), **_HEADERS}
            if operation["operationId"] in LINKS:
                operation["responses"]["200"]["links"] = LINKS[operation["operationId"]]
    return document


def as_yaml(document: dict[str, Any]) -> str:
    """The text of openapi.yaml."""
    import yaml  # not needed to serve

    class Plain(yaml.SafeDumper):
        """Writes shared pieces in full each time."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    head = "# Generated from the application by scripts/openapi; do not edit.\n"
    return head + yaml.dump(document, Dumper=Plain, sort_keys=False, allow_unicode=True, width=110)


def main(arguments: list[str]) -> None:
    """Write the document to the named file."""
    from app.http.app import build_app
    from app.settings import Settings

    target = Path(arguments[0]) if arguments else Path(__file__).parents[2] / "openapi.yaml"
    target.write_text(as_yaml(build_app(settings=Settings(), lifespan=None).openapi()))


if __name__ == "__main__":
    main(sys.argv[1:])
