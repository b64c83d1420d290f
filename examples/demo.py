"""The whole round trip with the official openai SDK: start the service, send examples/chat.jsonl, print every answer.

    python examples/demo.py                  the embedded model on vLLM
    python examples/demo.py --engine echo    no model: every answer repeats its question, in a few seconds

Exit code 0 when all lines but one were answered, that one failed at the model as it should, and the server stopped
cleanly.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
REQUESTS = ROOT / "examples" / "chat.jsonl"
FAILS = "fails-at-the-model"  # custom_id of the one line that the model refuses
READY_SECONDS = 240.0
BATCH_SECONDS = 300.0
STOP_SECONDS = 40.0

console = Console(highlight=False)


class DemoFailed(Exception):
    """Something was not as it should be; the message says what."""


class Server:
    """`batchyard serve` as a process of its own, on a free port, with its data in `folder`."""

    def __init__(self, folder: Path, *, engine: str) -> None:
        self.log = folder / "server.log"
        # The demonstration must not depend on how this shell is set up; only the place of prepared models is kept.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("BATCHYARD_") or name == "BATCHYARD_MODELS_DIR"
        }
        command = [sys.executable, "-m", "app", "serve", "--port", "0", "--data-dir", str(folder / "data")]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--engine", engine, "--log-format", "json", "--no-hints"],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches this script only, which then stops the server in order
            )

    def wait_ready(self) -> str:
        """The base URL, once `/ready` answers 200."""
        deadline = time.monotonic() + READY_SECONDS
        url = None
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise DemoFailed(f"the server ended with exit code {self.process.returncode}")
            url = url or self._listening()
            if url and self._status(f"{url.removesuffix('/v1')}/ready") == 200:
                return url
            time.sleep(0.2)
        raise DemoFailed(f"the server was not ready after {READY_SECONDS:.0f} s")

    def stop(self) -> int:
        """SIGTERM; the exit code. A server that does not stop in time is killed, and that is a failure."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()

    def stop_cleanly(self) -> None:
        """As `stop`; raises DemoFailed for any exit code but 0."""
        code = self.stop()
        if code != 0:
            raise DemoFailed(f"the server stopped with exit code {code}")

    def tail(self) -> str:
        """The last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def _listening(self) -> str | None:
        for line in self.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError, AttributeError):
                event = json.loads(line)
                if event.get("event") == "listening":
                    return str(event["base_url"])
        return None

    @staticmethod
    def _status(url: str) -> int:
        try:
            return httpx2.get(url, timeout=5).status_code
        except httpx2.TransportError:
            return 0


@contextlib.contextmanager
def running(engine: str) -> Iterator[tuple[Server, str]]:
    """A ready server and its base URL. On the way out it is stopped, and must end with exit code 0."""
    with tempfile.TemporaryDirectory(prefix="batchyard-demo-") as name:
        server = Server(Path(name), engine=engine)
        try:
            what = "the echo engine" if engine == "echo" else "the model (half a minute)"
            with console.status(f"Starting the service and loading {what} …"):
                began = time.monotonic()
                url = server.wait_ready()
            console.print(f"[green]✓[/] ready after {time.monotonic() - began:.1f} s: {url}")
            yield server, url
            with console.status("Stopping the service …"):
                server.stop_cleanly()
            console.print("[green]✓[/] service stopped")
        except BaseException:
            server.stop()
            console.print(server.tail(), style="dim", markup=False, soft_wrap=True)
            raise


def requests_for(engine: str) -> list[dict[str, Any]]:
    """The example's lines; for the echo engine with the name of its model."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in REQUESTS.read_text(encoding="utf-8").splitlines()]
    if engine == "echo":
        for line in lines:
            line["body"]["model"] = "echo"
    return lines


def run_batch(client: openai.OpenAI, lines: list[dict[str, Any]]) -> openai.types.Batch:
    """Upload, create, and watch until the batch has ended."""
    content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    file = client.files.create(file=("chat.jsonl", content), purpose="batch")
    console.print(f"[green]✓[/] uploaded {file.id}: {len(lines)} lines, {file.bytes} bytes")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    console.print(f"[green]✓[/] created {batch.id}")
    deadline = time.monotonic() + BATCH_SECONDS
    columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(batch.status, total=len(lines))
        while True:
            batch = client.batches.retrieve(batch.id)
            counts = batch.request_counts
            done = counts.completed + counts.failed if counts else 0
            progress.update(bar, description=batch.status, completed=done)
            if batch.status in {"completed", "failed", "expired", "cancelled"}:
                return batch
            if time.monotonic() > deadline:
                raise DemoFailed(f"the batch was still {batch.status} after {BATCH_SECONDS:.0f} s")
            time.sleep(0.2)


def rows_of(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    """A result file's rows by custom_id."""
    if file_id is None:
        return {}
    text = client.files.content(file_id).text
    return {row["custom_id"]: row for row in map(json.loads, text.split("\n")[:-1])}


def show(lines: list[dict[str, Any]], answers: dict[str, Any], errors: dict[str, Any]) -> None:
    """Question and answer side by side, in the order of the input."""
    table = Table("line", "question", "answer", show_lines=True)
    for line in lines:
        question = line["body"]["messages"][-1]["content"]
        if line["custom_id"] in answers:
            answer = answers[line["custom_id"]]["response"]["body"]["choices"][0]["message"]["content"].strip()
            style = ""
        else:
            response = errors[line["custom_id"]]["response"]
            answer = f"{response['status_code']}: {response['body']['error']['message']}"
            style = "red"
        table.add_row(line["custom_id"], _plain(question), _plain(answer), style=style)
    console.print(table)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


def check(batch: openai.types.Batch, names: set[str], answers: dict[str, Any], errors: dict[str, Any]) -> None:
    """Raise DemoFailed unless every line but the one that must fail was answered. `names` are all custom_ids."""
    expected = names - {FAILS}
    if batch.status != "completed":
        raise DemoFailed(f"the batch ended as {batch.status}: {batch.errors}")
    if set(answers) != expected or set(errors) != {FAILS}:
        raise DemoFailed(f"answered {sorted(answers)}, failed {sorted(errors)}")
    if errors[FAILS]["response"]["status_code"] != 400:
        raise DemoFailed(f"the failing line ended with {errors[FAILS]['response']}")
    if not all(answers[name]["response"]["body"]["choices"][0]["message"]["content"].strip() for name in expected):
        raise DemoFailed("an answer is empty")


def main() -> int:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description="Send examples/chat.jsonl through a service of its own.")
    parser.add_argument("--engine", choices=("vllm", "echo"), default="vllm")
    engine = parser.parse_args().engine
    # `kill` must stop the server too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    try:
        with running(engine) as (_, url), openai.OpenAI(base_url=url, api_key="none") as client:
            lines = requests_for(engine)
            batch = run_batch(client, lines)
            answers, errors = rows_of(client, batch.output_file_id), rows_of(client, batch.error_file_id)
            check(batch, {line["custom_id"] for line in lines}, answers, errors)
            show(lines, answers, errors)
    except (DemoFailed, openai.OpenAIError) as exc:
        console.print(f"[red]✗[/] {_plain(str(exc))}")
        return 1
    except KeyboardInterrupt:
        return 130
    usage = f", {batch.usage.input_tokens} tokens in, {batch.usage.output_tokens} out" if batch.usage else ""
    seconds = f"{time.monotonic() - began:.0f} s"
    console.print(f"[green]✓[/] {len(answers)} answers and {len(errors)} error line, as expected{usage}, in {seconds}")
    return 0


if __name__ == "__main__":  # vLLM starts children that import this module again
    sys.exit(main())
