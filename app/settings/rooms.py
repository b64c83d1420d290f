"""The settings models, one a room. A new knob is a new field here; everything else follows from it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator, model_validator

from app import failpoint

_DAY_SECONDS = 86_400
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_BUCKET_URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w!.*'()/-]{0,200})?", re.ASCII)
_ENDPOINT = re.compile(r"https?://[\w.-]+(:\d{1,5})?/?|https?://\[[0-9a-fA-F:]+\](:\d{1,5})?/?", re.ASCII)


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

    host: str = Field(
        "127.0.0.1",
        description="Address to listen on. Without any API key, here or made by `batchyard keys`, only loopback.",
    )
    port: int = Field(8000, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    role: Literal["all", "api"] = Field(
        "all", description="`all` runs API and worker in one process, `api` only the API."
    )
    api_keys: Annotated[list[SecretStr], BeforeValidator(_split)] = Field(
        default_factory=list,
        description="Keys of project `proj_default`, sent as `Authorization: Bearer KEY`. `batchyard keys` makes more.",
    )
    stop_seconds: float = Field(30, gt=0, description="After SIGTERM the process is gone within this time.")
    json_body_max_bytes: int = Field(1 << 20, ge=1024, description="Largest JSON request body.")
    interactive: bool = Field(
        True, description="Answer `/v1/chat/completions` and the like too, ahead of the batches, with the same engine."
    )
    interactive_body_max_bytes: int = Field(
        64 << 20, ge=1024, description="Largest body of such a request; pictures and audio count in."
    )

    @field_validator("api_keys")
    @classmethod
    def _no_blank_key(cls, keys: list[SecretStr]) -> list[SecretStr]:
        if any(not key.get_secret_value().strip() for key in keys):
            raise ValueError("an API key is blank")
        return keys


class StoreSettings(_Room):
    """The database."""

    url: str | None = Field(
        None, description="`postgresql://USER@HOST/NAME` or `sqlite:///PATH`. Default: SQLite in the data directory."
    )
    pool_size: int = Field(8, ge=2, le=100, description="Connections kept open.")
    busy_timeout_seconds: float = Field(15, gt=0, description="How long SQLite waits for another process's write.")


class BlobSettings(_Room):
    """Where files, parts and segments are kept."""

    path: Path | None = Field(None, description="Folder for the bytes. Default: `blobs` in the data directory.")
    min_free_bytes: int = Field(
        256 << 20, ge=0, description="Below this much free disk `/ready` and `doctor` complain."
    )
    url: str | None = Field(
        None, description="`s3://BUCKET/PREFIX`: a bucket instead of a folder. Keys come from the AWS_* environment."
    )
    s3_endpoint: str | None = Field(
        None, description="Address of a store that is not Amazon's, such as `https://minio.lan:9000`."
    )
    s3_region: str | None = Field(None, description="Region of the bucket. Default: AWS_REGION, else us-east-1.")
    s3_path_style: bool = Field(
        True, description="The bucket's name stands in the path of an address; if false, in the host name."
    )
    s3_allow_http: bool = Field(False, description="Allow an endpoint without TLS.")
    s3_timeout_seconds: float = Field(20, ge=1, le=300, description="A request to the bucket has failed by then.")

    @field_validator("url")
    @classmethod
    def _names_a_bucket(cls, url: str | None) -> str | None:
        if url is not None and not _BUCKET_URL.fullmatch(url):
            raise ValueError("it must be s3://BUCKET or s3://BUCKET/PREFIX, and nothing else; keys come from AWS_*")
        return url

    @field_validator("s3_endpoint")
    @classmethod
    def _names_a_host(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
            raise ValueError("it must be http(s)://HOST or http(s)://HOST:PORT")
        return endpoint

    @model_validator(mode="after")
    def _one_place(self) -> BlobSettings:
        if self.url is not None and self.path is not None:
            raise ValueError("blobs.url and blobs.path exclude each other")
        if self.s3_endpoint is not None and self.s3_endpoint.startswith("http:") and not self.s3_allow_http:
            raise ValueError("blobs.s3_endpoint is without TLS; blobs.s3_allow_http allows that")
        return self


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
    yielding: bool = Field(
        True,
        description="While a client waits for vLLM, batches stand aside inside it; a fifth of the time is theirs.",
    )
    request_timeout_seconds: float = Field(
        3600, gt=0, description="A line without an answer by then gets `request_timeout`."
    )
    rebuild_first_seconds: float = Field(
        0.5, gt=0, description="Pause before a dead engine is built again, doubled each time."
    )
    rebuild_max_seconds: float = Field(60, gt=0, description="Longest such pause.")
    rebuilds_max: int = Field(
        20, ge=0, description="After so many rebuilds, each of which leaves some memory behind, the process ends."
    )
    hang_seconds: float = Field(
        300, ge=0, description="An engine with requests that makes no token for so long is built again; 0: never."
    )
    echo_delay_seconds: float = Field(0, ge=0, description="The echo engine answers after this time.")
    echo_concurrent: int = Field(256, ge=1, description="How many requests the echo engine answers at once.")
    echo_load_seconds: float = Field(0, ge=0, description="The echo engine takes this long to load.")
    echo_journal: Path | None = Field(
        None, description="The echo engine adds a line to this file for each request it begins; for tests."
    )


class MediaSettings(_Room):
    """Pictures, audio and video that a request names by URL, and that are downloaded for it."""

    allowed_domains: Annotated[list[str], BeforeValidator(_split)] = Field(
        default_factory=list, description="Only from these domains and their subdomains. None: from anywhere public."
    )
    private_hosts: Annotated[list[str], BeforeValidator(_split)] = Field(
        default_factory=list,
        description="Hosts that may lie at private, loopback or link-local addresses; no others may.",
    )
    max_bytes: int = Field(64 << 20, ge=1024, description="Largest download.")
    timeout_seconds: float = Field(30, gt=0, description="A download takes at most this long, tries and redirects in.")
    redirects_max: int = Field(3, ge=0, le=20, description="Redirects that are followed, each judged like the first.")


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
    upload_max_bytes: int = Field(8 << 30, ge=1, description="Size of a file that arrives in parts.")
    upload_part_max_bytes: int = Field(64 << 20, ge=1024, description="Size of one part.")
    upload_max_parts: int = Field(10_000, ge=1, le=100_000, description="Parts of one Upload.")
    completion_windows: Annotated[list[str], BeforeValidator(_split)] = Field(
        default_factory=lambda: ["24h"],
        min_length=1,
        description="Values of completion_window, such as `1h,24h,7d`; `any` allows every N`m`, N`h` or N`d`.",
    )
    completion_window_max_seconds: int = Field(
        30 * _DAY_SECONDS, ge=60, description="Longest completion_window that `any` allows; the shortest is a minute."
    )
    mixed_models: bool = Field(False, description="Allow lines of one batch to name different models.")
    trust_chat_template: bool = Field(False, description="Allow a `chat_template` of the user's own in a line.")
    allowed_fields: Annotated[list[str], BeforeValidator(_split)] = Field(
        default_factory=list,
        description="Fields that docs/fields.md calls refused and that lines may have all the same; never `priority`.",
    )

    @property
    def fields_let_through(self) -> frozenset[str]:
        return frozenset(self.allowed_fields) | ({"chat_template"} if self.trust_chat_template else set())

    @field_validator("completion_windows")
    @classmethod
    def _windows_can_be_read(cls, windows: list[str]) -> list[str]:
        if not all(re.fullmatch(r"any|[1-9][0-9]{0,5}[mhd]", window) for window in windows):
            raise ValueError("each of limits.completion_windows is `any`, or a number and m, h or d, such as 24h")
        return windows


class QuotaSettings(_Room):
    """What one project may use at once; 0: as much as it likes. A key may have quotas of its own."""

    open_batches: int = Field(0, ge=0, description="Batches that have not ended.")
    queued_requests: int = Field(0, ge=0, description="Requests of those batches that have no answer yet.")
    enqueued_tokens: int = Field(
        0, ge=0, description="Estimated tokens of those batches; above it a batch fails with `token_limit_exceeded`."
    )
    stored_bytes: int = Field(0, ge=0, description="Bytes of all files, results included.")
    requests_per_minute: int = Field(0, ge=0, description="Calls of the API, counted by each process on its own.")


class WorkerSettings(_Room):
    """The drain."""

    port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="Where a `batchyard worker` answers `/health`, `/ready` and `/metrics`, at server.host. No key.",
    )
    poll_seconds: float = Field(
        0.25, gt=0, le=60, description="How often new work, cancels and deadlines are looked for."
    )
    lease_seconds: float = Field(6, gt=0, description="A worker silent for this long loses its chunks.")
    heartbeat_seconds: float = Field(1.5, gt=0, description="How often leases are extended.")
    part_seconds: float = Field(1, gt=0, description="Finished lines are made durable at least this often.")
    part_max_bytes: int = Field(4 << 20, ge=1024, description="…or once this many bytes of results wait.")
    chunk_max_lines: int = Field(1000, ge=1, le=100_000, description="Lines in one chunk.")
    chunk_max_bytes: int = Field(
        16 << 20, ge=1024, description="Bytes in one chunk; a longer line is a chunk of its own."
    )
    poison_lines_max: int = Field(
        16,
        ge=0,
        description="When so many lines of a batch killed the engine, its others get error rows instead. 0: never.",
    )
    lost_after_seconds: float = Field(
        30, gt=0, description="Stored bytes that are missing so long, while others stand, count as lost."
    )
    gone_after_seconds: float = Field(
        3600, gt=0, description="…and so long where most others are missing too: a disk may not be mounted."
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
    idempotency_seconds: int = Field(
        _DAY_SECONDS, ge=1, description="How long an Idempotency-Key stands for the object that it made."
    )


class WebhookSettings(_Room):
    """Telling others that a batch has ended."""

    allow_private_addresses: bool = Field(
        False, description="Deliver also to loopback, private and link-local addresses, such as an internal receiver's."
    )
    allow_http: bool = Field(False, description="Take `http://` URLs too; for tests.")
    ca_file: Path | None = Field(
        None, description="PEM file with certificate authorities to trust besides the system's."
    )
    timeout_seconds: float = Field(5, gt=0, le=30, description="A receiver must have answered by then.")
    concurrency: int = Field(16, ge=1, le=256, description="Attempts under way at once.")
    concurrency_per_endpoint: int = Field(4, ge=1, le=256, description="…of which to one receiver.")
    poll_seconds: float = Field(0.5, gt=0, le=60, description="How often due messages are looked for.")
    retry_first_seconds: float = Field(5, gt=0, description="Pause after a first failed attempt, doubled each time.")
    retry_max_seconds: float = Field(6 * 3600, gt=0, description="Longest such pause.")
    give_up_seconds: int = Field(
        3 * _DAY_SECONDS, ge=1, description="A message is given up this long after its batch ended."
    )
    keep_seconds: int = Field(
        7 * _DAY_SECONDS, ge=1, description="How long delivered and given-up messages stay in the database."
    )
    endpoints_max: int = Field(100, ge=1, le=10_000, description="Webhook endpoints of one project.")


class LogSettings(_Room):
    """What is written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe level that is written."
    )
    format: Literal["json", "console"] = Field("json", description="`json`: one object a line. `console`: for people.")


