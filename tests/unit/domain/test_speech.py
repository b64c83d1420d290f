"""Audio lines become forms."""

from __future__ import annotations

import json

from app.domain.speech import SpeechRequest, request_of


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
