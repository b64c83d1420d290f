"""Request bodies the echo engine reads: what each schema forbids, and the `echo` field that steers a request.

Unknown fields of a body pass, as they do in vLLM; unknown keys inside `echo` are refused.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.errors import InvalidRequest

OUTPUT_MAX_BYTES = 64 << 20
DIMENSIONS_DEFAULT = 32

_Positive = Annotated[int, Meta(ge=1)]
_Choices = Annotated[int, Meta(ge=1, le=128)]
_Temperature = Annotated[float, Meta(ge=0, le=2)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Logprobs = Annotated[int, Meta(ge=0, le=20)]
_Token = Annotated[int, Meta(ge=0)]
_Stop = str | Annotated[list[str], Meta(max_length=4)] | None
_Tokens = Annotated[list[_Token], Meta(min_length=1)]
_Inputs = str | Annotated[list[str | _Token | _Tokens], Meta(min_length=1, max_length=2048)]
_PartType = Literal[
    "text", "input_text", "output_text", "refusal", "image_url", "input_image", "input_audio", "file", "input_file"
]


class Steering(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `echo` field; see app/engine/echo.py for what each key does."""

    delay_ms: Annotated[float, Meta(ge=0, le=3_600_000)] = 0
    repeat: Annotated[int, Meta(ge=0, le=1_000_000)] = 1
    status: Annotated[int, Meta(ge=400, le=599)] | None = None
    message: str = "The request asked to fail."
    busy: Annotated[int, Meta(ge=0)] = 0
    crash: bool | Annotated[int, Meta(ge=0)] = False
    hang: bool = False


NO_STEERING = Steering()


class Part(msgspec.Struct):
    """One part of a message's content; only its text is looked at."""

    type: _PartType
    text: str | UnsetType = UNSET


_Content = str | Annotated[list[Part], Meta(min_length=1)] | None | UnsetType


class Message(msgspec.Struct):
    """One chat message."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: _Content = UNSET
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    function_call: dict[str, Any] | None = None


class Item(msgspec.Struct):
    """One input item of a response; items other than messages (tool calls and results, reasoning) pass unread."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | UnsetType = UNSET
    content: _Content = UNSET


class Request(msgspec.Struct):
    """Fields that all endpoints share."""

    model: str
    stream: bool | None = None
    user: str | None = None


class Sampling(Request):
    """Fields that all generating endpoints share."""

    temperature: _Temperature | None = None
    top_p: _Share | None = None


