"""`batchyard submit` and `watch`: a small client of the service's own API, over plain HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.domain.batch import TERMINAL
from app.errors import InvalidRequest, Unavailable

POLL_SECONDS = 0.5
# A server that restarts in the middle is waited for.
PATIENCE_SECONDS = 120.0


class Client:
    """Speaks to one server, whose `base_url` ends in `/v1`.

    Every method raises InvalidRequest for a refusal, and Unavailable where no answer comes.
    """

    def __init__(self, base_url: str, *, api_key: str | None, transport: httpx2.BaseTransport | None = None) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self._http = httpx2.Client(base_url=base_url, headers=headers, timeout=60, transport=transport)
        except (httpx2.InvalidURL, ValueError) as exc:
            raise InvalidRequest(f"--base-url {base_url} is not a URL: {exc}") from exc
        self.base_url = base_url

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.close()

    def upload(self, path: Path) -> dict[str, Any]:
        """The File object of `path`, uploaded with purpose `batch`."""
        with path.open("rb") as stream:
            return self._json("POST", "files", data={"purpose": "batch"}, files={"file": (path.name, stream)})

    def create(self, input_file_id: str, *, endpoint: str) -> dict[str, Any]:
        """A new Batch object."""
        body = {"input_file_id": input_file_id, "endpoint": endpoint, "completion_window": "24h"}
        return self._json("POST", "batches", json=body)

    def batch(self, batch_id: str) -> dict[str, Any]:
        """The Batch object now."""
        return self._json("GET", f"batches/{batch_id}")

    def download(self, file_id: str, path: Path) -> None:
        """Stream a file's bytes to `path`."""
        with self._answers(), self._http.stream("GET", f"files/{file_id}/content") as response:
            if response.is_error:
                response.read()
                self._refuse(response)
            with path.open("wb") as target:
                for block in response.iter_bytes():
                    target.write(block)

    def _json(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        with self._answers():
            response = self._http.request(method, path, **request)
        if response.is_error:
            self._refuse(response)
        try:
            value = response.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise Unavailable(f"{self.base_url} does not answer as a Batch API; is the base URL right?")
        return value

    def _refuse(self, response: httpx2.Response) -> None:
        try:
            message = response.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = response.text[:200]
        error = Unavailable if response.status_code >= 500 else InvalidRequest
        raise error(f"{response.status_code} from {response.url.path}: {message}")

    @contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except httpx2.TransportError as exc:
            raise Unavailable(f"no answer from {self.base_url}: {exc}") from exc


def first_url(path: Path) -> str:
    """The `url` of the file's first line: the endpoint of its batch. Raises InvalidRequest when there is none."""
    try:
        with path.open("rb") as stream:
            line = next((line for line in stream if line.strip()), b"")
        url = json.loads(line.removeprefix(b"\xef\xbb\xbf"))["url"]
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be read: {exc.strerror}") from exc
    except (ValueError, KeyError, TypeError):
        url = None
    if not isinstance(url, str):
        raise InvalidRequest(f"the first line of {path} has no url; name the endpoint with --endpoint")
    return url


def watch(client: Client, batch_id: str, *, console: Console) -> dict[str, Any]:
    """Show a batch's progress until it has ended, and return it. Survives a restart of the server."""
    columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("asking", total=None)
        heard_at = time.monotonic()
        while True:
            try:
                batch = client.batch(batch_id)
            except Unavailable:
                if time.monotonic() - heard_at > PATIENCE_SECONDS:
                    raise
                progress.update(bar, description="no answer")
            else:
                heard_at = time.monotonic()
                counts = batch["request_counts"]
                done = counts["completed"] + counts["failed"]
                progress.update(bar, description=batch["status"], completed=done, total=counts["total"] or None)
                if batch["status"] in TERMINAL:
                    return batch
            time.sleep(POLL_SECONDS)


def report(batch: Mapping[str, Any], console: Console) -> None:
    """Say how an ended batch went."""
    counts = batch["request_counts"]
    sentence = f"{batch['id']} {batch['status']}: {counts['completed']} answered, {counts['failed']} failed"
    console.print(f"{sentence}, {counts['total']} in all", markup=False, highlight=False, soft_wrap=True)
    for problem in (batch.get("errors") or {}).get("data", [])[:20]:
        where = f"line {problem['line']}: " if problem.get("line") else ""
        console.print(f"  {where}{problem['message']}", markup=False, highlight=False, soft_wrap=True)
