"""One attempt at one webhook message: resolve, check the address, post to exactly that address, look at the status.

The name is resolved here and the connection goes to an address that was checked, so a name that answers differently a
moment later changes nothing. TLS still verifies the name. Redirects are not followed, proxies of the environment are
not used, and no more than the head of an answer is read.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx2

from app.domain.address import is_public
from app.domain.webhook import headers
from app.errors import InvalidRequest, SettingsInvalid
from app.settings import WebhookSettings

_ADDRESSES_TRIED = 3
_HOST = re.compile(r"[0-9A-Za-z._-]{1,253}|[0-9A-Fa-f:.]+")  # a name, or an IPv6 address without its brackets


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an attempt. `status` is what the receiver answered, None when it did not; `reason` is a word."""

    status: int | None
    reason: str

    @property
    def ok(self) -> bool:
        """Any 2xx (openai-contract 7.3)."""
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class _Attempt:
    url: httpx2.URL
    body: str
    message_id: str
    secrets: Sequence[str]

    def headers(self) -> dict[str, str]:
        timestamp = int(datetime.now(UTC).timestamp())
        return headers(self.body, message_id=self.message_id, timestamp=timestamp, secrets=self.secrets)


class Courier:
    """Makes attempts. Each ends within `webhooks.timeout_seconds`, name resolution included."""

    def __init__(self, settings: WebhookSettings) -> None:
        """Raises SettingsInvalid for a `webhooks.ca_file` that cannot be read."""
        self._settings = settings
        self._client = httpx2.AsyncClient(
            verify=_tls(settings),
            trust_env=False,
            follow_redirects=False,
            timeout=settings.timeout_seconds,
            # A connection is kept by address: another name behind it would be sent what this one was verified for.
            limits=httpx2.Limits(max_keepalive_connections=0),
        )
        # A resolver that hangs takes these threads, not those that everybody uses.
        self._resolvers = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="webhook-dns")

    def check(self, url: str) -> None:
        """Raises InvalidRequest unless `url` may receive webhooks, as far as can be told without asking the DNS."""
        try:
            parsed = httpx2.URL(url)
        except (httpx2.InvalidURL, UnicodeError):
            raise _bad_url("it is not a URL") from None
        if parsed.scheme != "https" and not (parsed.scheme == "http" and self._settings.allow_http):
            raise _bad_url("it must begin with 'https://'")
        host = parsed.raw_host.decode("ascii")
        if not _HOST.fullmatch(host):
            raise _bad_url("it names no host")
        if parsed.port is not None and not 1 <= parsed.port <= 65_535:
            raise _bad_url("its port is out of range")
        if not self._settings.allow_private_addresses and _is_private_literal(host):
            raise _bad_url("its host is not a public address")

    async def deliver(self, url: str, body: str, *, message_id: str, secrets: Sequence[str]) -> Outcome:
        """Post `body` to `url`, signed with each of `secrets`. Never raises for what the receiver does."""
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                return await self._deliver(httpx2.URL(url), body, message_id=message_id, secrets=secrets)
        except (TimeoutError, httpx2.TimeoutException):
            return Outcome(None, "timeout")
        except (httpx2.TransportError, httpx2.InvalidURL, OSError, UnicodeError):
            return Outcome(None, "unreachable")

    async def close(self) -> None:
        """Drop what is under way."""
        await self._client.aclose()
        self._resolvers.shutdown(wait=False, cancel_futures=True)

    async def _deliver(self, url: httpx2.URL, body: str, *, message_id: str, secrets: Sequence[str]) -> Outcome:
        if url.scheme != "https" and not self._settings.allow_http:
            return Outcome(None, "scheme_refused")
        try:
            found = await self._resolve(url)
        except (OSError, UnicodeError):
            return Outcome(None, "no_such_host")
        addresses = [one for one in found if self._settings.allow_private_addresses or is_public(one)]
        if not addresses:
            return Outcome(None, "address_refused")
        addresses = addresses[:_ADDRESSES_TRIED]
        attempt = _Attempt(url, body, message_id, secrets)
        for address in addresses[:-1]:
            # This machine may have no route to addresses of one kind.
            try:
                return await self._post(attempt, address, connect_share=1 / len(addresses))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue
        return await self._post(attempt, addresses[-1])

    async def _resolve(self, url: httpx2.URL) -> list[str]:
        """Every address of the host, once each, in the resolver's order."""
        host, port = url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._resolvers, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(place[0]) for _, _, _, _, place in found))

    async def _post(self, attempt: _Attempt, address: str, *, connect_share: float = 1) -> Outcome:
        seconds = self._settings.timeout_seconds
        request = self._client.build_request(
            "POST",
            attempt.url.copy_with(host=address),
            content=attempt.body.encode("ascii"),
            headers=attempt.headers() | {"host": attempt.url.netloc.decode("ascii"), "connection": "close"},
            timeout=httpx2.Timeout(seconds, connect=seconds * connect_share),
            extensions={"sni_hostname": attempt.url.raw_host.decode("ascii")},
        )
        response = await self._client.send(request, stream=True)
        await response.aclose()
        return Outcome(response.status_code, "answered")


def _tls(settings: WebhookSettings) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if settings.ca_file is not None:
        try:
            context.load_verify_locations(cafile=settings.ca_file)
        except OSError as exc:
            raise SettingsInvalid(f"webhooks.ca_file {settings.ca_file} cannot be used: {exc.strerror}") from exc
    return context


def _is_private_literal(host: str) -> bool:
    """True for `localhost`, and for an address that is not public in any spelling that a resolver takes for one."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    if ":" in host:
        return not is_public(host)
    try:
        # Also 2130706433, 0x7f.1 and 0177.0.0.1.
        return not is_public(socket.inet_ntoa(socket.inet_aton(host)))
    except OSError:
        return False


def _bad_url(why: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid 'url': {why}.", code="invalid_value", param="url")
