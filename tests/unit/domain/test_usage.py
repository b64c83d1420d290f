"""Usage in both dialects."""

from __future__ import annotations

import msgspec
import pytest

from app.domain.usage import NO_USAGE, ReplyHead, Usage, usage_of


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (b"{}", NO_USAGE),
        (b'{"usage":null}', NO_USAGE),
        (b'{"usage":{"prompt_tokens":5,"total_tokens":5}}', Usage(input_tokens=5, total_tokens=5)),
        (
            b'{"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":99,'
            b'"prompt_tokens_details":{"cached_tokens":3},"completion_tokens_details":{"reasoning_tokens":1,"x":2}}}',
            Usage(5, 3, 2, 1, 7),
        ),
        (
            b'{"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":null},"output_tokens":2,'
            b'"output_tokens_details":null}}',
            Usage(5, 0, 2, 0, 7),
        ),
        (
            b'{"usage":{"input_tokens":5,"output_tokens":2,"cache_read_input_tokens":30,'
            b'"cache_creation_input_tokens":1}}',
            Usage(36, 30, 2, 0, 38),
        ),
        (b'{"text":"hello","usage":{"type":"duration","seconds":7}}', NO_USAGE),
    ],
)
def test_usage_of(body: bytes, usage: Usage) -> None:
    assert usage_of(msgspec.json.decode(body, type=ReplyHead)) == usage


def test_add() -> None:
    assert Usage(1, 2, 3, 4, 5) + Usage(10, 20, 30, 40, 50) == Usage(11, 22, 33, 44, 55)
