"""A private S3 server for tests, moto's on loopback; and what a test may want to know of it without a client."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from itertools import count

import httpx2
import pytest

_names = count()

#: What a client needs to sign; this server takes any key.
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAACCEPTANCE", "AWS_SECRET_ACCESS_KEY": "a-secret-key-of-tests"}

_SIGNATURE = "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


@dataclass(frozen=True)
class TestBucket:
    """An empty bucket of the test's own."""

    __test__ = False

    endpoint: str
    name: str

    def settings(self, *, prefix: str = "yard/one", endpoint: str | None = None) -> dict[str, str]:
        """Environment of a server that keeps its blobs here."""
        return {
            "BATCHYARD_BLOBS_URL": f"s3://{self.name}/{prefix}",
            "BATCHYARD_BLOBS_S3_ENDPOINT": endpoint or self.endpoint,
            "BATCHYARD_BLOBS_S3_ALLOW_HTTP": "true",
            **KEYS,
        }

    def objects(self) -> list[str]:
        """Names of all objects, prefix included."""
        return self._names("?list-type=2", "Contents")

    def uploads(self) -> list[str]:
        """Names that have a multipart upload under way."""
        return self._names("?uploads", "Upload")

    def _names(self, query: str, element: str) -> list[str]:
        text = self.ask("GET", query).text
        return sorted(re.findall(rf"<{element}>.*?<Key>(.*?)</Key>", text, re.DOTALL))

    def ask(self, method: str, path: str, content: bytes = b"", *, acl: str = "") -> httpx2.Response:
        """A plain request below the bucket's address. This server wants to see a signature, and does not read it."""
        headers = {"authorization": _SIGNATURE} | ({"x-amz-acl": acl} if acl else {})
        url = f"{self.endpoint}/{self.name}{path}"
        reply = httpx2.request(method, url, content=content, headers=headers, timeout=20)
        return reply.raise_for_status()


# In a process of its own, which ends when its standard input does: its threads and sockets are none of the tests'.
_SERVE = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="session")
def s3_endpoint() -> Generator[str]:
    """The address of a running S3 server."""
    command = [sys.executable, "-c", _SERVE]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=os.environ | KEYS, start_new_session=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = server.stdout.readline().decode().strip()
        assert port, "the S3 server did not start"
        yield f"http://127.0.0.1:{port}"
        server.stdin.close()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:  # its threads are not daemons
            server.kill()


@pytest.fixture
def bucket(s3_endpoint: str) -> TestBucket:
    """A new bucket."""
    made = TestBucket(s3_endpoint, f"bucket-{next(_names)}")
    made.ask("PUT", "")
    return made
