"""openapi.yaml: in step with the application, valid, and complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from openapi_spec_validator import validate

from app.http.access import X_API_KEY_PATHS, is_open
from app.http.app import build_app
from app.http.openapi import as_yaml
from app.settings import Settings
from tests.contract.conftest import ROOT
from tests.unit.http.scenes import Service

METHODS = {"get", "post", "put", "patch", "delete", "head", "options"}


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method in METHODS:
                yield path, method, operation


def test_file_is_in_step_with_the_application(ours: dict[str, Any]) -> None:
    assert (ROOT / "openapi.yaml").read_text() == as_yaml(ours), "run scripts/openapi"


def test_document_is_valid_openapi(ours: dict[str, Any]) -> None:
    assert ours["openapi"].startswith("3.1")
    validate(ours)


def test_document_survives_yaml(ours: dict[str, Any]) -> None:
    assert yaml.safe_load(as_yaml(ours)) == ours


def test_document_does_not_depend_on_settings(ours: dict[str, Any]) -> None:
    settings = Settings.model_validate({"server": {"api_keys": ["a"], "json_body_max_bytes": 5000}})
    assert build_app(settings=settings, lifespan=None).openapi() == ours


def test_every_operation_has_an_id_and_documents_the_envelope(ours: dict[str, Any]) -> None:
    ids = []
    for path, _, operation in operations(ours):
        ids.append(operation["operationId"])
        assert operation["summary"]
        if is_open(path):
            assert operation["security"] == []
            continue
        if path in X_API_KEY_PATHS:
            assert operation["security"] == [{"ApiKeyAuth": []}, {"AnthropicKeyAuth": []}]
        else:
            assert "security" not in operation, "the document's own holds"
        assert {"200", "401", "500", "503", "default"} <= set(operation["responses"])
        assert "422" not in operation["responses"]
        for status, response in operation["responses"].items():
            assert "x-request-id" in response["headers"]
            if status == "304":
                assert "content" not in response
            elif not status.startswith("2"):
                schema = response["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorResponse"}
    assert len(ids) == len(set(ids))
    assert ours["security"] == [{"ApiKeyAuth": []}]
    schemes = ours["components"]["securitySchemes"]
    assert schemes["ApiKeyAuth"]["scheme"] == "bearer"
    assert (schemes["AnthropicKeyAuth"]["in"], schemes["AnthropicKeyAuth"]["name"]) == ("header", "x-api-key")


def test_every_response_schema_requires_every_key(ours: dict[str, Any]) -> None:
    for name in ("OpenAIFile", "Batch", "BatchError", "ListFilesResponse", "ListBatchesResponse", "Error"):
        schema = ours["components"]["schemas"][name]
        assert sorted(schema["required"]) == sorted(schema["properties"])


def test_every_schema_is_used(ours: dict[str, Any]) -> None:
    text = as_yaml(ours)
    unused = [name for name in ours["components"]["schemas"] if f"#/components/schemas/{name}'" not in text]
    assert unused == []


@pytest.mark.parametrize(
    ("operation_id", "media_type"),
    [("createFile", "multipart/form-data"), ("createBatch", "application/json"), ("cancelBatch", None)],
)
def test_request_media_type(ours: dict[str, Any], operation_id: str, media_type: str | None) -> None:
    (operation,) = [found for _, _, found in operations(ours) if found["operationId"] == operation_id]
    body = operation.get("requestBody")
    assert (None if body is None else list(body["content"])) == (None if media_type is None else [media_type])


def test_file_content_is_binary(ours: dict[str, Any]) -> None:
    responses = ours["paths"]["/v1/files/{file_id}/content"]["get"]["responses"]
    for status in ("200", "206"):
        assert responses[status]["content"] == {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
        }


async def test_head_is_answered_wherever_get_is(service: Service, ours: dict[str, Any]) -> None:
    file = await service.upload()
    batch = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
    hook = {"name": "mine", "url": "https://example.com/hook", "event_types": ["batch.completed"]}
    ids = {
        "file_id": file["id"],
        "batch_id": (await service.client.post("/v1/batches", json=batch)).json()["id"],
        "webhook_endpoint_id": (await service.client.post("/v1/webhook_endpoints", json=hook)).json()["id"],
    }
    for path, method, operation in operations(ours):
        if method != "get" or "Interactive" in operation["tags"]:
            continue
        whole = await service.client.get(path.format(**ids))
        head = await service.client.head(path.format(**ids))
        assert head.status_code == whole.status_code, path
        assert head.headers["content-type"] == whole.headers["content-type"], path
        if path != "/metrics":
            assert head.headers["content-length"] == str(len(whole.content)), path
