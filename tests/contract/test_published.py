"""Schema by schema against OpenAI's published document. Every deviation is listed with its reason, and must be real."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest

from tests.unit.http.scenes import LINE, Service

Schema = dict[str, Any]

#: (schema, property, what) -> why ours differs. Observed behaviour: openai-contract 1 and 3.
DEVIATIONS = {
    ("OpenAIFile", "purpose", "more values"): "`evals` may be sent on create, and comes back",
    ("CreateBatchRequest", "endpoint", "fewer values"): "no engine here serves images or videos",
    ("CreateBatchRequest", "", "closed"): "an unknown parameter is refused, as the real API does",
    ("BatchFileExpirationAfter", "", "closed"): "an unknown parameter is refused, as the real API does",
    ("FileExpirationAfter", "", "closed"): "an unknown parameter is refused, as the real API does",
    ("CreateUploadRequest", "bytes", "minimum"): "a file without bytes has no parts",
}
#: Request headers that are not published: docs/extensions.md.
EXTRA_HEADERS = {"Idempotency-Key"}
#: Ours are null where the published schema knows no null; what is observed is marked `x-observed-nullable` there.
RESPONSES = (
    "OpenAIFile",
    "ListFilesResponse",
    "DeleteFileResponse",
    "Batch",
    "BatchError",
    "BatchRequestCounts",
    "ListBatchesResponse",
    "Upload",
    "UploadPart",
    "Error",
    "ErrorResponse",
)
REQUESTS = (
    "CreateFileRequest",
    "FileExpirationAfter",
    "CreateUploadRequest",
    "AddUploadPartRequest",
    "CompleteUploadRequest",
    "CreateBatchRequest",
    "BatchFileExpirationAfter",
)
PATHS = (
    "/files",
    "/files/{file_id}",
    "/files/{file_id}/content",
    "/uploads",
    "/uploads/{upload_id}/parts",
    "/uploads/{upload_id}/complete",
    "/uploads/{upload_id}/cancel",
    "/batches",
    "/batches/{batch_id}",
    "/batches/{batch_id}/cancel",
)

seen: set[tuple[str, str, str]] = set()


def deviates(*place: str) -> bool:
    """True, and noted, when this deviation is on the list."""
    schema, name, what = place
    if (schema, name, what) not in DEVIATIONS:
        return False
    seen.add((schema, name, what))
    return True


def resolved(document: Schema, schema: Schema) -> Schema:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def alternatives(document: Schema, schema: Schema) -> list[Schema]:
    """The schemas of which a value may fulfil one."""
    schema = resolved(document, schema)
    if "anyOf" in schema:
        return [found for one in schema["anyOf"] for found in alternatives(document, one)]
    return [schema]


def types(document: Schema, schema: Schema) -> set[str]:
    return {found.get("type", "object") for found in alternatives(document, schema)}


def values(document: Schema, schema: Schema) -> set[str] | None:
    """The listed values, None where any will do."""
    listed: set[str] = set()
    for found in alternatives(document, schema):
        if found.get("type") != "null":
            if "enum" not in found and "const" not in found:
                return None
            listed |= set(found.get("enum", [found.get("const")]))
    return listed


@pytest.mark.parametrize("name", RESPONSES)
def test_response_holds_what_is_published(ours: Schema, published: Schema, name: str) -> None:
    mine, theirs = ours["components"]["schemas"][name], published["components"]["schemas"][name]
    assert set(theirs.get("required", [])) <= set(mine["required"])
    assert set(theirs["properties"]) == set(mine["properties"])
    for field, their in theirs["properties"].items():
        my = mine["properties"][field]
        allowed = types(published, their)
        if field in theirs.get("x-observed-nullable", []):
            allowed |= {"null"}
        assert types(ours, my) <= allowed, field
        my_values, their_values = values(ours, my), values(published, their)
        if their_values is not None:
            assert my_values is not None, field
            assert my_values <= their_values or deviates(name, field, "more values"), field


@pytest.mark.parametrize("name", ["BatchErrors", "BatchUsage"])
def test_nested_response_holds_what_is_published(ours: Schema, published: Schema, name: str) -> None:
    """Written inline in the published document."""
    mine = ours["components"]["schemas"][name]
    field = {"BatchErrors": "errors", "BatchUsage": "usage"}[name]
    theirs = published["components"]["schemas"]["Batch"]["properties"][field]
    assert set(theirs.get("required", [])) <= set(mine["required"])
    assert set(theirs["properties"]) == set(mine["properties"])
    for part, their in theirs["properties"].items():
        assert types(ours, mine["properties"][part]) == types(published, their)
        if their["type"] == "object":
            inner = resolved(ours, mine["properties"][part])
            assert set(their["properties"]) == set(inner["properties"])


@pytest.mark.parametrize("name", REQUESTS)
def test_request_takes_what_is_published(ours: Schema, published: Schema, name: str) -> None:
    mine, theirs = ours["components"]["schemas"][name], published["components"]["schemas"][name]
    assert set(mine["required"]) == set(theirs["required"])
    assert set(mine["properties"]) == set(theirs["properties"])
    if mine.get("additionalProperties") is False and theirs.get("additionalProperties") is not False:
        assert deviates(name, "", "closed")
    for field, their in theirs["properties"].items():
        my = mine["properties"][field]
        assert types(published, their) <= types(ours, my), field
        my_values, their_values = values(ours, my), values(published, their)
        if my_values is not None:
            assert their_values is not None, field
            assert their_values <= my_values or deviates(name, field, "fewer values"), field
        for bound in ("minimum", "maximum", "format"):
            if bound in my:
                assert my[bound] == their.get(bound) or deviates(name, field, bound), field


@pytest.mark.parametrize("path", PATHS)
def test_operation_is_the_published_one(ours: Schema, published: Schema, path: str) -> None:
    mine, theirs = ours["paths"]["/v1" + path], published["paths"][path]
    assert set(mine) == set(theirs)
    for method, their in theirs.items():
        my = mine[method]
        assert my["operationId"] == their["operationId"]
        my_parameters = {one["name"]: one for one in my.get("parameters", []) if one["name"] not in EXTRA_HEADERS}
        assert set(my_parameters) == {one["name"] for one in their.get("parameters", [])}
        for one in their.get("parameters", []):
            parameter = my_parameters[one["name"]]
            assert (parameter["in"], parameter["required"]) == (one["in"], one.get("required", False))
            assert parameter["schema"].get("default") == one["schema"].get("default")
            assert types(published, one["schema"]) <= types(ours, parameter["schema"])
            assert values(ours, parameter["schema"]) == values(published, one["schema"])
        assert list(my.get("requestBody", {}).get("content", [])) == list(
            their.get("requestBody", {}).get("content", [])
        )
        if path != "/files/{file_id}/content":  # published as a JSON string, which it is not
            reply = my["responses"]["200"]["content"]["application/json"]["schema"]
            assert reply == their["responses"]["200"]["content"]["application/json"]["schema"]


def with_observed_nulls(published: Schema) -> Schema:
    """The published schemas, and null where live objects of OpenAI's have it."""
    components = copy.deepcopy(published["components"])
    for schema in components["schemas"].values():
        for name in schema.get("x-observed-nullable", []):
            schema["properties"][name] = {"anyOf": [schema["properties"][name], {"type": "null"}]}
    return {"components": components}


