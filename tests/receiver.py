"""A receiver of webhooks on the loopback: real sockets, answers as told, and a record of every request."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Received:
    """One request, as it came over the wire; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float


class Receiver:
    """Answers each request with `status` (and `headers`), after `delay_seconds`; `received` keeps them in order."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, certificate: Path | None = None) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.delay_seconds = 0.0
        self.received: list[Received] = []
        self._gone = threading.Event()
        self._server = ThreadingHTTPServer((host, port), self._handler())
        self._server.daemon_threads = True
        self.scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            self.scheme = "https"
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def url(self, path: str = "/hook", *, host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    def wait(self, many: int, *, seconds: float = 20) -> list[Received]:
        """The requests once there are at least so many."""
        return self.until(lambda: len(self.received) >= many, f"{many} requests", seconds=seconds)

    def until(self, holds: Callable[[], bool], what: str, *, seconds: float = 20) -> list[Received]:
        """The requests once `holds`."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"waited for {what}, got {self.received}"
            time.sleep(0.01)
        return list(self.received)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.append(Received(self.command, self.path, headers, body, time.time()))
                if receiver.delay_seconds and receiver._gone.wait(receiver.delay_seconds):
                    return
                try:
                    self.send_response(receiver.status)
                    for name, value in receiver.headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", "0")
                    self.end_headers()
                except OSError:
                    self.close_connection = True  # the sender has given up

            do_GET = do_POST

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        return Handler

    def start(self) -> Receiver:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop listening; connections that wait are cut."""
        self._gone.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@contextmanager
def receiving(**options: Any) -> Generator[Receiver]:
    receiver = Receiver(**options).start()
    try:
        yield receiver
    finally:
        receiver.stop()


def make_certificate(path: Path, *, name: str) -> Path:
    """A self-signed certificate for a host's name or address and its key, in one PEM file that is also its own CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    try:
        alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        alternative = x509.DNSName(name)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path
