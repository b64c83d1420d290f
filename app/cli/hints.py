"""What `serve` tells the person who started it: where it listens and what to try."""

from __future__ import annotations

import sys

from app.engine import embedded
from app.engine.echo_answer import MODEL
from app.settings import Settings


class Announcer:
    """Prints to stdout, for people; the log has the same facts for machines."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def listening(self, base_url: str) -> None:
        """The socket is open; the engine may still load."""
        key = "$OPENAI_API_KEY" if self._settings.server.api_keys else "none"
        example = "examples/echo.jsonl" if self._settings.engine.kind == "echo" else "examples/chat.jsonl"
        auth = f' -H "Authorization: Bearer {key}"' if self._settings.server.api_keys else ""
        self._say(
            f"base_url: {base_url}",
            "",
            f"  curl{auth} {base_url}/batches",
            f"  curl{auth} {base_url}/files -F purpose=batch -F file=@{example}",
            f"  batchyard submit {example} --wait --base-url {base_url}",
            "",
            "  >>> import openai",
            f'  >>> client = openai.OpenAI(base_url="{base_url}", api_key="{key}")',
            f'  >>> file = client.files.create(file=open("{example}", "rb"), purpose="batch")',
            '  >>> spec = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}',
            "  >>> client.batches.create(input_file_id=file.id, **spec)",
            "",
            f"Loading {self._model()}. Ctrl-C stops the service.",
        )

    def ready(self) -> None:
        """The engine answers."""
        self._say("Ready.")

    def _model(self) -> str:
        if self._settings.engine.kind == "echo":
            return f"the echo engine (model name `{MODEL}`)"
        return self._settings.engine.model or embedded.MODEL_NAME

    def _say(self, *lines: str) -> None:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
