"""Audio lines become forms."""

from __future__ import annotations

import json

import pytest

from app.domain.speech import SpeechRequest, request_of
from app.errors import InvalidRequest


def test_request_of_spells_every_field_as_a_form_does() -> None:
    body = {
        "model": "m",
        "file_url": "http://example.org/a.wav",
        "temperature": 0.5,
        "seed": 7,
        "prompt": "Grüezi",
        "language": None,
        "timestamp_granularities": ["word", "segment"],
        "include[]": ["logprobs"],
        "vllm_xargs": {"a": True},
        "stream": False,
    }
    assert request_of(json.dumps(body).encode()) == SpeechRequest(
        "http://example.org/a.wav",
        (
            ("model", "m"),
            ("temperature", "0.5"),
            ("seed", "7"),
            ("prompt", "Grüezi"),
            ("timestamp_granularities[]", "word"),
            ("timestamp_granularities[]", "segment"),
            ("include[]", "logprobs"),
            ("vllm_xargs", '{"a": true}'),
            ("stream", "false"),
        ),
    )


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (b'{"model":"m"}', "Missing required parameter: 'file_url'", "file_url"),
        (b'{"file_url":7}', "expected a string", "file_url"),
        (b'{"file_url":"file:///a"}', "expected a data:, http: or https: URL", "file_url"),
        (b'{"file_url":"data:,","file":"x"}', "carries no 'file'", "file"),
        (b'{"file_url":"data:,","response_format":"text"}', "'json' or 'verbose_json'", "response_format"),
        (b'{"file_url":"data:,","seed":1e999}', "a number that is too large", "file_url"),
    ],
)
def test_request_of_refuses_a_body_that_nobody_has_validated(body: bytes, message: str, param: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        request_of(body)
    assert caught.value.param == param
