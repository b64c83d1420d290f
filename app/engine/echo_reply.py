"""Reply bodies of the echo engine: OpenAI's shapes, usage in words, the same bytes for the same request."""

from __future__ import annotations

import base64
import hashlib
import math
import sys
from array import array
from collections.abc import Sequence

import msgspec

from app.engine.echo_request import (
    DIMENSIONS_DEFAULT,
    ChatRequest,
    CompletionRequest,
    ConversationsRequest,
    EmbeddingRequest,
    Item,
    Message,
    Part,
    ResponseRequest,
)

# A fixed second, so that the files of two runs can be compared byte for byte.
CREATED = b"1700000000"

_encode = msgspec.json.encode


def error(message: str, *, type_: str, code: str | None, param: str | None = None) -> bytes:
    """The OpenAI error envelope (openai-contract 3.1)."""
    return _encode({"error": {"message": message, "type": type_, "param": param, "code": code}})


def words(text: str) -> int:
    """Tokens of `text`, as this engine counts them."""
    return len(text.split())


def text_of(content: str | list[Part] | object) -> str:
    """The text of a message's content; parts that carry none count as nothing."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part.text for part in content if isinstance(part.text, str))
    return ""


def last_user_text(messages: Sequence[Message | Item]) -> str:
    """What the last user message says; without one, what the last message says."""
    for message in reversed(messages):
        if message.role == "user":
            return text_of(message.content)
    return text_of(messages[-1].content)


def repeated(text: str, times: int) -> str:
    """`text` `times` times, with a space between."""
    return text if times == 1 else " ".join([text] * times)


def cut(text: str, limit: int | None) -> tuple[str, int, bytes]:
    """(text of at most `limit` words, its words, finish reason)."""
    parts = text.split()
    if limit is None or len(parts) <= limit:
        return text, len(parts), b"stop"
    return " ".join(parts[:limit]), limit, b"length"


def chat(request: ChatRequest, *, digest: bytes, repeat: int) -> bytes:
    """`chat.completion` (openai-contract 9)."""
    messages = request.messages
    asked = repeated(last_user_text(messages), repeat)
    text, tokens, finish = cut(asked, request.max_completion_tokens or request.max_tokens)
    answer = _encode(text)
    count = request.n or 1
    choices = b",".join(
        [
            b'{"index":%d,"message":{"role":"assistant","content":%b,"refusal":null},"logprobs":null,"finish_reason":"%b"}'
            % (index, answer, finish)
            for index in range(count)
        ]
    )
    prompt = 0
    for message in messages:
        prompt += words(text_of(message.content))
    return b'{"id":"chatcmpl-%b","object":"chat.completion","created":%b,"model":"echo","choices":[%b],"usage":%b}' % (
        digest,
        CREATED,
        choices,
        _usage(prompt, tokens * count),
    )


def conversations(request: ConversationsRequest, *, digest: bytes, repeat: int) -> bytes:
    """`chat.completion` with one choice a conversation, and the sum of their usage."""
    choices = []
    asked_words = answered_words = 0
    for index, messages in enumerate(request.messages):
        asked = repeated(last_user_text(messages), repeat)
        text, tokens, finish = cut(asked, request.max_completion_tokens or request.max_tokens)
        asked_words += sum(words(text_of(message.content)) for message in messages)
        answered_words += tokens
        choices.append(
            b'{"index":%d,"message":{"role":"assistant","content":%b,"refusal":null},"logprobs":null,"finish_reason":"%b"}'
            % (index, _encode(text), finish)
        )
    return b'{"id":"chatcmpl-%b","object":"chat.completion","created":%b,"model":"echo","choices":[%b],"usage":%b}' % (
        digest,
        CREATED,
        b",".join(choices),
        _usage(asked_words, answered_words),
    )


def completion(request: CompletionRequest, prompts: Sequence[str | list[int]], *, digest: bytes, repeat: int) -> bytes:
    """`text_completion`: the answer repeats its prompt; n choices a prompt, in the order of the prompts."""
    choices: list[bytes] = []
    asked_words = answered_words = 0
    for prompt in prompts:
        asked = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
        text, tokens, finish = cut(repeated(asked, repeat), request.max_tokens)
        if request.echo is True:
            text = asked + text
        asked_words += words(asked)
        for _ in range(request.n or 1):
            answered_words += tokens
            choices.append(
                b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":"%b"}' % (len(choices), _encode(text), finish)
            )
    return b'{"id":"cmpl-%b","object":"text_completion","created":%b,"model":"echo","choices":[%b],"usage":%b}' % (
        digest,
        CREATED,
        b",".join(choices),
        _usage(asked_words, answered_words),
    )


def response(request: ResponseRequest, *, digest: bytes, repeat: int) -> bytes:
    """`response` with one output message."""
    given = request.input
    asked = given if isinstance(given, str) else last_user_text(given)
    prompt = words(request.instructions or "")
    prompt += words(given) if isinstance(given, str) else sum(words(text_of(item.content)) for item in given)
    text, tokens, finish = cut(repeated(asked, repeat), request.max_output_tokens)
    ended = finish == b"stop"
    return (
        b'{"id":"resp_%b","object":"response","created_at":%b,"status":"%b","error":null,"incomplete_details":%b,'
        b'"instructions":%b,"metadata":%b,"model":"echo","output":[{"type":"message","id":"msg_%b","status":"%b",'
        b'"role":"assistant","content":[{"type":"output_text","text":%b,"annotations":[]}]}],"parallel_tool_calls":true,'
        b'"temperature":%b,"tool_choice":"auto","tools":[],"top_p":%b,"usage":{"input_tokens":%d,'
        b'"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":%d,'
        b'"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}}'
    ) % (
        digest,
        CREATED,
        b"completed" if ended else b"incomplete",
        b"null" if ended else b'{"reason":"max_output_tokens"}',
        _encode(request.instructions),
        _encode(request.metadata or {}),
        digest,
        b"completed" if ended else b"incomplete",
        _encode(text),
        _encode(1.0 if request.temperature is None else request.temperature),
        _encode(1.0 if request.top_p is None else request.top_p),
        prompt,
        tokens,
        prompt + tokens,
    )


def embeddings(request: EmbeddingRequest, inputs: Sequence[str | list[int]]) -> bytes:
    """A `list` of one unit vector an input, in order; base64 is little-endian float32."""
    dimensions = request.dimensions or DIMENSIONS_DEFAULT
    tokens = 0
    rows = []
    for index, item in enumerate(inputs):
        tokens += words(item) if isinstance(item, str) else len(item)
        values = vector(item, dimensions)
        if request.encoding_format == "base64":
            shown = b'"%b"' % base64.b64encode(_little_endian(values))
        else:
            shown = _encode(values.tolist())
        rows.append(b'{"object":"embedding","index":%d,"embedding":%b}' % (index, shown))
    usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
    return b'{"object":"list","data":[%b],"model":"echo","usage":%b}' % (b",".join(rows), usage)


def vector(item: str | list[int], dimensions: int) -> array[float]:
    """A float32 vector of length 1 from `item` alone; fewer dimensions are the first ones of more, rescaled."""
    seed = item.encode() if isinstance(item, str) else _encode(item)
    raw = array("I", hashlib.shake_128(seed).digest(4 * dimensions))
    signed = [(value - 0x7FFFFFFF) / 0x80000000 for value in raw]
    length = math.sqrt(sum(value * value for value in signed)) or 1.0
    return array("f", [value / length for value in signed])


def _little_endian(values: array[float]) -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def _usage(prompt: int, completion: int) -> bytes:
    return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (prompt, completion, prompt + completion)
