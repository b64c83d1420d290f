"""Quotas: what a project may use, who is asked, and what a refusal says (openai-contract 3.3).

The limits of the call that is being answered are a context variable, so every path that makes something is bound by
them, also one that knows nothing but the project. Where nobody set them, as in a worker, there are none.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from app.domain.quota import UNLIMITED, Quotas, Use
from app.errors import QuotaExceeded, RateLimited
from app.store import quotas
from app.store.db import Database, Write

#: A batch ends when it ends; asking again about so often finds out soon enough and costs little.
RETRY_SECONDS = 30

_in_force: ContextVar[Quotas] = ContextVar("quotas_in_force", default=UNLIMITED)


def in_force() -> Quotas:
    """The limits of the call that is being answered."""
    return _in_force.get()


@contextmanager
def enforced(limits: Quotas) -> Generator[None]:
    """What is made inside is made within `limits`."""
    token = _in_force.set(limits)
    try:
        yield
    finally:
        _in_force.reset(token)


async def admit_batch(tx: Write, project_id: str) -> Quotas:
    """One more batch in this transaction; returns the limits it is made under. Raises RateLimited.

    How many requests it holds is not known yet: the validation asks again, before any of them runs.
    """
    limits = in_force()
    if limits.open_batches is None and limits.queued_requests is None:
        return limits
    await quotas.lock(tx, project_id)
    used = await quotas.use(tx, project_id, stored=False)
    for name, limit, now in (
        ("open batches", limits.open_batches, used.open_batches),
        ("queued requests", limits.queued_requests, used.queued_requests),
    ):
        if limit is not None and now >= limit:
            raise RateLimited(
                f"Rate limit reached in project {project_id} on {name}: Limit {limit}, Used {now}, Requested 1. "
                f"Please try again in {RETRY_SECONDS}s, or once some batches have ended.",
                retry_after_seconds=RETRY_SECONDS,
            )
    return limits


async def admit_bytes(tx: Write, project_id: str, more_bytes: int) -> None:
    """So many more stored bytes in this transaction. Raises QuotaExceeded."""
    limit = in_force().stored_bytes
    if limit is None:
        return
    await quotas.lock(tx, project_id)
    used = (await quotas.use(tx, project_id)).stored_bytes
    if used + more_bytes > limit:
        raise _no_room(project_id, limit=limit, used=used, wanted=more_bytes)


async def check_bytes(database: Database, project_id: str, wanted_bytes: int) -> None:
    """An early answer, before bytes are sent; `admit_bytes` decides. Raises QuotaExceeded, Unavailable."""
    limit = in_force().stored_bytes
    if limit is None:
        return
    async with database.read() as tx:
        used = (await quotas.use(tx, project_id)).stored_bytes
    if used + wanted_bytes > limit:
        raise _no_room(project_id, limit=limit, used=used, wanted=wanted_bytes)


def _no_room(project_id: str, *, limit: int, used: int, wanted: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"You exceeded the quota of project {project_id} on stored bytes: Limit {limit}, Used {used}, "
        f"Requested {wanted}. Please delete files that are no longer needed, then try again.",
        retry_after_seconds=120,
        code="insufficient_quota",
    )


class QuotaService:
    """What a project uses, for whoever asks."""

    def __init__(self, *, database: Database) -> None:
        self._database = database

    async def use(self, project_id: str) -> Use:
        """Everything but the calls of the API. Raises Unavailable."""
        async with self._database.read() as tx:
            return await quotas.use(tx, project_id)
