"""The batch and its state machine (openai-contract 6).

    validating ──bad file──► failed
        │ │ok
        │ └──► in_progress ──all lines ended──► finalizing ──► completed
        │        │    └──deadline passed, rest written off──► expired
        └─cancel─┴──► cancelling ──► cancelled

`failed` means that validation failed: a batch whose every request failed is `completed`. A batch in `finalizing` has
nothing left to cancel or to expire; a cancel that arrives there is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from app.domain.chunk import NO_TALLY, Tally
from app.errors import IllegalTransition


class BatchStatus(StrEnum):
    """Statuses on the wire; the same words stand in the SQL CHECK."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


_S = BatchStatus

TRANSITIONS: Mapping[BatchStatus, frozenset[BatchStatus]] = {
    _S.VALIDATING: frozenset({_S.FAILED, _S.IN_PROGRESS, _S.CANCELLING}),
    _S.IN_PROGRESS: frozenset({_S.FINALIZING, _S.CANCELLING, _S.EXPIRED}),
    _S.FINALIZING: frozenset({_S.COMPLETED}),
    _S.CANCELLING: frozenset({_S.CANCELLED}),
    _S.FAILED: frozenset(),
    _S.COMPLETED: frozenset(),
    _S.EXPIRED: frozenset(),
    _S.CANCELLED: frozenset(),
}

TERMINAL = frozenset(status for status, exits in TRANSITIONS.items() if not exits)

_WINDOW = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_UNIT_SECONDS = {"m": 60, "h": 3600, "d": 86_400}


def window_seconds(text: str) -> int | None:
    """The length of a completion window such as `24h`: a number, then m, h or d. None for anything else."""
    match = _WINDOW.fullmatch(text)
    return None if match is None else int(match[1]) * _UNIT_SECONDS[match[2]]


def sources(to: BatchStatus) -> frozenset[BatchStatus]:
    """The statuses from which `to` can be reached in one step."""
    return frozenset(status for status, exits in TRANSITIONS.items() if to in exits)


@dataclass(frozen=True, slots=True)
class BatchProblem:
    """One entry of `batch.errors.data` (openai-contract 1.3): `line` is physical and 1-based."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a project.

    Times are Unix seconds. `total` is the number of accepted lines; `tally` counts the ended ones.
    `input_found` says whether the project could see the input file when the batch was created.
    `enqueued_tokens` are estimated by the validation; both `…_max` are quotas at creation, None where there was none.
    """

    id: str
    project_id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: BatchStatus
    created_at: int
    expires_at: int
    model: str | None = None
    errors: tuple[BatchProblem, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    total: int = 0
    tally: Tally = NO_TALLY
    metadata: Mapping[str, str] | None = None
    output_expires_after_seconds: int | None = None
    input_found: bool = True
    enqueued_tokens: int | None = None
    enqueued_tokens_max: int | None = None
    queued_requests_max: int | None = None

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL


def timestamp_field(status: BatchStatus) -> str:
    """The name of the field that records when `status` was entered: `created_at` for validating, else `<status>_at`."""
    return "created_at" if status is BatchStatus.VALIDATING else f"{status.value}_at"


def advance(batch: Batch, to: BatchStatus, *, now: int) -> Batch:
    """`batch` in status `to`, entered at `now` (Unix seconds).

    Raises IllegalTransition when the state machine has no such edge.
    """
    if to not in TRANSITIONS[batch.status]:
        raise IllegalTransition(f"A batch with status '{batch.status}' cannot become '{to}'.")
    changes: dict[str, Any] = {timestamp_field(to): now}
    return replace(batch, status=to, **changes)