class DebugSettings(_Room):
    """For tests that break things on purpose. Leave all of it unset."""

    failpoint: str = Field(
        "",
        description="Moments at which the process dies, freezes or fails: `NAME=ACTION@N`, see app/failpoint.py.",
    )

    @field_validator("failpoint")
    @classmethod
    def _known(cls, text: str) -> str:
        failpoint.parse(text)
        return text


class Settings(_Room):
    """All of it. Built by `load`."""

    data_dir: Path = Field(
        Path("batchyard-data"), description="Folder for the database and the bytes, where no URL says else."
    )
    server: ServerSettings = Field(default_factory=ServerSettings)
    store: StoreSettings = Field(default_factory=StoreSettings)
    blobs: BlobSettings = Field(default_factory=BlobSettings)
    engine: EngineSettings = Field(default_factory=EngineSettings)
    media: MediaSettings = Field(default_factory=MediaSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    quotas: QuotaSettings = Field(default_factory=QuotaSettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    retention: RetentionSettings = Field(default_factory=RetentionSettings)
    webhooks: WebhookSettings = Field(default_factory=WebhookSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    debug: DebugSettings = Field(default_factory=DebugSettings)

    @property
    def store_url(self) -> str:
        return self.store.url or f"sqlite+aiosqlite:///{(self.data_dir / 'batchyard.db').absolute()}"

    @property
    def blob_path(self) -> Path:
        return self.blobs.path or self.data_dir / "blobs"

    @property
    def loopback_only(self) -> bool:
        """Whether nobody but this machine can connect, as far as the address says."""
        return self.server.host in _LOOPBACK
