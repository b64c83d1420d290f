"""Quotas: what a project may use at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits; None: none. `enqueued_tokens` are estimates (`app.domain.tokens`)."""

    open_batches: int | None = None
    queued_requests: int | None = None
    enqueued_tokens: int | None = None
    stored_bytes: int | None = None
    requests_per_minute: int | None = None

    def changed(self, limits: Mapping[str, int]) -> Quotas:
        """With `limits` in place of those of the same names. Settings and keys write 0 for no limit."""
        return replace(self, **{name: limit or None for name, limit in limits.items()})


QUOTA_NAMES = tuple(field.name for field in fields(Quotas))
UNLIMITED = Quotas()


@dataclass(frozen=True, slots=True)
class Use:
    """What a project uses now, by the names of Quotas. Enqueued are the tokens of batches that passed validation."""

    open_batches: int
    queued_requests: int
    enqueued_tokens: int
    stored_bytes: int
