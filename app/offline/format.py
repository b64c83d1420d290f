"""The rows of the result files, in two dialects.

`vllm`: one file, rows as vLLM's own run-batch writes them; an error stands in `error`, and `response.body` is null.
`openai`: two files, rows as the hosted service writes them (openai-contract 5.1).
"""

from __future__ import annotations

import json
from typing import Literal, Protocol

from app.domain.result import Outcome, answered, random_hex, settled, unanswered
from app.domain.usage import NO_USAGE, usage_of

Name = Literal["vllm", "openai"]


class Rows(Protocol):
    """Writes one row for each way a line can end."""

    def answered(self, custom_id: str, *, status: int, body: bytes) -> Outcome:
        """The engine replied."""

    def unanswered(self, custom_id: str | None, *, code: str, message: str) -> Outcome:
        """The line never reached the engine, or got no answer from it."""


class OpenaiRows:
    """Rows as the hosted service writes them."""

    def answered(self, custom_id: str, *, status: int, body: bytes) -> Outcome:
        return answered(custom_id, status=status, body=body)

    def unanswered(self, custom_id: str | None, *, code: str, message: str) -> Outcome:
        return unanswered(custom_id, code=code, message=message)


class VllmRows:
    """Rows as vLLM's run-batch writes them."""

    def answered(self, custom_id: str, *, status: int, body: bytes) -> Outcome:
        status, strict, head = settled(status, body)
        if 200 <= status < 300:
            row = _vllm_row(custom_id, status=status, body=strict, error=b"null")
            return Outcome(row, completed=True, usage=usage_of(head), model=head.model)
        return Outcome(_vllm_row(custom_id, status=status, body=b"null", error=strict), completed=False, usage=NO_USAGE)

    def unanswered(self, custom_id: str | None, *, code: str, message: str) -> Outcome:
        # A sentence, as in vLLM's own rows for lines that it does not run; it has no codes.
        row = _vllm_row(custom_id, status=_STATUS.get(code, 400), body=b"null", error=json.dumps(message).encode())
        return Outcome(row, completed=False)


_STATUS = {"request_timeout": 504}


def _vllm_row(custom_id: str | None, *, status: int, body: bytes, error: bytes) -> bytes:
    head = b'{"id":"vllm-%s","custom_id":%s,' % (random_hex(32), json.dumps(custom_id).encode())
    response = b'"response":{"status_code":%d,"request_id":"vllm-batch-%s","body":%s},' % (status, random_hex(32), body)
    return b'%s%s"error":%s}\n' % (head, response, error)


def rows_of(name: Name) -> Rows:
    """The writer of a dialect."""
    return VllmRows() if name == "vllm" else OpenaiRows()
