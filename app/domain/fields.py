"""Fields of a line's body: which reach beyond their own request and are refused, which pass, and why.

The list is complete for the request models of vLLM 0.32 (a test reads them). A field on neither list is unknown to the
engine, which ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from app.domain.batch import BatchProblem
from app.domain.endpoint import RESPONSES

#: Refused, with the reason.
REFUSED: Mapping[str, str] = {
    "priority": "goes ahead of other callers' requests in the engine's queue",
    "cache_salt": "splits the prefix cache that all requests share",
    "request_id": "names the request inside the engine, where another caller's could have the same name",
    "session_id": "ties the request to others of the same session, whoever sent them",
    "kv_transfer_params": "makes the engine fetch cache blocks from, or leave them for, another server",
    "ec_transfer_params": "makes the engine fetch encoder output from, or leave it for, another server",
    "vllm_xargs": "is handed to the server's own plug-ins, and can carry any of the fields above",
    "chat_template": "is a program that the server runs, unless `limits.trust_chat_template` says that it may",
    "mm_processor_kwargs": "sets how the server's image and audio processor works, and how much memory it takes",
    "media_io_kwargs": "sets how the server decodes media, and how many frames it holds in memory",
    "guided_decoding_backend": "chooses the server's grammar engine past its own check",
    "watermarking": "is the operator's decision about all output",
    "background": "answers later and elsewhere, so that the line would have no answer",
    "store": "keeps the response in the server's memory, where others can read it by its id",
    "previous_response_id": "reads a response that another request has stored",
    "extra_body": "is an option of client libraries, which put its fields into the body; here it would do nothing",
}

#: Pass, with the reason.
PASSING: Mapping[str, str] = {
    **dict.fromkeys(
        ("model", "messages", "prompt", "input", "system", "instructions", "suffix", "instruction"),
        "is the request itself",
    ),
    **dict.fromkeys(
        ("queries", "documents", "items", "text_1", "text_2", "data_1", "data_2", "query", "previous_input_messages"),
        "is the request itself",
    ),
    **dict.fromkeys(("file", "file_url"), "is the request itself; addresses inside the network are refused apart"),
    "prompt_embeds": "is the request itself; the engine takes it only when started with a flag for it",
    **dict.fromkeys(
        ("temperature", "top_p", "top_k", "min_p", "seed", "n", "stop", "stop_token_ids", "stop_sequences"),
        "steers the sampling of this request alone",
    ),
    **dict.fromkeys(
        ("frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty", "logit_bias", "bad_words"),
        "steers the sampling of this request alone",
    ),
    **dict.fromkeys(
        ("allowed_token_ids", "use_beam_search", "best_of", "early_stopping", "repetition_detection"),
        "steers the sampling of this request alone",
    ),
    **dict.fromkeys(
        ("reasoning_effort", "reasoning", "thinking"),
        "steers how this request alone is thought about",
    ),
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "ignore_eos", "max_tool_calls"),
        "bounds the length of this request's answer",
    ),
    "thinking_token_budget": "bounds the length of this request's answer",
    **dict.fromkeys(
        ("truncate_prompt_tokens", "truncation_side", "truncation", "max_tokens_per_query", "max_tokens_per_doc"),
        "cuts this request's own prompt",
    ),
    **dict.fromkeys(("add_special_tokens", "padding"), "shapes this request's own prompt"),
    **dict.fromkeys(
        ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"),
        "fills in the server's own template; names that would replace it are refused inside",
    ),
    **dict.fromkeys(
        ("tools", "tool_choice", "parallel_tool_calls"),
        "describes functions that the caller runs; a tool of type `mcp`, which the server would call, is refused",
    ),
    **dict.fromkeys(
        ("response_format", "structured_outputs", "text", "output_config"),
        "shapes this request's answer; the choice of the grammar engine is refused inside",
    ),
    **dict.fromkeys(
        ("logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids", "return_tokens_as_token_ids"),
        "asks for more about this request's own tokens",
    ),
    **dict.fromkeys(
        ("return_token_ids", "return_token_offsets", "return_prompt_text", "routed_experts_prompt_start"),
        "asks for more about this request's own tokens",
    ),
    **dict.fromkeys(
        ("echo", "include_reasoning", "include", "skip_special_tokens", "spaces_between_special_tokens"),
        "chooses what this request's answer shows",
    ),
    **dict.fromkeys(
        ("include_stop_str_in_output", "enable_response_messages", "mm_payload", "return_mm_kwargs", "top_n"),
        "chooses what this request's answer shows",
    ),
    **dict.fromkeys(
        ("encoding_format", "embed_dtype", "endianness", "dimensions", "use_activation"),
        "chooses the form of this request's numbers",
    ),
    **dict.fromkeys(
        ("language", "to_language", "timestamp_granularities", "hotwords"),
        "steers the transcript of this request alone",
    ),
    **dict.fromkeys(
        ("stream", "stream_options", "stream_interval"), "must not ask for a stream, and else does nothing"
    ),
    **dict.fromkeys(
        ("stream_include_usage", "stream_continuous_usage_stats"), "must not ask for a stream, and else does nothing"
    ),
    **dict.fromkeys(
        ("user", "metadata", "service_tier", "prompt_cache_key", "safety_identifier"),
        "is ignored by the engine, or only echoed; the order of work is this service's own",
    ),
}

#: Fields inside a field, refused likewise.
REFUSED_INSIDE: Mapping[str, Mapping[str, str]] = {
    "chat_template_kwargs": {
        **dict.fromkeys(
            ("chat_template", "conversation", "tokenize", "tokenizer_kwargs", "return_tensors", "return_dict"),
            "replaces the server's template, or the way the server calls it",
        ),
        **dict.fromkeys(
            ("padding", "truncation", "max_length", "return_assistant_tokens_mask"),
            "replaces the way the server calls its template",
        ),
    },
    "structured_outputs": dict.fromkeys(
        ("_backend", "_backend_was_auto"), "chooses the server's grammar engine past its own check"
    ),
}
_MCP_REASON = "makes the server call a tool server with headers of the line's choosing"

_UNSET = msgspec.UNSET
_Maybe = msgspec.Raw | msgspec.UnsetType

#: Values that say: not asked for. `priority` has none, so that nothing of that name ever reaches the engine.
_NOT_ASKED: Mapping[str, frozenset[bytes]] = {
    "priority": frozenset(),
    "background": frozenset({b"null", b"false"}),
    "store": frozenset({b"null", b"false"}),
}
_NULL = frozenset({b"null"})
#: Fields of one endpoint only; elsewhere OpenAI knows them under the same name as something harmless.
_ONLY_AT = {"store": RESPONSES, "previous_response_id": RESPONSES}


class _Fields(msgspec.Struct):
    priority: _Maybe = _UNSET
    cache_salt: _Maybe = _UNSET
    request_id: _Maybe = _UNSET
    session_id: _Maybe = _UNSET
    kv_transfer_params: _Maybe = _UNSET
    ec_transfer_params: _Maybe = _UNSET
    vllm_xargs: _Maybe = _UNSET
    chat_template: _Maybe = _UNSET
    mm_processor_kwargs: _Maybe = _UNSET
    media_io_kwargs: _Maybe = _UNSET
    guided_decoding_backend: _Maybe = _UNSET
    watermarking: _Maybe = _UNSET
    background: _Maybe = _UNSET
    store: _Maybe = _UNSET
    previous_response_id: _Maybe = _UNSET
    extra_body: _Maybe = _UNSET
    chat_template_kwargs: _Maybe = _UNSET
    structured_outputs: _Maybe = _UNSET
    tools: _Maybe = _UNSET


_NONE = _Fields()


class _Tool(msgspec.Struct):
    type: _Maybe = _UNSET


_fields = msgspec.json.Decoder(_Fields)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list = msgspec.json.Decoder(list[msgspec.Raw])
_tool = msgspec.json.Decoder(_Tool)
_text = msgspec.json.Decoder(str)


def problems(body: bytes, *, line: int, endpoint: str, allowed: frozenset[str] = frozenset()) -> list[BatchProblem]:
    """One for each refused field of `body`, a JSON object, in the order of the list.

    `allowed` names fields of REFUSED that the operator lets pass; `priority` never does.
    """
    found = _fields.decode(body)
    if found == _NONE:  # the usual line
        return []
    refused = [
        _problem(name, REFUSED[name], line=line)
        for name in REFUSED
        if (name == "priority" or name not in allowed) and _asked(name, getattr(found, name), endpoint=endpoint)
    ]
    for outer, names in REFUSED_INSIDE.items():
        value = getattr(found, outer)
        if value is _UNSET or not bytes(value).startswith(b"{"):
            continue
        inner = _object.decode(value)
        refused += [
            _problem(f"{outer}.{name}", reason, line=line)
            for name, reason in names.items()
            if name in inner and name not in allowed
        ]
    if endpoint == RESPONSES and not isinstance(found.tools, msgspec.UnsetType):
        refused += [_problem(f"tools.{at}", _MCP_REASON, line=line) for at in _mcp_tools(found.tools)]
    return refused


def _asked(name: str, value: _Maybe, *, endpoint: str) -> bool:
    if isinstance(value, msgspec.UnsetType) or _ONLY_AT.get(name, endpoint) != endpoint:
        return False
    return bytes(value) not in _NOT_ASKED.get(name, _NULL)


def _mcp_tools(tools: msgspec.Raw) -> list[int]:
    if not bytes(tools).startswith(b"["):
        return []
    at = []
    for position, one in enumerate(_list.decode(tools)):
        kind = _tool.decode(one).type if bytes(one).startswith(b"{") else _UNSET
        if isinstance(kind, msgspec.Raw) and bytes(kind).startswith(b'"') and _text.decode(kind) == "mcp":
            at.append(position)
    return at


def _problem(name: str, reason: str, *, line: int) -> BatchProblem:
    message = f"The parameter '{name}' is not supported in a batch: it {reason}."
    return BatchProblem("unsupported_parameter", message, f"body.{name}", line)