class ChatRequest(Sampling, kw_only=True):
    """`/v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    echo: Steering | None = None
    n: _Choices | None = None
    max_tokens: _Positive | None = None
    max_completion_tokens: _Positive | None = None
    stop: _Stop = None
    seed: int | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logprobs: bool | None = None
    top_logprobs: _Logprobs | None = None
    logit_bias: dict[str, float] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None


class ConversationsRequest(Sampling, kw_only=True):
    """`/v1/chat/completions/batch`."""

    messages: Annotated[list[Annotated[list[Message], Meta(min_length=1)]], Meta(min_length=1)]
    echo: Steering | None = None
    max_tokens: _Positive | None = None
    max_completion_tokens: _Positive | None = None


class CompletionRequest(Sampling, kw_only=True):
    """`/v1/completions`. Its schema has a boolean `echo` of its own: the prompt stands before the answer."""

    prompt: _Inputs
    echo: bool | Steering | None = None
    n: _Choices | None = None
    max_tokens: _Positive | None = None
    stop: _Stop = None
    seed: int | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logprobs: _Logprobs | None = None
    suffix: str | None = None


class ResponseRequest(Sampling, kw_only=True):
    """`/v1/responses`."""

    input: str | Annotated[list[Item], Meta(min_length=1)]
    echo: Steering | None = None
    instructions: str | None = None
    max_output_tokens: _Positive | None = None
    top_logprobs: _Logprobs | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None


class EmbeddingRequest(Request, kw_only=True):
    """`/v1/embeddings`."""

    input: _Inputs
    echo: Steering | None = None
    dimensions: Annotated[int, Meta(ge=1, le=4096)] | None = None
    encoding_format: Literal["float", "base64"] | None = None


AnyRequest = TypeVar("AnyRequest", bound=Request)

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_FIELD = re.compile(r"`([^`]+)`$")
_STEP = re.compile(r"\[\.\.\.\]|[^.\[]+")


def parse(decoder: msgspec.json.Decoder[AnyRequest], body: bytes) -> AnyRequest:
    """The request in `body`. Raises InvalidRequest with the code and param that OpenAI's envelope carries."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as exc:
        raise _refused(str(exc), body, decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("We could not parse the JSON body of your request.", code="invalid_json") from None


def check_chat(request: ChatRequest) -> None:
    """What the schema says across fields. Raises InvalidRequest."""
    check_messages(request.messages)


def check_messages(messages: list[Message]) -> None:
    """As `check_chat`, for one conversation."""
    for index, message in enumerate(messages):
        role, content = message.role, message.content
        if role == "user" and isinstance(content, str):  # the usual message
            continue
        where = f"messages[{index}]"
        if content is UNSET or content is None:
            spoken = message.tool_calls or message.function_call or message.refusal
            if role == "function" or (role == "assistant" and spoken):
                continue
            raise missing(f"{where}.content") if content is UNSET else wrong_type(f"{where}.content")
        if role == "tool" and message.tool_call_id is None:
            raise missing(f"{where}.tool_call_id")
        if isinstance(content, list):
            check_parts(content, where)


def check_items(items: list[Item]) -> None:
    """As `check_chat`, for the input items of a response."""
    for index, item in enumerate(items):
        where = f"input[{index}]"
        if item.type != "message":
            continue
        if item.role is UNSET:
            raise missing(f"{where}.role")
        if item.content is UNSET:
            raise missing(f"{where}.content")
        if item.content is None:
            raise wrong_type(f"{where}.content")
        if isinstance(item.content, list):
            check_parts(item.content, where)


def check_parts(parts: list[Part], where: str) -> None:
    """Text parts carry text. Raises InvalidRequest."""
    for index, part in enumerate(parts):
        if part.text is UNSET and part.type in {"text", "input_text", "output_text"}:
            raise missing(f"{where}.content[{index}].text")


def check_inputs(inputs: str | list[Any], *, param: str) -> list[str | list[int]]:
    """The inputs one by one: a list of token ids is one of them. Raises InvalidRequest for empty or mixed ones."""
    if isinstance(inputs, str):
        found: list[str | list[int]] = [inputs]
    else:
        kinds = {type(item) for item in inputs}
        if len(kinds) > 1:
            message = f"Invalid '{param}': strings, token ids and arrays of token ids cannot be mixed."
            raise InvalidRequest(message, code="invalid_type", param=param)
        found = [inputs] if kinds == {int} else inputs
    if param == "input" and "" in found:
        raise InvalidRequest(f"Invalid '{param}': an input cannot be empty.", code="empty_string", param=param)
    return found


def missing(param: str) -> InvalidRequest:
    """The refusal of a body without a field it needs."""
    return InvalidRequest(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)


def wrong_type(param: str, what: str = "null is not allowed here") -> InvalidRequest:
    """The refusal of a value of the wrong JSON type."""
    return InvalidRequest(f"Invalid type for '{param}': {what}.", code="invalid_type", param=param)


def _refused(text: str, body: bytes, kind: Any) -> InvalidRequest:
    place = _PLACE.match(text)
    assert place is not None  # every part of the pattern is optional
    what, path = place["what"], place["path"] or ""
    if "[...]" in path:
        path = _with_indices(path, msgspec.json.decode(body), kind)
    if what.startswith("Object missing required field"):
        field = _FIELD.search(what)
        return missing(".".join(filter(None, (path, field[1] if field else None))))
    if what.startswith("Object contains unknown field"):
        field = _FIELD.search(what)
        param = ".".join(filter(None, (path, field[1] if field else None)))
        return InvalidRequest(f"Unknown parameter: '{param}'.", code="unknown_parameter", param=param)
    what = what.replace("`", "'")
    if ", got " in what:
        return wrong_type(path or "body", what[0].lower() + what[1:])
    return InvalidRequest(f"Invalid value for '{path}': {what}.", code="invalid_value", param=path)


def _with_indices(path: str, value: Any, kind: Any) -> str:
    """`path` with each `[...]` replaced by the place of the first refused item; msgspec does not tell which it was."""
    root: dict[Any, Any] = {"": value}
    holder: Any = root
    key: Any = ""
    shown = ""
    for step in _STEP.findall(path):
        if step != "[...]":
            holder, key = holder[key], step
            shown = f"{shown}.{step}" if shown else step
            continue
        items = holder[key]
        named = isinstance(items, dict)
        for place, item in items.items() if named else enumerate(items):
            holder[key] = {place: item} if named else [item]
            if _refuses(root[""], kind, path):
                break
        shown += f".{place}" if named else f"[{place}]"
        holder, key = holder[key], place if named else 0
    return shown


def _refuses(value: Any, kind: Any, path: str) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        return str(exc).endswith(f"{path}`")
    return False
