"""The settings models, one a room. A new knob is a new field here; everything else follows from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator, model_validator

_DAY_SECONDS = 86_400
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def _split(value: Any) -> Any:
    """`a,b` and `["a","b"]` both mean two items."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [item.strip() for item in value.split(",") if item.strip()]


class _Room(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ServerSettings(_Room):
    """The HTTP side."""

    host: str = Field("127.0.0.1", description="Address to listen on. Without an API key only loopback is allowed.")
    port: int = Field(8000, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    role: Literal["all", "api"] = Field(
        "all", description="`all` runs API and worker in one process, `api` only the API."
    )
    api_keys: Annotated[list[SecretStr], BeforeValidator(_split)] = Field(
        default_factory=list,
        description="Keys that clients send as `Authorization: Bearer KEY`. None: no key is asked for.",
    )
    stop_seconds: float = Field(30, gt=0, description="After SIGTERM the process is gone within this time.")
    json_body_max_bytes: int = Field(1 << 20, ge=1024, description="Largest JSON request body.")

    @field_validator("api_keys")
    @classmethod
    def _no_blank_key(cls, keys: list[SecretStr]) -> list[SecretStr]:
        if any(not key.get_secret_value().strip() for key in keys):
            raise ValueError("an API key is blank")
        return keys


class StoreSettings(_Room):
    """The database."""

    url: str | None = Field(
        None, description="`postgresql+asyncpg://…` or `sqlite+aiosqlite:///…`. Default: SQLite in the data directory."
    )
    pool_size: int = Field(8, ge=2, le=100, description="Connections kept open.")
    busy_timeout_seconds: float = Field(15, gt=0, description="How long SQLite waits for another process's write.")


class BlobSettings(_Room):
    """Where files, parts and segments are kept."""

    path: Path | None = Field(None, description="Folder for the bytes. Default: `blobs` in the data directory.")
    min_free_bytes: int = Field(
        256 << 20, ge=0, description="Below this much free disk `/ready` and `doctor` complain."
    )


class EngineSettings(_Room):
    """The model."""

    kind: Literal["vllm", "echo"] = Field(
        "vllm", description="`vllm` runs a model in this process, `echo` answers without one."
    )
    model: str | None = Field(None, description="Model name or folder. Default: the embedded SmolLM2-135M-Instruct.")
    arguments: Annotated[list[str], BeforeValidator(_split)] = Field(
        default_factory=list, description="Further flags of `vllm serve`, passed through."
    )
    window: int = Field(0, ge=0, le=65_536, description="Requests in flight at once; 0 takes what the engine asks for.")
    request_timeout_seconds: float = Field(
        3600, gt=0, description="A line without an answer by then gets `request_timeout`."
    )
    rebuild_first_seconds: float = Field(
        0.5, gt=0, description="Pause before a dead engine is built again, doubled each time."
    )
    rebuild_max_seconds: float = Field(60, gt=0, description="Longest such pause.")
    echo_delay_seconds: float = Field(0, ge=0, description="The echo engine answers after this time.")
    echo_concurrent: int = Field(256, ge=1, description="How many requests the echo engine answers at once.")
    echo_load_seconds: float = Field(0, ge=0, description="The echo engine takes this long to load.")


class LimitSettings(_Room):
    """Sizes and counts; defaults are OpenAI's where it has one."""

    batch_max_lines: int = Field(50_000, ge=1, description="Requests in one batch.")
    batch_file_max_bytes: int = Field(209_715_200, ge=1, description="Size of a file with purpose `batch`.")
    file_max_bytes: int = Field(536_870_912, ge=1, description="Size of a file with another purpose.")
    line_max_bytes: int = Field(32 << 20, ge=1024, description="Length of one line.")
    json_max_depth: int = Field(256, ge=8, le=900, description="Nesting of one line.")
    custom_id_max_chars: int = Field(512, ge=1, description="Length of a custom_id.")
    embedding_max_inputs: int = Field(50_000, ge=1, description="Embedding inputs in one batch, over all lines.")
    problems_max: int = Field(100, ge=1, le=10_000, description="Entries that a failed validation lists.")
    mixed_models: bool = Field(False, description="Allow lines of one batch to name different models.")
    trust_chat_template: bool = Field(False, description="Allow a `chat_template` of the user's own in a line.")


class WorkerSettings(_Room):
    """The drain."""

    poll_seconds: float = Field(
        0.25, gt=0, le=60, description="How often new work, cancels and deadlines are looked for."
    )
    lease_seconds: float = Field(15, gt=0, description="A worker silent for this long loses its chunks.")
    heartbeat_seconds: float = Field(3, gt=0, description="How often leases are extended.")
    part_seconds: float = Field(1, gt=0, description="Finished lines are made durable at least this often.")
    part_max_bytes: int = Field(4 << 20, ge=1024, description="…or once this many bytes of results wait.")
    chunk_max_lines: int = Field(1000, ge=1, le=100_000, description="Lines in one chunk.")
    chunk_max_bytes: int = Field(
        16 << 20, ge=1024, description="Bytes in one chunk; a longer line is a chunk of its own."
    )

    @model_validator(mode="after")
    def _heartbeat_fits(self) -> WorkerSettings:
        if self.heartbeat_seconds * 2 > self.lease_seconds:
            raise ValueError("worker.heartbeat_seconds must be at most half of worker.lease_seconds")
        return self


class RetentionSettings(_Room):
    """How long things are kept."""

    batch_file_seconds: int = Field(
        30 * _DAY_SECONDS, ge=1, description="Life of an uploaded batch file without expires_after."
    )
    output_file_seconds: int = Field(
        30 * _DAY_SECONDS, ge=1, description="Life of result files without output_expires_after."
    )
    sweep_seconds: float = Field(60, gt=0, description="How often expired and deleted files lose their bytes.")
    orphan_grace_seconds: float = Field(3600, gt=0, description="Bytes that nothing names are removed after this time.")


class LogSettings(_Room):
    """What is written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe level that is written."
    )
    format: Literal["json", "console"] = Field("json", description="`json`: one object a line. `console`: for people.")


class Settings(_Room):
    """All of it. Built by `load`."""

    data_dir: Path = Field(
        Path("batchyard-data"), description="Folder for the database and the bytes, where no URL says else."
    )
    server: ServerSettings = Field(default_factory=ServerSettings)
    store: StoreSettings = Field(default_factory=StoreSettings)
    blobs: BlobSettings = Field(default_factory=BlobSettings)
    engine: EngineSettings = Field(default_factory=EngineSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    retention: RetentionSettings = Field(default_factory=RetentionSettings)
    log: LogSettings = Field(default_factory=LogSettings)

    @property
    def store_url(self) -> str:
        return self.store.url or f"sqlite+aiosqlite:///{(self.data_dir / 'batchyard.db').absolute()}"

    @property
    def blob_path(self) -> Path:
        return self.blobs.path or self.data_dir / "blobs"

    @model_validator(mode="after")
    def _no_key_no_network(self) -> Settings:
        if not self.server.api_keys and self.server.host not in _LOOPBACK:
            raise ValueError(
                f"server.host is {self.server.host} but no API key is set: without a key only loopback is served. "
                "Set BATCHYARD_SERVER_API_KEYS, or listen on 127.0.0.1"
            )
        return self
