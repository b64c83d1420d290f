"""Downloads on a user's behalf: images, audio and video that a request names by URL.

The rules hold for what a name resolves to, at the first request and at each redirect, and the connection goes to the
very address that was judged, so that a name cannot change its mind in between. No proxy, no cookies, no credentials of
this machine. `data:` URLs carry their bytes themselves.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import httpx2

from app.domain.address import is_public
from app.domain.speech import SpeechRequest
from app.errors import InvalidRequest

_PORTS = {"http": 80, "https": 443}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Worth another try: the server is busy, or in trouble of its own.
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_TRIES = 3
_PAUSE_SECONDS = 0.3
_SHOWN_CHARS = 200
_DATA = re.compile(r"data:(?P<type>[^;,]*)(?P<parameters>(?:;[^;,]*)*?)(?P<base64>;base64)?,", re.IGNORECASE)
_EXTENSION = re.compile(r"\.([A-Za-z0-9]{1,8})(?:[?#]|$)")


@dataclass(frozen=True, slots=True)
class MediaRules:
    """What may be downloaded.

    With `allowed_domains`, only from these hosts and their subdomains. `private_hosts` may lie at addresses that are
    not of the open internet; no others may.
    """

    allowed_domains: frozenset[str] = frozenset()
    private_hosts: frozenset[str] = frozenset()
    max_bytes: int = 64 << 20
    timeout_seconds: float = 30.0
    redirects_max: int = 3


class _Passing(Exception):
    """The download failed in a way that time may heal."""


async def fetch(url: str, *, rules: MediaRules, max_bytes: int | None = None) -> bytes:
    """The bytes behind `url`, at most `max_bytes` and those of `rules`. Raises InvalidRequest, whatever went wrong."""
    limit_bytes = rules.max_bytes if max_bytes is None else min(max_bytes, rules.max_bytes)
    if url[:5].lower() == "data:":
        return await asyncio.to_thread(_from_data, url, limit_bytes)
    try:
        async with asyncio.timeout(rules.timeout_seconds):
            for again in range(_TRIES):
                try:
                    return await _download(url, rules, limit_bytes)
                except _Passing as exc:
                    if again == _TRIES - 1:
                        raise _refused(f"{_shown(url)} cannot be downloaded: {exc}.") from exc
                    await asyncio.sleep(_PAUSE_SECONDS * 4**again)
    except TimeoutError as exc:
        message = f"{_shown(url)} cannot be downloaded: no answer within {rules.timeout_seconds:g} seconds."
        raise _refused(message) from exc
    raise AssertionError("the last try returns or raises")


async def form_of(request: SpeechRequest, *, rules: MediaRules) -> tuple[bytes, str]:
    """(body, content type) of the multipart form that an audio endpoint takes. Raises InvalidRequest."""
    audio = await fetch(request.file_url, rules=rules)
    boundary = secrets.token_hex(24)
    parts = [
        b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        % (boundary.encode(), _quoted(name), value.encode())
        for name, value in request.fields
    ]
    parts.append(
        b'--%b\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n" % (boundary.encode(), _filename(request.file_url))
    )
    parts += [audio, b"\r\n--%b--\r\n" % boundary.encode()]
    return b"".join(parts), f"multipart/form-data; boundary={boundary}"


def _quoted(name: str) -> bytes:
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A").encode()


def _filename(url: str) -> bytes:
    """A name with the audio's own ending, where the URL shows one."""
    if (data := _DATA.match(url)) is not None:
        kind = data["type"].rpartition("/")[2].removeprefix("x-")
        return f"audio.{kind}".encode() if kind.isalnum() else b"audio"
    ending = _EXTENSION.search(url.rpartition("/")[2])
    return f"audio.{ending[1]}".encode() if ending else b"audio"


def _from_data(url: str, limit_bytes: int) -> bytes:
    head = _DATA.match(url)
    if head is None:
        raise _refused("A data: URL has the form data:TYPE;base64,DATA.")
    data = url[head.end() :]
    try:
        content = base64.b64decode(data, validate=True) if head["base64"] else unquote_to_bytes(data)
    except (binascii.Error, ValueError) as exc:
        raise _refused("A data: URL does not hold valid base64.") from exc
    if len(content) > limit_bytes:
        raise _too_large("The data: URL", limit_bytes)
    return content


