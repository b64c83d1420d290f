"""Downloads on a user's behalf, from servers of the test's own."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from app.domain.speech import SpeechRequest
from app.engine import media
from app.engine.media import MediaRules, fetch, form_of
from app.errors import InvalidRequest

HOME = MediaRules(private_hosts=frozenset({"127.0.0.1", "localhost"}))


class Web:
    """A plain HTTP server: `answers` by path; it notes what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, list[bytes]] = {}
        self.asked: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head)
        path = head.split(b" ")[1].decode()
        answers = self.answers[path]
        writer.write(answers.pop(0) if len(answers) > 1 else answers[0])
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    def says(self, path: str, *answers: bytes) -> str:
        self.answers[path] = list(answers)
        return f"http://127.0.0.1:{self.port}{path}"


def answer(body: bytes = b"", *, status: int = 200, location: str = "", declared_bytes: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status} X", "connection: close"]
    if location:
        lines.append(f"location: {location}")
    if declared_bytes is not None:
        lines.append(f"content-length: {declared_bytes}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture
async def web() -> AsyncGenerator[Web]:
    web = Web()
    server = await asyncio.start_server(web.serve, "127.0.0.1", 0)
    web.port = server.sockets[0].getsockname()[1]
    async with server:
        yield web


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "_PAUSE_SECONDS", 0.005)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What each name resolves to, in place of DNS."""
    table: dict[str, list[str]] = {}

    async def resolve(self: Any, host: str, port: int, **_: Any) -> list[Any]:
        if host not in table:
            return await asyncio.to_thread(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in table[host]]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    return table


async def refusal(url: str, rules: MediaRules = HOME, **options: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        await fetch(url, rules=rules, **options)
    return caught.value


async def test_fetch_gives_the_bytes(web: Web) -> None:
    url = web.says("/a.png?key=1", answer(b"\x00\xffpixels"))
    assert await fetch(url, rules=HOME) == b"\x00\xffpixels"
    [head] = web.asked
    assert b"host: 127.0.0.1:" in head.lower()
    assert b"authorization" not in head.lower()
    assert b"cookie" not in head.lower()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/x",
        "http://localhost/x",
        "http://[::1]/x",
        "http://[::ffff:127.0.0.1]/x",
        "http://169.254.169.254/latest/meta-data/",
        "http://10.0.0.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://0/",
        "https://192.168.1.1/x",
    ],
)
async def test_fetch_refuses_an_address_that_is_not_public(url: str) -> None:
    error = await refusal(url, MediaRules())
    assert error.code == "invalid_media_url"
    assert error.status == 400


async def test_fetch_judges_what_a_name_resolves_to(names: dict[str, list[str]]) -> None:
    names["inner.example.org"] = ["10.1.2.3"]
    names["mixed.example.org"] = ["8.8.8.8", "127.0.0.1"]
    for host in names:
        assert "not of the open internet" in (await refusal(f"http://{host}/", MediaRules())).message


async def test_fetch_calls_the_address_it_judged(web: Web, names: dict[str, list[str]]) -> None:
    names["home.example.org"] = ["127.0.0.1"]
    web.says("/x", answer(b"here"))
    rules = MediaRules(private_hosts=frozenset({"home.example.org"}))
    assert await fetch(f"http://home.example.org:{web.port}/x", rules=rules) == b"here"
    assert f"host: home.example.org:{web.port}".encode() in web.asked[0].lower()


async def test_fetch_follows_a_redirect(web: Web) -> None:
    url = web.says("/a", answer(status=302, location="b"))
    web.says("/b", answer(b"moved"))
    assert await fetch(url, rules=HOME) == b"moved"


@pytest.mark.parametrize(
    "target",
    ["http://169.254.169.254/", "http://10.0.0.1/", "file:///etc/passwd", "ftp://127.0.0.1/", "http://u:p@127.0.0.1/"],
)
async def test_fetch_judges_each_redirect(web: Web, target: str) -> None:
    await refusal(web.says("/a", answer(status=307, location=target)))
    assert len(web.asked) == 1


async def test_fetch_gives_up_on_a_ring_of_redirects(web: Web) -> None:
    assert "redirects" in (await refusal(web.says("/a", answer(status=301, location="/a")))).message
    assert len(web.asked) == HOME.redirects_max + 1


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://example.org/", "/etc/passwd", "a.png", "http://", "http://["]
)
async def test_fetch_refuses_another_scheme(url: str) -> None:
    await refusal(url)


async def test_fetch_asks_only_listed_domains(web: Web, names: dict[str, list[str]]) -> None:
    names["media.example.org"] = ["127.0.0.1"]
    rules = MediaRules(
        allowed_domains=frozenset({"example.org"}), private_hosts=frozenset({"media.example.org", "127.0.0.1"})
    )
    web.says("/x", answer(b"yes"))
    assert await fetch(f"http://media.example.org:{web.port}/x", rules=rules) == b"yes"
    for host in ("127.0.0.1", "evilexample.org", "example.org.evil.net"):
        assert "not one of the domains" in (await refusal(f"http://{host}:{web.port}/x", rules)).message


@pytest.mark.parametrize("declared", [True, False])
async def test_fetch_stops_at_the_limit(web: Web, declared: bool) -> None:
    large = answer(b"x" * 5000, declared_bytes=5000 if declared else None)
    error = await refusal(web.says("/a", large), max_bytes=4096)
    assert error.code == "media_too_large"
    assert await fetch(web.says("/b", answer(b"x" * 4096)), rules=HOME, max_bytes=4096) == b"x" * 4096


async def test_fetch_tries_again_when_that_may_help(web: Web) -> None:
    url = web.says("/a", answer(status=503), answer(status=429), answer(b"at last"))
    assert await fetch(url, rules=HOME) == b"at last"
    assert "status 500" in (await refusal(web.says("/b", answer(status=500)))).message
    assert "status 404" in (await refusal(web.says("/c", answer(status=404)))).message
    assert [head.split(b" ")[1] for head in web.asked] == [b"/a"] * 3 + [b"/b"] * 3 + [b"/c"]


async def test_fetch_of_a_dead_port_and_an_unknown_name_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert "does not answer" in (await refusal(f"http://127.0.0.1:{port}/")).message
    assert "cannot be resolved" in (await refusal("http://no-such-name.invalid/")).message


async def test_fetch_gives_up_in_time() -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        rules = MediaRules(private_hosts=frozenset({"127.0.0.1"}), timeout_seconds=0.2)
        assert "0.2 seconds" in (await refusal(url, rules)).message
        await ended.wait()


async def test_fetch_shows_no_query(web: Web) -> None:
    error = await refusal(web.says("/a?token=secret", answer(status=404)))
    assert "secret" not in error.message


async def test_fetch_reads_data_urls() -> None:
    for url in (
        "data:audio/wav;base64,aGVsbG8=",
        "DATA:;base64,aGVsbG8=",
        "data:,hello",
        "data:text/plain;a=b,hell%6f",
    ):
        assert await fetch(url, rules=MediaRules()) == b"hello"
    for url in ("data:audio/wav;base64,???", "data:hello", "data:audio/wav;base64,a"):
        await refusal(url)
    url = "data:;base64," + base64.b64encode(b"x" * 2000).decode()
    assert (await refusal(url, max_bytes=1999)).code == "media_too_large"


async def test_form_of_carries_fields_and_file() -> None:
    request = SpeechRequest("data:audio/wav;base64,AAH/", (("model", "m"), ('a"b', "Grüezi")))
    body, content_type = await form_of(request, rules=MediaRules())
    boundary = content_type.removeprefix("multipart/form-data; boundary=")
    assert body.split(f"--{boundary}".encode()) == [
        b"",
        b'\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n',
        b'\r\nContent-Disposition: form-data; name="a%22b"\r\n\r\n' + "Grüezi".encode() + b"\r\n",
        b'\r\nContent-Disposition: form-data; name="file"; filename="audio.wav"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n\x00\x01\xff\r\n",
        b"--\r\n",
    ]
