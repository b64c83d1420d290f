"""Pydantic's complaints in OpenAI's words (openai-contract 3.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.errors import InvalidRequest

NOT_JSON = (
    "We could not parse the JSON body of your request. The API expects a JSON payload, sent with the header "
    "'Content-Type: application/json'."
)
_QUOTE_MAX_CHARS = 200

_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "mapping_type": "an object",
}
#: A lone surrogate in a value or in a field's name, and schemas.Storable's refusal of NUL.
_UNSTORABLE = frozenset({"string_unicode", "invalid_key", "unstorable"})


def refusal(errors: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """The first complaint as OpenAI's API words it: one error a response, in the order of the fields."""
    error = errors[0]
    kind: str = error["type"]
    # The first item of a location says body, query or path; "[key]" follows a key of a mapping that is itself at fault.
    location = [str(item) for item in error["loc"][1:] if item != "[key]"]
    param = ".".join(location)[:_QUOTE_MAX_CHARS] or None
    given = error.get("input")
    context: Mapping[str, Any] = error.get("ctx") or {}
    if kind == "json_invalid" or (param is None and (given is None or isinstance(given, bytes))):
        return InvalidRequest(NOT_JSON)
    if kind == "missing":
        return InvalidRequest(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)
    if kind == "extra_forbidden":
        return InvalidRequest(f"Unknown parameter: '{param}'.", code="unknown_parameter", param=param)
    if kind in _EXPECTED or (kind == "literal_error" and not isinstance(given, str)):
        return wrong_type(param, expected=_EXPECTED.get(kind, "a string"), given=given)
    if kind == "literal_error" and isinstance(given, str):
        return wrong_value(param or "", given=given, supported=str(context["expected"]))
    return _out_of_bounds(kind, param, given, context, of_key="[key]" in error["loc"])


def _out_of_bounds(
    kind: str, param: str | None, given: Any, context: Mapping[str, Any], *, of_key: bool
) -> InvalidRequest:
    if kind == "greater_than_equal":
        return below_minimum(param, minimum=context["ge"], given=given)
    if kind == "less_than_equal":
        return above_maximum(param, maximum=context["le"], given=given)
    if kind == "string_too_long":
        param = param.partition(".")[0] if of_key and param else param
        return InvalidRequest(
            f"Invalid '{param}': string too long. Expected a string with maximum length {context['max_length']}, "
            f"but got a string with length {len(given)} instead.",
            code="string_above_max_length",
            param=param,
        )
    if kind == "string_too_short":
        return InvalidRequest(
            f"Invalid '{param}': empty string. Expected a string with minimum length {context['min_length']}, "
            "but got an empty string instead.",
            code="empty_string",
            param=param,
        )
    if kind == "too_long":
        return InvalidRequest(
            f"Invalid '{param}': too many properties. Expected an object with at most {context['max_length']} "
            f"properties, but got an object with {len(given)} properties instead.",
            code="object_above_max_properties",
            param=param,
        )
    what = f"'{param}'" if param else "request body"
    if kind in _UNSTORABLE:
        return InvalidRequest(
            f"Invalid {what}: it holds characters that cannot be stored.", code="invalid_value", param=param
        )
    return InvalidRequest(f"Invalid {what}.", code="invalid_value", param=param)


def wrong_type(param: str | None, *, expected: str, given: Any) -> InvalidRequest:
    """A value of another JSON type."""
    name = f" for '{param}'" if param else ""
    return InvalidRequest(
        f"Invalid type{name}: expected {expected}, but got {_described(given)} instead.",
        code="invalid_type",
        param=param,
    )


def wrong_value(param: str, *, given: str, supported: str) -> InvalidRequest:
    """A string that is none of the listed ones."""
    return InvalidRequest(
        f"Invalid {param}: {given[:_QUOTE_MAX_CHARS]}. Supported values: {supported}.",
        code="invalid_value",
        param=param,
    )


def below_minimum(param: str | None, *, minimum: int, given: Any) -> InvalidRequest:
    """A number that is too small."""
    return InvalidRequest(
        f"Invalid '{param}': integer below minimum value. Expected a value >= {minimum}, "
        f"but got {_number(given)} instead.",
        code="integer_below_min_value",
        param=param,
    )


def above_maximum(param: str | None, *, maximum: int, given: Any) -> InvalidRequest:
    """A number that is too large."""
    return InvalidRequest(
        f"Invalid '{param}': integer above maximum value. Expected a value <= {maximum}, "
        f"but got {_number(given)} instead.",
        code="integer_above_max_value",
        param=param,
    )


def _number(given: Any) -> str:
    return str(given)[:32]


def _described(given: Any) -> str:
    if given is None:
        return "null"
    names = {bool: "a boolean", int: "an integer", float: "a decimal number", str: "a string", list: "an array"}
    return names.get(type(given), "an object")