async def _download(url: str, rules: MediaRules, limit_bytes: int) -> bytes:
    """One try. Raises _Passing, InvalidRequest."""
    for _ in range(rules.redirects_max + 1):
        target = _parsed(url, rules)
        address = await _judged(target, rules)
        async with _response(target, address, rules) as response:
            if response.status_code in _REDIRECTS and "location" in response.headers:
                try:
                    url = str(target.join(response.headers["location"]))
                except httpx2.InvalidURL as exc:
                    raise _refused(f"{_shown(url)} redirects to what is no URL.") from exc
                continue
            if response.status_code in _PASSING:
                raise _Passing(f"status {response.status_code}")
            if response.status_code != 200:
                raise _refused(f"{_shown(url)} cannot be downloaded: status {response.status_code}.")
            return await _read(response, url, limit_bytes)
    raise _refused(f"{_shown(url)} is behind more than {rules.redirects_max} redirects.")


def _parsed(url: str, rules: MediaRules) -> httpx2.URL:
    try:
        target = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError) as exc:
        raise _refused(f"{_shown(url)} is not a valid URL.") from exc
    if target.scheme not in _PORTS or not target.host:
        raise _refused(f"{_shown(url)} cannot be downloaded: only data:, http: and https: URLs are.")
    if target.userinfo:
        raise _refused(f"{target.host} cannot be asked: a media URL carries no user or password.")
    host = _name(target.host)
    named = any(host == domain or host.endswith(f".{domain}") for domain in rules.allowed_domains)
    if rules.allowed_domains and not named:
        raise _refused(f"{host} is not one of the domains that media may come from.")
    return target


async def _judged(target: httpx2.URL, rules: MediaRules) -> str:
    """An address of the target's host that may be called. Raises _Passing when its name cannot be resolved."""
    host = _name(target.host)
    port = target.port or _PORTS[target.scheme]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise _Passing(f"{host} cannot be resolved") from exc
    addresses = [str(entry[4][0]) for entry in found]
    if host in rules.private_hosts:
        return addresses[0]
    # All of them: a name with one public and one private address is a trick, or will be.
    if not addresses or not all(is_public(address) for address in addresses):
        raise _refused(f"{host} lies at an address that is not of the open internet; such addresses are not called.")
    return addresses[0]


@asynccontextmanager
async def _response(target: httpx2.URL, address: str, rules: MediaRules) -> AsyncGenerator[httpx2.Response]:
    """The answer of `address` for `target`; TLS asks for the certificate of the name, not of the address."""
    request = httpx2.Request(
        "GET",
        target.copy_with(host=address, fragment=None),
        headers={"host": target.netloc.decode("ascii"), "accept": "*/*", "user-agent": "batchyard"},
        extensions={
            "sni_hostname": target.raw_host.decode("ascii"),
            "timeout": httpx2.Timeout(rules.timeout_seconds).as_dict(),
        },
    )
    async with httpx2.AsyncHTTPTransport(trust_env=False) as transport:
        try:
            response = await transport.handle_async_request(request)
        except httpx2.TransportError as exc:
            raise _Passing(f"{target.host} does not answer ({type(exc).__name__})") from exc
        try:
            yield response
        finally:
            await response.aclose()


async def _read(response: httpx2.Response, url: str, limit_bytes: int) -> bytes:
    declared = response.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit_bytes:
        raise _too_large(_shown(url), limit_bytes)
    blocks: list[bytes] = []
    taken_bytes = 0
    try:
        # As sent: a compressed answer could grow without limit.
        async for block in response.aiter_raw():
            taken_bytes += len(block)
            if taken_bytes > limit_bytes:
                raise _too_large(_shown(url), limit_bytes)
            blocks.append(block)
    except httpx2.TransportError as exc:
        raise _Passing(f"the connection broke ({type(exc).__name__})") from exc
    return b"".join(blocks)


def _name(host: str) -> str:
    return host.rstrip(".").lower()


def _shown(url: str) -> str:
    """The URL without its query, which may hold a key."""
    return url.partition("?")[0][:_SHOWN_CHARS]


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_media_url")


def _too_large(what: str, limit_bytes: int) -> InvalidRequest:
    return InvalidRequest(f"{what} is larger than the limit of {limit_bytes} bytes.", code="media_too_large")
