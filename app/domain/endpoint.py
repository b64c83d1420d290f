"""The endpoints of a model server, and what a batch line to each of them must state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
CONVERSATIONS = "/v1/chat/completions/batch"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"

#: Endpoints whose requests are forms with an audio file; a batch line to them names the file by `file_url`.
SPEECH = frozenset({TRANSCRIPTIONS, TRANSLATIONS})

_SCORE = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))
_RERANK = (("query", "documents"),)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint. A body must state all fields of one of `forms`; the first form is the usual one."""

    name: str
    forms: tuple[tuple[str, ...], ...] = ((),)


#: Every endpoint a batch may name, OpenAI's own first (openai-contract 1.3). Which of them work is up to the model.
BATCH_ENDPOINTS: Mapping[str, Endpoint] = {
    RESPONSES: Endpoint("Responses"),
    CHAT: Endpoint("Chat Completions", (("messages",),)),
    EMBEDDINGS: Endpoint("Embeddings", (("input",), ("messages",))),
    COMPLETIONS: Endpoint("Completions", (("prompt",), ("prompt_embeds",))),
    "/v1/moderations": Endpoint("Moderations", (("input",),)),
    CONVERSATIONS: Endpoint("Batched Chat Completions", (("messages",),)),
    "/v1/messages": Endpoint("Messages", (("messages", "max_tokens"),)),
    "/v1/score": Endpoint("Score", _SCORE),
    "/score": Endpoint("Score", _SCORE),
    "/v1/rerank": Endpoint("Rerank", _RERANK),
    "/rerank": Endpoint("Rerank", _RERANK),
    "/v2/rerank": Endpoint("Rerank", _RERANK),
    TRANSCRIPTIONS: Endpoint("Transcriptions", (("file_url",),)),
    TRANSLATIONS: Endpoint("Translations", (("file_url",),)),
}
