"""What the pages of docs/ mark as run is run as printed, against a server with the echo engine."""

from __future__ import annotations

import json
from pathlib import Path

from tests.acceptance.batch import chat, create, refused, slow, wait
from tests.acceptance.server import Server
from tests.docs.test_readme import ROOT, marked, run, server

__all__ = ["server"]


def test_extensions_loop_gathers_the_rows_of_a_running_batch(server: Server, tmp_path: Path) -> None:
    [(language, loop)] = marked((ROOT / "docs" / "extensions.md").read_text(encoding="utf-8"))
    with server.sdk() as client:
        batch = create(client, [chat("a"), refused("b"), slow("c", delay_ms=1500), chat("d")])
        ended = run(language, f"batch={batch.id}\n{loop}", cwd=tmp_path, server=server)
        assert ended.returncode == 0, ended.stderr
        output = wait(client, batch.id).output_file_id
        assert output is not None
        found = (tmp_path / "rows.jsonl").read_bytes()
        assert found == client.files.content(output).content
    assert [json.loads(line)["custom_id"] for line in found.splitlines()] == ["a", "c", "d"]
