"""Token usage of a reply, and its sum over a batch."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens, in the shape of `batch.usage` (openai-contract 1.3)."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    total_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.total_tokens + other.total_tokens,
        )


NO_USAGE = Usage()


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _ReplyUsage(msgspec.Struct):
    """All dialects.

    Chat, completions, embeddings, score and rerank count prompt and completion tokens, responses and messages input and
    output tokens. Audio counts seconds, which are no tokens.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class ReplyHead(msgspec.Struct):
    """What the ledger needs of a reply's body: its usage and the model that answered."""

    usage: _ReplyUsage | None = None
    model: str | None = None


def usage_of(head: ReplyHead) -> Usage:
    """The usage a reply states, zero where it states none.

    `total_tokens` is input + output, also when the reply differs.
    """
    stated = head.usage
    if stated is None:
        return NO_USAGE
    # Messages count what the cache gave beside `input_tokens`, not in them.
    read, written = stated.cache_read_input_tokens or 0, stated.cache_creation_input_tokens or 0
    input_tokens = (stated.prompt_tokens or stated.input_tokens or 0) + read + written
    output_tokens = stated.completion_tokens or stated.output_tokens or 0
    cached = stated.prompt_tokens_details or stated.input_tokens_details
    reasoning = stated.completion_tokens_details or stated.output_tokens_details
    return Usage(
        input_tokens,
        (cached.cached_tokens or 0) if cached else read,
        output_tokens,
        (reasoning.reasoning_tokens or 0) if reasoning else 0,
        total_tokens=input_tokens + output_tokens,
    )
