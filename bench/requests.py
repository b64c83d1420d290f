"""The files of the real-engine measurements: prompts of words, and how many tokens each is to be answered with."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

CHAT = "/v1/chat/completions"

_TEXT = "old lighthouse keeper counted ships while rain crossed slow grey water wall"
_WORDS = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True)
class Request:
    """One chat request; `max_tokens` is also how many it gets."""

    prompt: str
    max_tokens: int


def jsonl(requests: Sequence[Request], *, model: str) -> bytes:
    """The batch file. `ignore_eos`: all tokens are made, by whomever."""
    lines = []
    for number, request in enumerate(requests):
        body = {
            "model": model,
            "messages": [{"role": "user", "content": request.prompt}],
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        line = {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body}
        lines.append(json.dumps(line).encode() + b"\n")
    return b"".join(lines)


def plain(scale: float) -> list[Request]:
    """256 prompts and answers of mixed lengths; at least 4."""
    rng = random.Random(1)
    return [Request(_text(rng, rng.randint(5, 120)), rng.randint(4, 28)) for _ in range(max(4, int(256 * scale)))]


def shared(scale: float, *, prefix_words: int = 600) -> list[Request]:
    """4 prefixes of that many words (here each a token) with 16 short questions each, interleaved; at least 2 each."""
    rng = random.Random(2)
    prefixes = [_text(rng, prefix_words) for _ in range(4)]
    each = max(2, int(16 * scale))
    return [Request(f"{prefix} Question {number}: why?", 8) for number in range(each) for prefix in prefixes]


def stragglers(scale: float) -> list[Request]:
    """128 short prompts whose answers are short, but for a heavy tail up to 400 tokens; at least 8."""
    rng = random.Random(3)
    lengths = [min(400, int(4 * rng.paretovariate(0.9))) for _ in range(max(8, int(128 * scale)))]
    return [Request(_text(rng, rng.randint(5, 30)), length) for length in lengths]


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(words))
