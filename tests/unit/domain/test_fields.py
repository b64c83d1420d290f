"""Fields that reach beyond their request: each refused, each reason told, the list complete for the engine."""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.domain.fields import PASSING, REFUSED, REFUSED_INSIDE, problems
from tests.requirement import without

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
ONLY_RESPONSES = ("store", "previous_response_id")
BODY = {"model": "m", "messages": [], "input": "x"}


def params(
    fields: dict[str, Any] | bytes, *, endpoint: str = RESPONSES, allowed: frozenset[str] = frozenset()
) -> list[str]:
    raw = fields if isinstance(fields, bytes) else json.dumps(BODY | fields).encode()
    found = problems(raw, line=7, endpoint=endpoint, allowed=allowed)
    assert all((problem.code, problem.line) == ("unsupported_parameter", 7) for problem in found)
    return [str(problem.param).removeprefix("body.") for problem in found]


@pytest.mark.parametrize("value", [0, 1, -5, True, "x", {"a": 1}, []], ids=repr)
@pytest.mark.parametrize("field", REFUSED)
def test_problems_of_a_refused_field(field: str, value: Any) -> None:
    assert params({field: value}) == [field]


@pytest.mark.parametrize("field", REFUSED)
def test_problems_say_why(field: str) -> None:
    (problem,) = problems(json.dumps({field: 1}).encode(), line=1, endpoint=RESPONSES)
    assert problem.message == f"The parameter '{field}' is not supported in a batch: it {REFUSED[field]}."


@pytest.mark.parametrize("field", sorted(set(REFUSED) - {"priority"}))
def test_problems_let_null_pass_as_not_asked_for(field: str) -> None:
    assert params({field: None}) == []


@pytest.mark.parametrize("value", [None, 0, 7, False, "", [], {}], ids=repr)
@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES, "/v1/embeddings", "/v1/score", "/v1/messages", "/unknown"])
def test_problems_of_a_priority_whatever_it_is_and_whoever_allows_it(endpoint: str, value: Any) -> None:
    assert params({"priority": value}, endpoint=endpoint, allowed=frozenset({"priority"})) == ["priority"]


@pytest.mark.parametrize("field", sorted(set(REFUSED) - {"priority"}))
def test_problems_let_an_allowed_field_pass(field: str) -> None:
    assert params({field: "x", "priority": 1}, allowed=frozenset({field})) == ["priority"]


@pytest.mark.parametrize("field", ["store", "background"])
def test_problems_let_false_pass_where_it_says_no(field: str) -> None:
    assert params({field: False}) == []
    assert params({"watermarking": False}) == ["watermarking"]


@pytest.mark.parametrize("field", ONLY_RESPONSES)
def test_problems_know_a_field_of_responses_by_its_endpoint(field: str) -> None:
    assert params({field: "x"}, endpoint=CHAT) == []


@pytest.mark.parametrize(
    ("outer", "inner"), [(outer, inner) for outer, names in REFUSED_INSIDE.items() for inner in names]
)
def test_problems_of_a_nested_field(outer: str, inner: str) -> None:
    assert params({outer: {inner: 1, "harmless": 2}}) == [f"{outer}.{inner}"]
    assert params({outer: {"harmless": {inner: 1}}}) == [], "the engine looks one level deep"
    assert params({outer: {inner: 1}}, allowed=frozenset({inner})) == []


@pytest.mark.parametrize("value", [None, 1, "text", [], [{"type": 3}], [{}], ["mcp"], {"type": "mcp"}], ids=repr)
def test_problems_leave_odd_values_to_the_engine(value: Any) -> None:
    assert params({"tools": value, "chat_template_kwargs": value, "structured_outputs": value}) == []


def test_problems_of_a_tool_that_the_server_would_call() -> None:
    tools = [{"type": "function"}, {"type": "mcp", "server_label": "x"}, {"type": "web_search"}]
    assert params({"tools": tools}) == ["tools.1"]
    assert params({"tools": tools}, endpoint=CHAT) == []


