"""Logs and metrics: the one place that sets up logging, and that names every metric.

Logs go to stderr, one event a line. Records of the standard library (uvicorn, vLLM, SQLAlchemy …) pass through the same
formatter, so a line is a line whoever wrote it. Keys, bodies and prompts are never logged.

Metrics live in the default registry beside those of vLLM and of the Python process; ours have the prefix `batch_`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

import structlog
from prometheus_client import (
    REGISTRY,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    start_http_server,
)
from structlog.typing import EventDict, Processor, WrappedLogger

from app.errors import SettingsInvalid
from app.settings import LogSettings

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series beside every counter that nobody reads

_FAST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SLOW_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)

# --- HTTP ---
HTTP_REQUESTS = Counter("batch_http_requests", "Answered requests.", ["method", "route", "status"])
HTTP_SECONDS = Histogram("batch_http_seconds", "Time from request to last byte.", ["route"], buckets=_SLOW_SECONDS)
HTTP_BODY_BYTES = Counter("batch_http_body_bytes", "Body bytes, by direction `in` or `out`.", ["direction"])

# --- lines and batches ---
LINES = Counter("batch_lines", "Ended lines, by outcome `completed`, `failed` or `unrun`.", ["outcome"])
TOKENS = Counter("batch_tokens", "Tokens, by kind `input`, `cached` or `output`.", ["kind"])
BATCHES = Gauge("batch_batches", "Batches now, by status.", ["status"])
VALIDATIONS = Counter("batch_validations", "Ended validations, by result.", ["result"])
VALIDATION_SECONDS = Histogram("batch_validation_seconds", "Time to validate one file.", buckets=_SLOW_SECONDS)

# --- the drain ---
CHUNKS_CLAIMED = Counter("batch_chunks_claimed", "Chunks leased by this process.")
CHUNKS_SEALED = Counter("batch_chunks_sealed", "Chunks sealed by this process.")
PARTS = Counter("batch_parts", "Committed parts.")
PART_BYTES = Counter("batch_part_bytes", "Bytes of committed parts.")
PART_COMMIT_SECONDS = Histogram("batch_part_commit_seconds", "Time to make one part durable.", buckets=_FAST_SECONDS)
INFLIGHT = Gauge("batch_inflight", "Requests inside the engine now.")
WINDOW = Gauge("batch_window", "Requests that may be inside the engine at once.")
LINES_RERUN = Counter("batch_lines_rerun", "Lines sent to the engine again.")
LEASES_LOST = Counter("batch_leases_lost", "Chunks dropped because their lease was lost.")
SWEPT_BLOBS = Counter("batch_swept_blobs", "Blobs removed by the retention sweep.")

# --- webhooks ---
WEBHOOK_DELIVERIES = Counter(
    "batch_webhook_deliveries", "Webhook attempts, by outcome `delivered`, `failed` or `given_up`.", ["outcome"]
)
WEBHOOKS_PENDING = Gauge("batch_webhooks_pending", "Webhook messages neither delivered nor given up.")

# --- the engine ---
INTERACTIVE_INFLIGHT = Gauge("batch_interactive_inflight", "Interactive requests inside the engine now.")
ENGINE_UP = Gauge("batch_engine_up", "1 while the engine answers.")
ENGINE_DEATHS = Counter("batch_engine_deaths", "Times the engine died.")
ENGINE_CALL_SECONDS = Histogram(
    "batch_engine_call_seconds", "Time of one request inside the engine.", buckets=_SLOW_SECONDS
)


def metrics_text() -> bytes:
    """Every metric of this process in Prometheus' text format, version 0.0.4."""
    return generate_latest(REGISTRY)


def serve_metrics(host: str, port: int) -> str:
    """Serve `metrics_text` from a thread, for a process without an HTTP side of its own, until it ends.

    Returns the URL; port 0 takes a free one. Raises SettingsInvalid when the address cannot be had.
    """
    try:
        server, _ = start_http_server(port, host)
    except OSError as exc:
        raise SettingsInvalid(f"metrics cannot be served on {host}:{port}: {exc.strerror}") from exc
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{server.server_address[1]}/metrics"


#: Loggers that others equip with handlers of their own.
_FOREIGN_LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "vllm", "ray", "alembic")

#: Loggers whose INFO says nothing that our own events do not; aiosqlite would write every statement with its values.
_WORDY_LOGGERS = ("alembic", "httpx2", "httpcore2", "asyncio", "aiosqlite")


def configure(log: LogSettings, *, foreign: Sequence[str] = _FOREIGN_LOGGERS) -> None:
    """Send structlog and the standard library through one formatter to stderr. May be called again.

    `foreign` names loggers whose own handlers are taken away. uvicorn must be started with `log_config=None` and
    `access_log=False`, and vLLM with VLLM_CONFIGURE_LOGGING=0, or they put theirs back.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(), _sentence_to_message],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *(_json_tail() if log.format == "json" else _console_tail()),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(_without_cuts)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(log.level.upper())
    # Said to each: a library that vLLM imports sets the root logger to ERROR.
    logging.getLogger("app").setLevel(root.level)
    for name in foreign:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(root.level)
    for name in _WORDY_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # warns of every bad form; the client is told
    logging.captureWarnings(True)


def _json_tail() -> list[Processor]:
    return [
        # Never the locals of a frame: they hold prompts and keys.
        structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
        structlog.processors.JSONRenderer(ensure_ascii=True, default=str),
    ]


def _console_tail() -> list[Processor]:
    return [
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
    ]


def _without_cuts(record: logging.LogRecord) -> bool:
    """uvicorn reports an answer that outlasts a stop as a fault of the application: an error, with a traceback."""
    failure = record.exc_info[1] if record.exc_info else None
    if isinstance(failure, asyncio.CancelledError):
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args, record.exc_info = "An answer was cut short by the stop.", (), None
    return True


def _sentence_to_message(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """Others log sentences. Under `event` they would look like our event words, so they go to `message`."""
    event["message"] = event.get("event", "")
    event["event"] = "foreign_log"
    event.pop("color_message", None)  # uvicorn's second copy of the sentence
    return event
