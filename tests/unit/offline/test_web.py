"""GET and PUT against a real server on loopback that fails in the ways servers do."""

from __future__ import annotations

import asyncio
import io
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from app.errors import InvalidRequest, Unavailable
from app.offline import web
from app.offline.place import place_of

BODY = b"a line\n" * 100_000


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "FIRST_PAUSE_SECONDS", 0.01)


@dataclass
class Served:
    """A server that answers each request by the next of `answers` (the last one for all that follow)."""

    answers: list[bytes]
    url: str = ""
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        sizes = [part.partition(b":")[2] for part in head.lower().split(b"\r\n") if part.startswith(b"content-length")]
        self.bodies.append(await reader.readexactly(int(sizes[0])) if sizes else b"")
        writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
        await writer.drain()
        writer.close()


def reply(status: str, body: bytes = b"", *, length: int | None = None, more: str = "") -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\ncontent-length: {size}\r\nconnection: close\r\n{more}\r\n".encode() + body


@asynccontextmanager
async def serving(*answers: bytes) -> AsyncGenerator[Served]:
    served = Served(list(answers))
    server = await asyncio.start_server(served.answer, "127.0.0.1", 0)
    served.url = f"http://user:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}/file?key=secret"
    async with server:
        yield served


async def test_download_streams_the_answer() -> None:
    async with serving(reply("200 OK", BODY)) as served:
        with tempfile.TemporaryFile() as file:
            await web.download(place_of(served.url), file)
            file.seek(0)
            assert file.read() == BODY
    assert served.heads[0].startswith(b"GET /file?key=secret ")


@pytest.mark.parametrize(
    "first",
    [reply("503 Busy"), reply("429 Slow down"), b"", reply("200 OK", BODY[:1000], length=len(BODY))],
    ids=["503", "429", "nothing", "cut short"],
)
async def test_download_tries_again_from_the_beginning(first: bytes) -> None:
    async with serving(first, first, reply("200 OK", BODY)) as served:
        with tempfile.TemporaryFile() as file:
            await web.download(place_of(served.url), file)
            file.seek(0)
            assert file.read() == BODY
    assert len(served.heads) == 3


async def test_download_follows_a_redirect() -> None:
    async with serving(reply("302 Found", more="location: /other\r\n"), reply("200 OK", b"x")) as served:
        file = io.BytesIO()
        await web.download(place_of(served.url), file)
    assert file.getvalue() == b"x"


async def test_missing_file_is_final_and_shows_no_secret() -> None:
    async with serving(reply("404 Not Found")) as served:
        with pytest.raises(InvalidRequest, match=r"GET http://127.0.0.1:\d+/file: the answer is 404") as caught:
            await web.download(place_of(served.url), io.BytesIO())
    assert (len(served.heads), "secret" in str(caught.value)) == (1, False)


async def test_server_that_stays_away_is_given_up() -> None:
    async with serving(reply("500 Oops")) as served:
        with pytest.raises(Unavailable, match="500 Oops, 5 times"):
            await web.download(place_of(served.url), io.BytesIO())
    assert len(served.heads) == web.ATTEMPTS


async def test_upload_puts_the_whole_file_after_failures() -> None:
    async with serving(reply("500 Oops"), reply("201 Created")) as served:
        with tempfile.TemporaryFile() as file:
            file.write(BODY)
            file.flush()
            await web.upload(place_of(served.url), file)
    assert served.bodies == [BODY, BODY]
    assert served.heads[1].startswith(b"PUT /file?key=secret ")


async def test_upload_that_is_refused_is_final() -> None:
    async with serving(reply("403 Forbidden")) as served:
        with tempfile.TemporaryFile() as file, pytest.raises(InvalidRequest, match="403 Forbidden"):
            await web.upload(place_of(served.url), file)
    assert len(served.heads) == 1
