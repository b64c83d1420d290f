"""Multipart uploads that nobody will finish: a process that was killed leaves its parts behind, unseen and paid for.

The client library cannot list or abort them, so three plain S3 calls stand here: ListMultipartUploads, ListParts,
AbortMultipartUpload. They are signed with the static keys of the environment; with credentials of another kind
(a machine's role) nothing is swept here, and a lifecycle rule of the bucket must do it (docs/operations.md).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

import httpx2
import structlog

from app.errors import Unavailable

log = structlog.get_logger()

_ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_DEFAULT_REGION = "us-east-1"
_ANSWER_MAX_BYTES = 8 << 20  # a page of a listing is at most 1,000 entries


@dataclass(frozen=True, slots=True)
class _Keys:
    access: str
    secret: str
    token: str | None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> _Keys | None:
        access, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
        return cls(access, secret, environ.get("AWS_SESSION_TOKEN")) if access and secret else None


@dataclass(frozen=True, slots=True)
class _Upload:
    name: str
    id: str
    begun: datetime


class OpenUploads:
    """The multipart uploads under way below `prefix` of a bucket. See app.blobs.s3.Bucket for the address."""

    def __init__(
        self,
        *,
        name: str,
        prefix: str,
        endpoint: str | None,
        region: str | None,
        path_style: bool,
        timeout_seconds: float,
    ) -> None:
        self._region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
        amazon = f"https://{'' if path_style else f'{name}.'}s3.{self._region}.amazonaws.com"
        address = endpoint or _endpoint_of(os.environ) or amazon
        self._address = f"{address.rstrip('/')}/{name}" if path_style else address.rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._timeout_seconds = timeout_seconds
        self._told = False

    async def abort(self, *, idle_seconds: float) -> int:
        """Abort those that gained no part for so long, by the store's clock; returns how many. Raises Unavailable."""
        keys = _Keys.of(os.environ)
        if keys is None:
            if not self._told:
                self._told = True
                log.info("uploads_left_to_lifecycle_rule")
            return 0
        aborted = 0
        async with httpx2.AsyncClient(timeout=self._timeout_seconds) as http:
            async for upload, now in self._open(http, keys):
                if (now - upload.begun).total_seconds() < idle_seconds:
                    continue
                if (now - await self._last_part(http, keys, upload)).total_seconds() < idle_seconds:
                    continue
                await self._ask(http, keys, "DELETE", upload.name, {"uploadId": upload.id})
                aborted += 1
        return aborted

    async def _open(self, http: httpx2.AsyncClient, keys: _Keys) -> AsyncGenerator[tuple[_Upload, datetime]]:
        """Each open upload, and the store's time when it was listed."""
        marker: dict[str, str] = {}
        while True:
            query = {"uploads": "", "prefix": self._prefix, **marker}
            page, now = await self._ask(http, keys, "GET", "", query)
            for entry in page.iterfind("Upload"):
                name, upload_id = entry.findtext("Key", ""), entry.findtext("UploadId", "")
                if name.startswith(self._prefix) and upload_id:
                    yield _Upload(name, upload_id, _moment(entry.findtext("Initiated"), otherwise=now)), now
            following = page.findtext("NextKeyMarker", "")
            if page.findtext("IsTruncated") != "true" or not following:
                return
            marker = {"key-marker": following, "upload-id-marker": page.findtext("NextUploadIdMarker", "")}

    async def _last_part(self, http: httpx2.AsyncClient, keys: _Keys, upload: _Upload) -> datetime:
        """When the newest part arrived; the beginning where there is none. One page holds more parts than we write."""
        page, now = await self._ask(http, keys, "GET", upload.name, {"uploadId": upload.id})
        arrivals = [_moment(part.findtext("LastModified"), otherwise=now) for part in page.iterfind("Part")]
        return max([upload.begun, *arrivals])

    async def _ask(
        self, http: httpx2.AsyncClient, keys: _Keys, method: str, name: str, query: Mapping[str, str]
    ) -> tuple[ElementTree.Element, datetime]:
        """The answer, empty for an upload that is gone already, and the store's time."""
        url = f"{self._address}/{quote(name, safe='/-_.~')}" if name else self._address
        headers = _signed(keys, region=self._region, method=method, url=url, query=query, at=datetime.now(UTC))
        try:
            reply = await http.request(method, f"{url}?{_canonical(query)}", headers=headers)
        except httpx2.HTTPError as exc:
            raise Unavailable("The blob store does not answer.") from exc
        if not reply.is_success and not (reply.status_code == 404 and name):
            raise Unavailable(f"The blob store refuses: status {reply.status_code}.")
        now = _http_date(reply.headers.get("date"))
        if not reply.is_success or not reply.content or len(reply.content) > _ANSWER_MAX_BYTES:
            return ElementTree.Element("nothing"), now
        text = re.sub(r'\sxmlns="[^"]*"', "", reply.text, count=1)  # some stores set it, some do not
        try:
            return ElementTree.fromstring(text), now  # noqa: S314 - expat 2.4.1 and later bound entities
        except ElementTree.ParseError as exc:
            raise Unavailable("The blob store answers what nobody understands.") from exc


def _endpoint_of(environ: Mapping[str, str]) -> str | None:
    """The variables that the client library reads, too."""
    return environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or environ.get("AWS_ENDPOINT")


def _moment(text: str | None, *, otherwise: datetime) -> datetime:
    """An ISO time; what cannot be read counts as just now, so that nothing is aborted for it."""
    try:
        found = datetime.fromisoformat((text or "").replace("Z", "+00:00"))
    except ValueError:
        return otherwise
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _http_date(text: str | None) -> datetime:
    try:
        return parsedate_to_datetime(text or "")
    except ValueError:
        return datetime.now(UTC)


def _canonical(query: Mapping[str, str]) -> str:
    return "&".join(f"{quote(name, safe='-_.~')}={quote(query[name], safe='-_.~')}" for name in sorted(query))


def _signed(
    keys: _Keys, *, region: str, method: str, url: str, query: Mapping[str, str], at: datetime
) -> dict[str, str]:
    """Headers of a request without a body, signed as AWS Signature Version 4 says."""
    stamp, day = at.strftime("%Y%m%dT%H%M%SZ"), at.strftime("%Y%m%d")
    parts = urlsplit(url)
    headers = {"host": parts.netloc, "x-amz-content-sha256": _EMPTY_SHA256, "x-amz-date": stamp}
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join([method, parts.path or "/", _canonical(query), lines, names, _EMPTY_SHA256])
    scope = f"{day}/{region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    secret = f"AWS4{keys.secret}".encode()
    for word in (day, region, "s3", "aws4_request"):
        secret = hmac.digest(secret, word.encode(), "sha256")
    signature = hmac.digest(secret, f"{_ALGORITHM}\n{stamp}\n{scope}\n{digest}".encode(), "sha256").hex()
    headers["authorization"] = (
        f"{_ALGORITHM} Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers
