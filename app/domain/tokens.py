"""How many tokens a request may take, guessed from its body without a tokenizer.

A quarter of the body's bytes, rounded up, stands for the prompt; what the body allows as answer comes on top, once for
each of its `n`. The bytes include field names and quotes, so short prompts are overrated; an image inside the body is
overrated by far. The guess is for quotas only.
"""

from __future__ import annotations

from typing import Any

import msgspec

BYTES_PER_TOKEN = 4


class _Answer(msgspec.Struct):
    # Anything, because a wrong type is the engine's to refuse.
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None


_answer = msgspec.json.Decoder(_Answer)


def estimate(body: bytes) -> int:
    """Tokens of one request, prompt and answers. `body` is a JSON object."""
    try:
        answer = _answer.decode(body)
    except (msgspec.DecodeError, RecursionError):  # a number that no machine holds; the engine refuses the line
        answer = _Answer()
    most = _count(answer.max_completion_tokens) or _count(answer.max_tokens) or _count(answer.max_output_tokens)
    return -(-len(body) // BYTES_PER_TOKEN) + most * max(1, _count(answer.n))


def _count(value: Any) -> int:
    """`value` where it is a number of things, else 0. Larger numbers than any engine takes count as that many."""
    if value is None or isinstance(value, bool) or not isinstance(value, int):
        return 0
    return min(max(value, 0), 1 << 31)
