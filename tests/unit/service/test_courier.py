from __future__ import annotations

import asyncio
import base64
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.webhooks import BatchCompletedWebhookEvent

from app.domain.id import new_event_id, new_webhook_message_id
from app.domain.webhook import EventType, new_secret, payload
from app.errors import InvalidRequest, SettingsInvalid
from app.service import courier as module
from app.service.courier import Courier, Outcome
from app.settings import WebhookSettings
from tests.receiver import Receiver, make_certificate, receiving

SECRET = new_secret()
BODY = payload(EventType.BATCH_COMPLETED, event_id=new_event_id(), batch_id="batch_1", created_at=1)
OPEN = WebhookSettings(allow_private_addresses=True, allow_http=True)

OpenCourier = Callable[[WebhookSettings], Courier]


@pytest.fixture
async def courier_of() -> AsyncGenerator[OpenCourier]:
    async with AsyncExitStack() as stack:

        def make(settings: WebhookSettings) -> Courier:
            courier = Courier(settings)
            stack.push_async_callback(courier.close)
            return courier

        yield make


@pytest.fixture
def receiver() -> Generator[Receiver]:
    with receiving() as receiver:
        yield receiver


async def send(courier: Courier, url: str, *, secrets: tuple[str, ...] = (SECRET,)) -> Outcome:
    return await courier.deliver(url, BODY, message_id=new_webhook_message_id(), secrets=secrets)


def resolve_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let every name resolve to the first answer, at the next question to the next; the names asked for.

    Stands in for a DNS server: none can be reached from a test.
    """
    asked: list[str] = []
    left = list(answers)

    def answer(host: str, port: int, **options: Any) -> list[Any]:
        asked.append(host)
        addresses = left.pop(0) if len(left) > 1 else left[0]
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port))
            for one in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return asked


async def test_deliver_sends_what_the_sdk_unwraps(courier_of: OpenCourier, receiver: Receiver) -> None:
    outcome = await send(courier_of(OPEN), receiver.url("/hook?x=%2F"))
    assert (outcome, outcome.ok) == (Outcome(200, "answered"), True)
    (request,) = receiver.received
    assert (request.method, request.path, request.body) == ("POST", "/hook?x=%2F", BODY.encode())
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    event = openai.OpenAI(api_key="none").webhooks.unwrap(request.body, request.headers, secret=SECRET)
    assert isinstance(event, BatchCompletedWebhookEvent)
    assert abs(int(request.headers["webhook-timestamp"]) - time.time()) < 10


@pytest.mark.parametrize(
    ("status", "ok"), [(200, True), (204, True), (299, True), (400, False), (410, False), (500, False)]
)
async def test_only_2xx_is_a_delivery(courier_of: OpenCourier, receiver: Receiver, status: int, ok: bool) -> None:
    receiver.status = status
    outcome = await send(courier_of(OPEN), receiver.url())
    assert (outcome.status, outcome.ok) == (status, ok)


async def test_redirect_is_not_followed(courier_of: OpenCourier, receiver: Receiver) -> None:
    with receiving() as elsewhere:
        receiver.status, receiver.headers = 302, {"location": elsewhere.url("/internal")}
        outcome = await send(courier_of(OPEN), receiver.url())
        assert (outcome.status, outcome.ok) == (302, False)
        assert elsewhere.received == []


async def test_receiver_that_is_slow_is_a_timeout(courier_of: OpenCourier, receiver: Receiver) -> None:
    receiver.delay_seconds = 30
    started = time.monotonic()
    outcome = await send(courier_of(OPEN.model_copy(update={"timeout_seconds": 0.3})), receiver.url())
    assert outcome == Outcome(None, "timeout")
    assert time.monotonic() - started < 5


async def test_name_that_takes_too_long_to_resolve_is_a_timeout(
    courier_of: OpenCourier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(1))
    outcome = await send(courier_of(OPEN.model_copy(update={"timeout_seconds": 0.2})), "http://slow.example/")
    assert outcome == Outcome(None, "timeout")


async def test_nobody_listens(courier_of: OpenCourier) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert await send(courier_of(OPEN), f"http://127.0.0.1:{port}/") == Outcome(None, "unreachable")


@asynccontextmanager
async def babbling(answer: bytes) -> AsyncGenerator[str]:
    """A server that reads a little and then says `answer` for ever."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        try:
            while answer:
                writer.write(answer)
                await writer.drain()
        except OSError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


