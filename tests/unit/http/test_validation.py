from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.errors import InvalidRequest
from app.http.schemas import CreateBatchRequest
from app.http.validation import refusal

GOOD: dict[str, Any] = {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}
EXPIRY = {"anchor": "created_at", "seconds": 3600}


def refused(body: Any) -> InvalidRequest:
    with pytest.raises(ValidationError) as caught:
        CreateBatchRequest.model_validate(body)
    errors = [{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()]
    return refusal(errors)


def with_(**changes: Any) -> dict[str, Any]:
    return GOOD | changes


@pytest.mark.parametrize(
    ("body", "param", "code", "message"),
    [
        ({}, "input_file_id", "missing_required_parameter", "Missing required parameter: 'input_file_id'."),
        (
            {"input_file_id": "file-1", "completion_window": "24h"},
            "endpoint",
            "missing_required_parameter",
            "Missing required parameter: 'endpoint'.",
        ),
        (with_(foo=1), "foo", "unknown_parameter", "Unknown parameter: 'foo'."),
        (
            with_(endpoint="/v1/invalid/endpoint"),
            "endpoint",
            "invalid_value",
            "Invalid endpoint: /v1/invalid/endpoint. Supported values: '/v1/responses', '/v1/chat/completions', "
            "'/v1/embeddings', '/v1/completions', '/v1/moderations', '/v1/chat/completions/batch', '/v1/messages', "
            "'/v1/score', '/score', '/v1/rerank', '/rerank', '/v2/rerank', '/v1/audio/transcriptions' or "
            "'/v1/audio/translations'.",
        ),
        (
            with_(endpoint=5),
            "endpoint",
            "invalid_type",
            "Invalid type for 'endpoint': expected a string, but got an integer instead.",
        ),
        (
            with_(input_file_id=None),
            "input_file_id",
            "invalid_type",
            "Invalid type for 'input_file_id': expected a string, but got null instead.",
        ),
        (
            with_(input_file_id=""),
            "input_file_id",
            "empty_string",
            "Invalid 'input_file_id': empty string. Expected a string with minimum length 1, but got an empty string "
            "instead.",
        ),
        (
            with_(metadata={"tags": ["a"]}),
            "metadata.tags",
            "invalid_type",
            "Invalid type for 'metadata.tags': expected a string, but got an array instead.",
        ),
        (
            with_(metadata={"deep": {}}),
            "metadata.deep",
            "invalid_type",
            "Invalid type for 'metadata.deep': expected a string, but got an object instead.",
        ),
        (
            with_(metadata={"flag": True}),
            "metadata.flag",
            "invalid_type",
            "Invalid type for 'metadata.flag': expected a string, but got a boolean instead.",
        ),
        (
            with_(metadata="x"),
            "metadata",
            "invalid_type",
            "Invalid type for 'metadata': expected an object, but got a string instead.",
        ),
        (
            with_(metadata={str(number): "x" for number in range(24)}),
            "metadata",
            "object_above_max_properties",
            "Invalid 'metadata': too many properties. Expected an object with at most 16 properties, but got an object "
            "with 24 properties instead.",
        ),
        (
            with_(metadata={"key": "x" * 695}),
            "metadata.key",
            "string_above_max_length",
            "Invalid 'metadata.key': string too long. Expected a string with maximum length 512, but got a string with "
            "length 695 instead.",
        ),
        (
            with_(metadata={"k" * 65: "x"}),
            "metadata",
            "string_above_max_length",
            "Invalid 'metadata': string too long. Expected a string with maximum length 64, but got a string with "
            "length 65 instead.",
        ),
        (
            with_(metadata={"a": "b\0"}),
            "metadata.a",
            "invalid_value",
            "Invalid 'metadata.a': it holds characters that cannot be stored.",
        ),
        (
            with_(input_file_id="\ud800"),
            "input_file_id",
            "invalid_value",
            "Invalid 'input_file_id': it holds characters that cannot be stored.",
        ),
        (
            with_(output_expires_after={**EXPIRY, "seconds": 3599}),
            "output_expires_after.seconds",
            "integer_below_min_value",
            "Invalid 'output_expires_after.seconds': integer below minimum value. Expected a value >= 3600, but got "
            "3599 instead.",
        ),
        (
            with_(output_expires_after={**EXPIRY, "seconds": 2_592_001}),
            "output_expires_after.seconds",
            "integer_above_max_value",
            "Invalid 'output_expires_after.seconds': integer above maximum value. Expected a value <= 2592000, but got "
            "2592001 instead.",
        ),
        (
            with_(output_expires_after={**EXPIRY, "seconds": 3600.5}),
            "output_expires_after.seconds",
            "invalid_type",
            "Invalid type for 'output_expires_after.seconds': expected an integer, but got a decimal number instead.",
        ),
        (
            with_(output_expires_after={**EXPIRY, "seconds": False}),
            "output_expires_after.seconds",
            "invalid_type",
            "Invalid type for 'output_expires_after.seconds': expected an integer, but got a boolean instead.",
        ),
        (
            with_(output_expires_after={**EXPIRY, "anchor": "foo"}),
            "output_expires_after.anchor",
            "invalid_value",
            "Invalid output_expires_after.anchor: foo. Supported values: 'created_at'.",
        ),
        (
            with_(output_expires_after={"seconds": 3600}),
            "output_expires_after.anchor",
            "missing_required_parameter",
            "Missing required parameter: 'output_expires_after.anchor'.",
        ),
        ([], None, "invalid_type", "Invalid type: expected an object, but got an array instead."),
    ],
)
def test_refusal_in_openai_words(body: Any, param: str | None, code: str, message: str) -> None:
    error = refused(body)
    assert (error.param, error.code, error.message) == (param, code, message)


def test_the_first_field_in_order_is_named() -> None:
    assert refused({"zzz": 1, "completion_window": 5}).param == "input_file_id"


@pytest.mark.parametrize(
    "metadata", [None, {}, {f"{number:064}": "v" * 512 for number in range(16)}, {"": "", "ü": "☃"}]
)
def test_metadata_within_bounds_passes(metadata: dict[str, str] | None) -> None:
    assert CreateBatchRequest.model_validate(with_(metadata=metadata)).metadata == metadata


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=3),
    max_leaves=6,
)


@given(body=_json | st.dictionaries(st.sampled_from([*GOOD, "metadata", "output_expires_after"]), _json))
def test_any_json_is_accepted_or_refused_in_words(body: Any) -> None:
    try:
        CreateBatchRequest.model_validate(body)
    except ValidationError as exc:
        error = refusal([{**one, "loc": ("body", *one["loc"])} for one in exc.errors()])
        assert error.message
        assert "None" not in error.message or "None" in str(body)


def test_long_values_are_quoted_in_part() -> None:
    assert len(refused(with_(endpoint="x" * 100_000)).message) < 500
    assert len(refused(with_(**{"x" * 100_000: 1})).message) < 500
