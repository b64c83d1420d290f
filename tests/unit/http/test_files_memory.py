"""A large upload and a large download need no more memory than small ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2

from tests.unit.http.scenes import KEY, LINE

BLOCK = LINE * (1_000_000 // len(LINE))
BLOCKS = 120
HEADERS = {"authorization": f"Bearer {KEY}"}


def peak_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024


def form(blocks: int) -> Iterator[bytes]:
    yield b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    yield b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    for _ in range(blocks):
        yield BLOCK
    yield b"\r\n--B--\r\n"


def upload(client: httpx2.Client, blocks: int) -> str:
    headers = {"content-type": "multipart/form-data; boundary=B"}
    reply = client.post("/v1/files", content=form(blocks), headers=headers)
    assert reply.json()["bytes"] == blocks * len(BLOCK)
    file_id: str = reply.json()["id"]
    return file_id


def download(client: httpx2.Client, file_id: str) -> int:
    with client.stream("GET", f"/v1/files/{file_id}/content") as reply:
        return sum(len(piece) for piece in reply.iter_bytes())


def test_memory_does_not_grow_with_the_file(sqlite_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.http.server", sqlite_url, str(tmp_path / "blobs")]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        with httpx2.Client(base_url=url, headers=HEADERS, timeout=30) as client:
            download(client, upload(client, 8))
            before = peak_mib(server.pid)
            assert download(client, upload(client, BLOCKS)) == BLOCKS * len(BLOCK)
            after = peak_mib(server.pid)
        server.communicate(timeout=20)
    assert server.returncode == 0
    assert after - before < 24
