from __future__ import annotations

import asyncio
import json
import logging
import warnings
from collections.abc import Generator

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from app import telemetry
from app.settings import LogSettings

log = structlog.get_logger()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Generator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], root.level = before[0], before[1]
    logging.captureWarnings(False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_event_is_one_json_line_with_its_context(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure(LogSettings())
    with structlog.contextvars.bound_contextvars(request_id="req_1"):
        log.info("chunk_sealed", batch_id="batch_1", text="a\u2028\nb")
    (line,) = lines(capsys)
    assert line["event"] == "chunk_sealed"
    assert line["level"] == "info"
    assert (line["request_id"], line["batch_id"], line["text"]) == ("req_1", "batch_1", "a\u2028\nb")
    assert str(line["timestamp"]).endswith("Z")


@pytest.mark.parametrize("name", ["uvicorn.error", "vllm.engine", "somebody.else"])
def test_foreign_sentence_becomes_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("vllm").addHandler(logging.StreamHandler())
    telemetry.configure(LogSettings())
    logging.getLogger(name).warning("Started %s", "x\ny")
    (line,) = lines(capsys)
    assert (line["event"], line["logger"], line["message"]) == ("foreign_log", name, "Started x\ny")


def test_configured_twice_writes_once(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure(LogSettings())
    telemetry.configure(LogSettings())
    log.info("once")
    assert len(lines(capsys)) == 1


def test_level_holds_for_both(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure(LogSettings(level="warning"))
    log.info("quiet")
    logging.getLogger("uvicorn.error").info("quiet")
    log.warning("loud")
    assert [line["event"] for line in lines(capsys)] == ["loud"]


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_traceback_shows_no_values_of_variables(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure(LogSettings.model_validate({"format": log_format}))
    prompt = "a-secret" + "-prompt"  # so that no source line holds it
    try:
        {0: ""}[len(prompt)]
    except LookupError:
        log.exception("request_failed")
        logging.getLogger("uvicorn.error").exception("failed")
    written = capsys.readouterr().err
    assert written.count("KeyError") >= 2
    assert prompt not in written


def test_warnings_go_to_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure(LogSettings())
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("look out", stacklevel=1)
    (line,) = lines(capsys)
    assert "look out" in str(line["message"])


def test_every_metric_is_ours_by_prefix_and_shown_once() -> None:
    named = {
        name: metric
        for name, metric in vars(telemetry).items()
        if name.isupper() and hasattr(metric, "collect") and name != "REGISTRY"
    }
    assert len(named) >= 20
    names = [metric.describe()[0].name for metric in named.values()]
    assert all(name.startswith("batch_") for name in names)
    assert len(set(names)) == len(names)
    shown = [family.name for family in text_string_to_metric_families(telemetry.metrics_text().decode())]
    assert set(names) <= set(shown)
    assert len(set(shown)) == len(shown)
    assert not [name for name in shown if name.endswith("_created")]


def test_answer_cut_short_by_a_stop_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure(LogSettings())
    logging.getLogger("uvicorn.error").error("Exception in ASGI application", exc_info=asyncio.CancelledError())
    (line,) = lines(capsys)
    assert (line["level"], line["message"]) == ("warning", "An answer was cut short by the stop.")
    assert "exception" not in line
