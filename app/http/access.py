"""Who may speak: API keys, and for a server without any, callers on this machine that are no web page."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.domain.key import Caller
from app.errors import PermissionDenied, Unauthenticated
from app.service import quotas
from app.service.keys import KeyService

#: Paths, and what is below them, that any caller may have. Everything else asks for a key.
OPEN_PATHS = ("/health", "/ready", "/metrics", "/openapi.json", "/dashboard", "/favicon.ico")

#: Anthropic's clients know these paths only, and send their key as `x-api-key`. Everywhere else there is one way in.
X_API_KEY_PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})

_NO_KEY = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY)."
)


class Authenticate:
    """Names the caller before anything of the body is read: `project_id` and `caller` in the request's state.

    `OpenAI-Organization` and `OpenAI-Project` are accepted and say nothing: the key alone names the project. So a
    client set up for OpenAI works when it changes nothing but its base URL. Within `caller.quotas`, whatever is made.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        caller = await _caller(scope["state"]["services"].keys, scope)
        scope["state"] |= {"caller": caller, "project_id": caller.project_id}
        with quotas.enforced(caller.quotas):
            await self._app(scope, receive, send)


def is_open(path: str) -> bool:
    """Whether `path` asks for no key."""
    return any(path == one or path.startswith(f"{one}/") for one in OPEN_PATHS)


async def _caller(keys: KeyService, scope: Scope) -> Caller:
    """Raises Unauthenticated, PermissionDenied; Unavailable, never a 401, when the database cannot be asked."""
    headers = Headers(scope=scope)
    if not await keys.required():
        check_local(scope, headers)
        return keys.keyless()
    key = _stated(headers, path=scope["path"])
    if not key:
        raise Unauthenticated(_NO_KEY)
    key = key.encode("latin-1").decode("utf-8", "replace")  # the framework reads header bytes as Latin-1
    caller = await keys.caller(key)
    if caller is None:
        raise Unauthenticated(
            f"Incorrect API key provided: {_masked(key)}. Ask whoever runs this server for a key.",
            code="invalid_api_key",
        )
    return caller


def _stated(headers: Headers, *, path: str) -> str:
    """The key that a request states; "" for none. `x-api-key` counts on its paths, when there is no Authorization."""
    values = headers.getlist("authorization")
    if not values and path in X_API_KEY_PATHS:
        values = [f"Bearer {value}" for value in headers.getlist("x-api-key")]
    scheme, _, key = (values[0] if len(values) == 1 else "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _masked(key: str) -> str:
    key = key.encode("ascii", "replace").decode()
    return f"{key[:3]}***{key[-4:]}" if len(key) >= 16 else "***"


def check_local(scope: Scope, headers: Headers) -> None:
    """Raises PermissionDenied unless a program on this machine asks, and no page of somebody's web site.

    A browser on this machine runs pages of strangers, and lets them send uploads here. It says so in `Origin` and
    `Sec-Fetch-Site`; and a stranger's name that points at this machine (DNS rebinding) stands in `Host`.
    """
    client = scope.get("client")
    if client is not None and not _is_loopback(client[0]):
        raise PermissionDenied("Without an API key this server answers callers on its own machine only.")
    hosts = headers.getlist("host")
    host = _name(hosts[0]) if len(hosts) == 1 else None
    if host is None or not _is_loopback(host):
        raise PermissionDenied(
            "Without an API key this server answers to the names of its own machine only, such as localhost."
        )
    origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
    foreign_origin = any(urlsplit(origin).netloc.lower() != hosts[0].lower() for origin in origins)
    if foreign_origin or any(site not in ("same-origin", "none") for site in sites):
        raise PermissionDenied("Without an API key this server does not answer web pages of other sites.")


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    if host.rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
