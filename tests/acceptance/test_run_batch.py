"""`batchyard run-batch` as users start it: a process of its own, killed, interrupted, piped and watched."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.engine.echo import journal_digest
from tests.acceptance.server import ROOT

CHAT = "/v1/chat/completions"
QUICK = {"BATCHYARD_WORKER_POLL_SECONDS": "0.02", "BATCHYARD_WORKER_PART_SECONDS": "0.05"}


def line(custom_id: str, text: str, **body: Any) -> bytes:
    body = {"model": "echo", "messages": [{"role": "user", "content": text}], **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}).encode() + b"\n"


def rows(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(text) for text in data.split(b"\n") if text]


def text_of(row: dict[str, Any]) -> str:
    return str(row["response"]["body"]["choices"][0]["message"]["content"])


class Folder:
    """A folder with an input of `lines` lines, and commands started in it."""

    def __init__(self, path: Path, *, lines: int) -> None:
        self.path = path
        self.lines = lines
        (path / "in.jsonl").write_bytes(b"".join(line(f"c{at}", f"text {at}") for at in range(lines)))
        self.journal = path / "asked"

    def command(self, *flags: str, delay_seconds: float = 0) -> list[str]:
        steer = ("--set", f"engine.echo_journal={self.journal}", "--set", f"engine.echo_delay_seconds={delay_seconds}")
        return [sys.executable, "-m", "app", "run-batch", "--engine", "echo", *steer, *flags]

    def start(self, *flags: str, delay_seconds: float = 0, **given: Any) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True, **given}
        return subprocess.Popen(
            self.command(*flags, delay_seconds=delay_seconds),
            cwd=self.path,
            env={**environment, **QUICK, "PYTHONPATH": str(ROOT)},
            **given,
        )

    def run(self, *flags: str, stdin: bytes | None = None, **given: Any) -> subprocess.CompletedProcess[bytes]:
        process = self.start(*flags, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL, **given)
        out, err = process.communicate(stdin, timeout=50)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def wait_for_rows(self, process: subprocess.Popen[bytes], *, at_least: int) -> None:
        progress = self.path / "out.jsonl.progress"
        deadline = time.monotonic() + 40
        while not progress.exists() or progress.read_bytes().count(b"\n") < at_least:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "no progress"
            time.sleep(0.01)

    def asked(self) -> Counter[bytes]:
        """How often each body reached an engine, over all runs."""
        return Counter(record.split()[2] for record in self.journal.read_bytes().splitlines())

    def check_output(self) -> None:
        found = rows((self.path / "out.jsonl").read_bytes())
        assert [row["custom_id"] for row in found] == [f"c{at}" for at in range(self.lines)]
        assert [text_of(row) for row in found] == [f"text {at}" for at in range(self.lines)]
        assert {path.name for path in self.path.iterdir()} == {"in.jsonl", "out.jsonl", "asked"}


FILES: Sequence[str] = ("-i", "in.jsonl", "-o", "out.jsonl")


def test_run_that_is_killed_goes_on_and_repeats_no_durable_line(tmp_path: Path) -> None:
    folder = Folder(tmp_path, lines=3000)
    steer = (*FILES, "--set", "engine.window=64")
    kills: list[tuple[Counter[bytes], list[dict[str, Any]]]] = []
    progress = b""
    for _ in range(3):
        process = folder.start(*steer, delay_seconds=0.05)
        folder.wait_for_rows(process, at_least=progress.count(b"\n") + 200)
        process.kill()
        process.communicate()
        progress = (tmp_path / "out.jsonl.progress").read_bytes()
        kills.append((folder.asked(), rows(progress[: progress.rfind(b"\n")])))
    done = folder.run(*steer)
    assert done.returncode == 0, done.stderr
    folder.check_output()
    asked = folder.asked()
    kept = {row["id"] for row in rows((tmp_path / "out.jsonl").read_bytes())}
    for asked_then, finished in kills:
        durable = [row for row in finished if row["id"] in kept]
        assert len(durable) >= 100
        for row in durable:
            digest = journal_digest(body_of(int(row["custom_id"][1:])))
            assert asked[digest] == asked_then[digest], "a finished line ran again"
    assert sum(asked.values()) < 2 * folder.lines


def body_of(at: int) -> bytes:
    return json.dumps(json.loads(line(f"c{at}", f"text {at}"))["body"]).encode()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
def test_signal_ends_the_run_so_that_the_next_one_goes_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    folder = Folder(tmp_path, lines=1500)
    process = folder.start(*FILES, delay_seconds=0.1)
    folder.wait_for_rows(process, at_least=100)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code, err
    assert b"the same command goes on" in err
    assert not (tmp_path / "out.jsonl").exists()
    assert folder.run(*FILES).returncode == 0
    folder.check_output()
    assert set(folder.asked().values()) == {1}  # what was in flight was let end


def test_signal_while_the_input_is_awaited_ends_it_at_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path, lines=1)
    os.mkfifo(tmp_path / "pipe")
    process = folder.start("-i", "pipe", "-o", "out.jsonl")
    with (tmp_path / "pipe").open("wb"):  # returns when the other side has opened it
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    process.communicate()
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "pipe"}


def test_standard_input_and_output_are_a_pipe(tmp_path: Path) -> None:
    folder = Folder(tmp_path, lines=50)
    scratch = tmp_path / "scratch"
    done = folder.run("-i", "-", "-o", "-", "--output-tmp-dir", str(scratch), stdin=b"".join([line("a", "x"), b"{\n"]))
    assert done.returncode == 1, done.stderr
    assert [row["custom_id"] for row in rows(done.stdout)] == ["a", None]
    assert list(scratch.iterdir()) == []


def test_metrics_are_served_while_it_runs(tmp_path: Path) -> None:
    folder = Folder(tmp_path, lines=2000)
    process = folder.start(*FILES, "--enable-metrics", "--port", "0", delay_seconds=0.2)
    try:
        assert process.stderr is not None
        url = process.stderr.readline().decode().split()[-1]
        folder.wait_for_rows(process, at_least=1)
        text = httpx2.get(url).text
    finally:
        process.kill()
        process.communicate()
    samples = {
        sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples
    }
    assert samples["batch_lines_total"] >= 0
    assert samples["batch_window"] == 512


def test_bar_on_a_terminal_shows_count_speed_and_time_left(tmp_path: Path) -> None:
    folder = Folder(tmp_path, lines=600)
    screen, terminal = pty.openpty()
    seen = bytearray()

    def read() -> None:
        while True:
            try:
                seen.extend(os.read(screen, 4096))
            except OSError:
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    process = folder.start(*FILES, delay_seconds=0.2, stderr=terminal)
    os.close(terminal)
    assert process.wait(40) == 0
    process.communicate()
    reader.join(5)
    os.close(screen)
    text = seen.decode()
    assert "/600" in text
    assert "lines/s" in text
    assert "tokens/s" in text
    assert "600 lines: 600 answered" in text


def test_refusal_leaves_nothing_and_exits_with_2(tmp_path: Path) -> None:
    folder = Folder(tmp_path, lines=3)
    done = folder.run("-i", "in.jsonl", "-o", "nowhere/out.jsonl")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"error: the folder of the output nowhere/out.jsonl does not exist\n"
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl"}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for lines in (5_000, 60_000):
        (tmp_path / str(lines)).mkdir()
        folder = Folder(tmp_path / str(lines), lines=0)
        with (folder.path / "in.jsonl").open("wb") as file:
            for at in range(lines):
                file.write(line(f"c{at}", "x" * 500))
        process = folder.start(*FILES, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak = 0
        while process.poll() is None:
            try:
                peak = max(peak, psutil.Process(process.pid).memory_info().rss)
            except psutil.NoSuchProcess:
                break
            time.sleep(0.02)
        assert process.wait() == 0
        peaks.append(peak)
    assert peaks[1] < peaks[0] + (40 << 20)
