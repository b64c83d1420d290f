"""API keys: who a key is, and their making and ending.

Configured keys (`server.api_keys`) belong to the default project and are known without the database. Stored ones are
looked up by digest, and every answer, also `unknown`, is remembered for `CACHE_SECONDS`: a revoked key is refused
everywhere within that time.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from time import monotonic

import structlog

from app.domain import key as keys_of
from app.domain.id import new_key_id
from app.domain.key import ApiKey, Caller
from app.domain.project import DEFAULT_PROJECT, checked
from app.domain.quota import QUOTA_NAMES, Quotas
from app.errors import InvalidRequest, NotFound
from app.store import keys
from app.store.db import Database

log = structlog.get_logger()

CACHE_SECONDS = 3.0
_CACHED_MAX = 4096
_NAME_MAX_CHARS = 256
_LIMIT_MAX = (1 << 63) - 1


class KeyService:
    """Answers for one process. `configured` are the keys of the settings, `quotas` the limits of the settings."""

    def __init__(self, *, database: Database, configured: Sequence[str] = (), quotas: Quotas | None = None) -> None:
        self._database = database
        self._configured = [keys_of.digest(key) for key in configured]
        self._quotas = quotas or Quotas()
        self._default = Caller(quotas=self._quotas)
        # Apart, so that made-up keys push out nobody's real one.
        self._known = _Cache()
        self._unknown = _Cache()
        # One lookup at a time: a flood of wrong keys must not take every connection from the rest.
        self._turn = asyncio.Lock()
        self._made = False
        self._made_asked_at = float("-inf")

    async def required(self) -> bool:
        """Whether a caller must have a key: one is configured, or one was ever made, revoked ones included.

        Raises Unavailable.
        """
        if self._configured or self._made:
            return True
        if monotonic() - self._made_asked_at > CACHE_SECONDS:
            async with self._database.read() as tx:
                self._made = await keys.exist(tx)
            self._made_asked_at = monotonic()
        return self._made

    def keyless(self) -> Caller:
        """The caller where no key is asked for."""
        return self._default

    async def caller(self, key: str) -> Caller | None:
        """Who `key` is; None for a wrong one. Raises Unavailable when only the database could tell."""
        digest = keys_of.digest(key)
        known = False
        for candidate in self._configured:  # all of them: the time must not tell which one came close
            known |= hmac.compare_digest(digest, candidate)
        if known:
            return Caller(key_id=f"configured-{digest[:8]}", quotas=self._quotas)
        if not keys_of.is_plausible(key):
            return None
        return await self._stored(digest)

    async def _stored(self, digest: str) -> Caller | None:
        if self._cached(digest):
            return self._known.get(digest)
        async with self._turn:
            if not self._cached(digest):  # somebody may have asked for this very key meanwhile
                asked_at = monotonic()
                async with self._database.read() as tx:
                    found = await keys.by_digest(tx, digest)
                if found is None:
                    self._unknown.put(digest, self._default, at=asked_at)
                    return None
                self._known.put(digest, self._caller_of(found), at=asked_at)
                return self._caller_of(found)
        return self._known.get(digest)

    def _cached(self, digest: str) -> bool:
        return self._known.get(digest) is not None or self._unknown.get(digest) is not None

    def _caller_of(self, key: ApiKey) -> Caller:
        own = "requests_per_minute" in key.quotas
        return Caller(
            project_id=key.project_id,
            key_id=key.id,
            quotas=self._quotas.changed(key.quotas),
            bucket=key.id if own else key.project_id,
        )

    async def create(
        self, *, project_id: str = DEFAULT_PROJECT, name: str = "", quotas: Mapping[str, int] | None = None
    ) -> tuple[str, ApiKey]:
        """A new key and what is known of it; the key itself is nowhere else. `quotas`: its own limits, 0 for none.

        Raises InvalidRequest, Unavailable.
        """
        quotas = quotas or {}
        if len(name) > _NAME_MAX_CHARS or not name.isprintable():
            raise InvalidRequest(f"A key's name has at most {_NAME_MAX_CHARS} printable characters.")
        for quota, limit in quotas.items():
            if quota not in QUOTA_NAMES or not 0 <= limit <= _LIMIT_MAX:
                raise InvalidRequest(f"The quota {quota} cannot be {limit}: write 0 for no limit, or more.")
        key = keys_of.new_key()
        async with self._database.write() as tx:
            made = await keys.create(
                tx,
                id=new_key_id(),
                project_id=checked(project_id),
                name=name,
                digest=keys_of.digest(key),
                hint=keys_of.hint(key),
                quotas=quotas,
            )
        return key, made

    async def every(self, *, project_id: str | None = None) -> list[ApiKey]:
        """All keys, or those of one project. Raises Unavailable."""
        async with self._database.read() as tx:
            return await keys.every(tx, project_id=project_id)

    async def revoke(self, key_id: str) -> ApiKey:
        """End a key: refused everywhere within CACHE_SECONDS. Raises NotFound, Unavailable."""
        async with self._database.write() as tx:
            ended = await keys.revoke(tx, key_id)
        if ended is None:
            raise NotFound(f"No key with id '{key_id[:128]}'; `batchyard keys list` shows them.")
        return ended


class _Cache:
    """Callers by digest for CACHE_SECONDS, the most recent `_CACHED_MAX` of them."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[Caller, float]] = OrderedDict()

    def get(self, digest: str) -> Caller | None:
        caller, until = self._entries.get(digest, (None, 0.0))
        return caller if until > monotonic() else None

    def put(self, digest: str, caller: Caller, *, at: float) -> None:
        """`at` is when the question was asked, so that a slow answer does not count as a fresh one."""
        self._entries[digest] = (caller, at + CACHE_SECONDS)
        self._entries.move_to_end(digest)
        while len(self._entries) > _CACHED_MAX:
            self._entries.popitem(last=False)
