"""The error tree. One handler in http renders it; nothing else turns an error into a response.

BatchyardError
├── InvalidRequest            400  the request is wrong; never retried
│   └── TooLarge              400  a size limit (openai-contract 3.3: `File is too large.`)
├── Unauthenticated           401  no key, or a wrong one
├── PermissionDenied          403
├── NotFound                  404  also: belongs to another project
├── MethodNotAllowed          405
├── Conflict                  409  the object's state forbids it
│   ├── StateConflict         409  a guarded transition matched no row
│   └── IllegalTransition     409  no such edge in the state machine
├── BodyTooLarge              413  refused before the body is read
├── RateLimited               429  retriable after `retry_after_seconds`
│   └── QuotaExceeded         429  time alone does not heal it
├── Internal                  500
│   ├── LeaseLost             500  worker only: authority over a chunk or batch is gone
│   ├── BlobMissing           500  bytes that the database knows are not in the blob store
│   ├── EngineDead            500  worker only: the line has no answer yet, run it again
│   └── SettingsInvalid       500  the set-up is wrong; the process does not start
└── Unavailable               503  retriable: database, blob store or engine does not answer
    ├── StorageFull           503  no room for bytes
    └── EngineBusy            503  worker only: the engine refused admission; later, never an error row
"""

from __future__ import annotations

from typing import ClassVar


class BatchyardError(Exception):
    """Base of every error this service raises on purpose. `message` is safe to show to the client."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param

    def headers(self) -> dict[str, str]:
        """Response headers this error asks for."""
        return {}


class InvalidRequest(BatchyardError):
    """The client's request is wrong."""

    status = 400
    type = "invalid_request_error"


class TooLarge(InvalidRequest):
    """A body or file is above its limit; OpenAI answers 400 here (openai-contract 3.3)."""


class Unauthenticated(BatchyardError):
    """No API key, or one that is not known (openai-contract 3.3)."""

    status = 401
    type = "invalid_request_error"


class PermissionDenied(BatchyardError):
    """The key is known and may not do this."""

    status = 403
    type = "invalid_request_error"


class NotFound(BatchyardError):
    """No such object in the caller's project."""

    status = 404
    type = "invalid_request_error"


class MethodNotAllowed(BatchyardError):
    """Known path, wrong method."""

    status = 405
    type = "invalid_request_error"


class Conflict(BatchyardError):
    """The object's state forbids the request. The SDK retries 409 unless told not to (openai-contract 8.3)."""

    status = 409
    type = "invalid_request_error"

    def headers(self) -> dict[str, str]:
        return {"x-should-retry": "false"}


class StateConflict(Conflict):
    """A guarded UPDATE matched no row: the object was not in a state that allows the transition."""


class IllegalTransition(Conflict):
    """The state machine has no such edge."""


class BodyTooLarge(BatchyardError):
    """Refused by Content-Length or while counting, before the body is kept."""

    status = 413
    type = "invalid_request_error"


class RateLimited(BatchyardError):
    """A limit that time heals. `retry_after_seconds` is 1..120 (openai-contract 8.3)."""

    status = 429
    type = "requests"
    retriable = True

    def __init__(
        self,
        message: str,
        *,
        retry_after_seconds: int,
        code: str | None = "rate_limit_exceeded",
        param: str | None = None,
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.retry_after_seconds = min(120, max(1, retry_after_seconds))

    def headers(self) -> dict[str, str]:
        return {"retry-after": str(self.retry_after_seconds)}


class QuotaExceeded(RateLimited):
    """A limit that somebody must make room under; the SDK is told not to retry (openai-contract 3.3, 8.3)."""

    type = "insufficient_quota"
    retriable = False

    def headers(self) -> dict[str, str]:
        return super().headers() | {"x-should-retry": "false"}


class Internal(BatchyardError):
    """Our fault."""


class LeaseLost(Internal):
    """A fenced write matched no row: another worker may own the chunk or batch now. Drop it, write nothing more."""


class BlobMissing(Internal):
    """The blob store has no bytes under a key that the database names."""


class EngineDead(Internal):
    """The engine died with this request in flight: there is no answer, and the line may be run again.

    `killed`: it did not die by itself; somebody outside (an operator, the kernel) ended it, as far as can be told.
    """

    retriable = True

    def __init__(self, message: str, *, killed: bool = False) -> None:
        super().__init__(message)
        self.killed = killed


class SettingsInvalid(Internal):
    """The settings contradict each other or the machine; the message says which knob to turn."""


class Unavailable(BatchyardError):
    """Something the request needs does not answer now."""

    status = 503
    type = "server_error"
    retriable = True

    def __init__(
        self, message: str, *, retry_after_seconds: int = 5, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.retry_after_seconds = min(120, max(1, retry_after_seconds))

    def headers(self) -> dict[str, str]:
        return {"retry-after": str(self.retry_after_seconds)}


class StorageFull(Unavailable):
    """The blob store or the database has no room left."""


class EngineBusy(Unavailable):
    """The engine refused admission for now."""
