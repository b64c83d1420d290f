"""Batch lines to the audio endpoints: JSON in the file, a multipart form for the model server.

A line names its audio by `file_url` (`data:`, `http:` or `https:`). Every other field becomes a field of the form, as a
client of the endpoint itself would send it; a list becomes the repeated field `name[]`, an object its JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from app.errors import InvalidRequest

SCHEMES = ("data:", "http:", "https:")
#: Formats of the answer that are JSON, and so fit into a result row.
FORMATS = ("json", "verbose_json")

_object = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """What a line asks for: where its audio is, and the form's other fields in their order."""

    file_url: str
    fields: tuple[tuple[str, str], ...]


def problem_of(body: bytes) -> tuple[str, str, str] | None:
    """(code, message, field) of what is wrong with the audio fields of a JSON object; None for a good one."""
    try:
        stated = _object.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):  # a number beyond what a double holds is JSON all the same
        return "invalid_value", "The body holds a number that is too large.", "file_url"
    if "file" in stated:
        return "unsupported_parameter", "A batch line carries no 'file': name the audio by 'file_url'.", "file"
    url = stated.get("file_url")
    if not isinstance(url, str):
        # A missing one is the business of the endpoint's required fields.
        wrong = "Invalid type for 'body.file_url': expected a string."
        return None if "file_url" not in stated else ("invalid_type", wrong, "file_url")
    if not url.lower().startswith(SCHEMES):
        return "invalid_value", "Invalid 'body.file_url': expected a data:, http: or https: URL.", "file_url"
    answer = stated.get("response_format")
    if answer is not None and answer not in FORMATS:
        message = "Invalid 'body.response_format': a batch answers in 'json' or 'verbose_json'."
        return "invalid_value", message, "response_format"
    return None


def request_of(body: bytes) -> SpeechRequest:
    """The request in a line's body, a JSON object. Raises InvalidRequest: an offline run validates no bodies before."""
    if (problem := problem_of(body)) is not None:
        code, message, field = problem
        raise InvalidRequest(message, code=code, param=field)
    stated = _object.decode(body)
    if "file_url" not in stated:
        raise InvalidRequest(
            "Missing required parameter: 'file_url'.", code="missing_required_parameter", param="file_url"
        )
    url = str(stated.pop("file_url"))
    fields: list[tuple[str, str]] = []
    for name, value in stated.items():
        if isinstance(value, list):
            listed = name if name.endswith("[]") else f"{name}[]"
            fields += [(listed, _text(item)) for item in value]
        elif value is not None:
            fields.append((name, _text(value)))
    return SpeechRequest(url, tuple(fields))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