def test_problems_see_an_escaped_or_repeated_name() -> None:
    assert params(rb'{"prior\u0069ty":1}') == ["priority"]
    assert params(rb'{"\u0070riority":null,"cache_\u0073alt":"x"}') == ["priority", "cache_salt"]
    assert params(b'{"cache_salt":null,"cache_salt":"x"}') == ["cache_salt"]
    assert params(rb'{"chat_template_kwargs":{"chat\u005ftemplate":"x"}}') == ["chat_template_kwargs.chat_template"]
    assert params(rb'{"tools":[{"t\u0079pe":"m\u0063p"}]}') == ["tools.0"]


def test_problems_of_many_fields_come_in_the_order_of_the_list() -> None:
    assert params(dict.fromkeys(reversed(list(REFUSED)), 1)) == list(REFUSED)


@pytest.mark.parametrize("field", PASSING)
def test_problems_let_every_other_known_field_pass(field: str) -> None:
    assert params({field: "x"}) == []


def test_a_field_is_refused_or_passes_not_both() -> None:
    assert not set(REFUSED) & set(PASSING)
    assert all(reason and reason[0].islower() for reason in (*REFUSED.values(), *PASSING.values()))


#: Request models of the engine that batch lines reach, by file.
MODELS = {
    "openai/chat_completion/protocol.py": ("ChatCompletionRequest", "BatchChatCompletionRequest"),
    "openai/completion/protocol.py": ("CompletionRequest",),
    "openai/responses/protocol.py": ("ResponsesRequest",),
    "anthropic/protocol.py": ("AnthropicMessagesRequest",),
    "pooling/base/protocol.py": ("Mixin",),
    "pooling/embed/protocol.py": ("EmbeddingCompletionRequest", "EmbeddingChatRequest"),
    "pooling/scoring/protocol.py": (
        "ScoringRequestMixin",
        "ScoreDataRequest",
        "ScoreTextRequest",
        "ScoreQueriesDocumentsRequest",
        "ScoreQueriesItemsRequest",
        "RerankRequest",
    ),
    "speech_to_text/transcription/protocol.py": ("TranscriptionRequest",),
    "speech_to_text/translation/protocol.py": ("TranslationRequest",),
}


def engine_fields() -> Iterator[tuple[str, str]]:
    """(model, field) of the installed engine, read off its source: importing it takes seconds and gigabytes."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        without("vLLM is not installed")
    entrypoints = Path(spec.origin).parent / "entrypoints"
    for path, names in MODELS.items():
        classes = [node for node in ast.parse((entrypoints / path).read_text()).body if isinstance(node, ast.ClassDef)]
        for name in names:
            assert any(one.name.endswith(name) for one in classes), f"{path} has no {name}"
        for one in classes:
            if one.name.endswith(names):
                for node in one.body:
                    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                        yield one.name, node.target.id


def test_every_field_of_the_engine_is_on_one_of_the_lists() -> None:
    found = [(model, field) for model, field in engine_fields() if not field.startswith("_")]
    assert len(found) > 200
    assert [(model, field) for model, field in found if field not in REFUSED and field not in PASSING] == []


def test_the_page_tells_every_field_and_its_reason() -> None:
    page = (Path(__file__).parents[3] / "docs" / "fields.md").read_text(encoding="utf-8")
    rows = {line for line in page.splitlines() if line.startswith("| `")}
    for fields in (REFUSED, PASSING):
        assert {f"| `{name}` | {reason} |" for name, reason in fields.items()} <= rows
    inside = {f"| `{outer}.{name}` | {why} |" for outer, names in REFUSED_INSIDE.items() for name, why in names.items()}
    assert inside <= rows
    assert len(rows) == len(REFUSED) + len(PASSING) + len(inside) + 1, "and `tools`, and nothing else"