async def test_live_bodies_fulfil_the_published_schemas(service: Service, published: Schema) -> None:
    schemas = with_observed_nulls(published)

    def check(body: Any, name: str) -> None:
        jsonschema.validate(body, {**schemas, "$ref": f"#/components/schemas/{name}"})

    client = service.client
    file = await service.upload(LINE)
    forever = await service.upload(LINE, purpose="user_data")
    check(file, "OpenAIFile")
    check(forever, "OpenAIFile")
    check((await client.get("/v1/files")).json(), "ListFilesResponse")
    check((await client.get("/v1/files?purpose=vision")).json(), "ListFilesResponse")
    body = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
    batch = (await client.post("/v1/batches", json=body)).json()
    check(batch, "Batch")
    check((await client.get("/v1/batches")).json(), "ListBatchesResponse")
    check((await client.post(f"/v1/batches/{batch['id']}/cancel")).json(), "Batch")
    check((await client.delete(f"/v1/files/{file['id']}")).json(), "DeleteFileResponse")
    order = {"filename": "a.jsonl", "purpose": "batch", "mime_type": "text/plain", "bytes": len(LINE)}
    upload = (await client.post("/v1/uploads", json=order)).json()
    check(upload, "Upload")
    part = (await client.post(f"/v1/uploads/{upload['id']}/parts", files={"data": ("upload", LINE)})).json()
    check(part, "UploadPart")
    check((await client.post(f"/v1/uploads/{upload['id']}/complete", json={"part_ids": [part["id"]]})).json(), "Upload")
    check((await client.get(f"/v1/files/{file['id']}")).json(), "ErrorResponse")
    check((await client.post("/v1/batches", json={})).json(), "ErrorResponse")
    with pytest.raises(jsonschema.ValidationError):
        check({**batch, "status": "no such status"}, "Batch")


def test_every_listed_deviation_is_real(ours: Schema, published: Schema) -> None:
    seen.clear()
    for name in RESPONSES:
        test_response_holds_what_is_published(ours, published, name)
    for name in REQUESTS:
        test_request_takes_what_is_published(ours, published, name)
    assert seen == set(DEVIATIONS)