@pytest.mark.parametrize("answer", [b"", b"not http at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"a" * 65_536])
async def test_receiver_that_speaks_no_http_is_unreachable(courier_of: OpenCourier, answer: bytes) -> None:
    async with babbling(answer) as url:
        assert await send(courier_of(OPEN), url) == Outcome(None, "unreachable")


async def test_body_of_an_answer_is_not_read(courier_of: OpenCourier) -> None:
    async with babbling(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n" + b"a" * 1000) as url:
        assert await send(courier_of(OPEN), url) == Outcome(200, "answered")


async def test_credentials_in_the_url_are_sent_as_basic_auth(courier_of: OpenCourier, receiver: Receiver) -> None:
    url = receiver.url().replace("://", "://me:p%40ss@")
    assert (await send(courier_of(OPEN), url)).ok
    told = receiver.received[0].headers
    assert told["authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert told["host"] == f"127.0.0.1:{receiver.port}"


async def test_proxies_of_the_environment_are_not_used(
    courier_of: OpenCourier, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await send(courier_of(OPEN), receiver.url())).ok


# What the resolver makes of each is asked of the machine's own; nothing listens for long enough to be reached.
PRIVATE = [
    "127.0.0.1",
    "127.8.8.8",
    "localhost",
    "[::1]",
    "[::]",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "[fe80::1]",
    "[fd00::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:10.0.0.1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "224.0.0.1",
    "255.255.255.255",
    "2130706433",
    "0x7f000001",
    "127.1",
    "0",
]


@pytest.mark.parametrize("host", PRIVATE)
async def test_private_host_is_refused_when_it_is_named_and_when_it_is_called(
    courier_of: OpenCourier, receiver: Receiver, host: str
) -> None:
    courier = courier_of(WebhookSettings(allow_http=True))
    url = f"http://{host}:{receiver.port}/"
    with pytest.raises(InvalidRequest, match="not a public address") as refused:
        courier.check(url)
    assert refused.value.param == "url"
    # A resolver may not know every spelling; none may lead to a connection.
    outcome = await send(courier, url)
    assert outcome.status is None
    assert outcome.reason in ("address_refused", "no_such_host")
    assert receiver.received == []


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["10.0.0.1", "169.254.169.254"], ["::1"], ["::ffff:127.0.0.1"], ["fe80::1%lo"]]
)
async def test_name_that_resolves_to_private_addresses_is_refused(
    courier_of: OpenCourier, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    resolve_to(monkeypatch, addresses)
    courier = courier_of(WebhookSettings(allow_http=True))
    url = receiver.url(host="innocent.example")
    courier.check(url)
    assert await send(courier, url) == Outcome(None, "address_refused")
    assert receiver.received == []


async def test_connection_goes_to_the_address_that_was_checked(
    courier_of: OpenCourier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: 127.0.0.2 passes for public here, 127.0.0.1 is what the name says ever after."""
    monkeypatch.setattr(module, "is_public", lambda address: address == "127.0.0.2")
    asked = resolve_to(monkeypatch, ["127.0.0.1", "127.0.0.2"], ["127.0.0.1"])
    with receiving(host="127.0.0.2") as good, receiving(host="127.0.0.1", port=good.port) as bad:
        outcome = await send(courier_of(WebhookSettings(allow_http=True)), good.url(host="rebinding.example"))
        assert outcome == Outcome(200, "answered")
        assert good.received[0].headers["host"] == f"rebinding.example:{good.port}"
        assert bad.received == []
    assert asked == ["rebinding.example"]


async def test_next_address_is_tried_when_the_first_does_not_answer(
    courier_of: OpenCourier, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, ["127.0.0.3", "127.0.0.1"])
    assert (await send(courier_of(OPEN), receiver.url(host="two.example"))).ok


async def test_name_that_does_not_exist(courier_of: OpenCourier, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert await send(courier_of(OPEN), "http://nowhere.example/") == Outcome(None, "no_such_host")
    assert await send(courier_of(OPEN), f"http://{'a' * 64}.example/") == Outcome(None, "no_such_host")


async def test_http_stored_under_another_setting_is_not_called(courier_of: OpenCourier, receiver: Receiver) -> None:
    outcome = await send(courier_of(WebhookSettings(allow_private_addresses=True)), receiver.url())
    assert outcome == Outcome(None, "scheme_refused")
    assert receiver.received == []


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "example.com",
        "//example.com/",
        "",
        "https://",
        "https:///path",
        "https://exa mple.com/",
        "https://0177.0.0.1/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://[::1/",
        "https://example.com/\x7f",
        "https://\ud800.com/",
    ],
)
def test_check_refuses_what_is_no_https_url(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Courier(WebhookSettings()).check(url)
    assert (refused.value.param, refused.value.code) == ("url", "invalid_value")


@pytest.mark.parametrize(
    "url", ["https://example.com", "https://8.8.8.8:8443/x?y=z", "https://bücher.example/", "HTTPS://A.example"]
)
def test_check_takes_public_https_urls(url: str) -> None:
    Courier(WebhookSettings()).check(url)


async def test_tls_is_verified_for_the_name_and_not_for_the_address(
    courier_of: OpenCourier, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate = make_certificate(tmp_path / "receiver.pem", name="receiver.example")
    trusting = courier_of(WebhookSettings(allow_private_addresses=True, ca_file=certificate))
    resolve_to(monkeypatch, ["127.0.0.1"])
    with receiving(certificate=certificate) as receiver:
        assert await send(trusting, receiver.url(host="receiver.example")) == Outcome(200, "answered")
        assert await send(trusting, receiver.url(host="another.example")) == Outcome(None, "unreachable")
        assert await send(trusting, receiver.url()) == Outcome(None, "unreachable")
        distrusting = courier_of(WebhookSettings(allow_private_addresses=True))
        assert await send(distrusting, receiver.url(host="receiver.example")) == Outcome(None, "unreachable")
        assert len(receiver.received) == 1


async def test_tls_to_an_address_is_verified_for_that_address(courier_of: OpenCourier, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path / "receiver.pem", name="127.0.0.1")
    trusting = courier_of(WebhookSettings(allow_private_addresses=True, ca_file=certificate))
    with receiving(certificate=certificate) as receiver:
        assert await send(trusting, receiver.url()) == Outcome(200, "answered")


@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_ca_file_that_is_none_is_said_at_the_start(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsInvalid, match=r"webhooks\.ca_file"):
        Courier(WebhookSettings(ca_file=path))
