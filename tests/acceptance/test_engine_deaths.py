"""Engines that die, hang, or never come, and lines that are to blame: what the client and the operator see."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from tests.acceptance.batch import by_id, chat, counts, create, hanging, rows, run, wait, wait_for_progress
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server

QUICK_REBUILD = {"BATCHYARD_ENGINE_REBUILD_FIRST_SECONDS": "0.05", "BATCHYARD_ENGINE_REBUILD_MAX_SECONDS": "0.1"}
DEATHS = frozenset({"engine_died", "line_killed_engine"})


def deaths(server: Server) -> float:
    return server.metrics()["batch_engine_deaths_total"]


def leased(server: Server) -> int:
    with server.database() as database:
        return int(database.execute("SELECT count(*) FROM chunks WHERE state = 'leased'").fetchone()[0])


def test_a_poison_line_among_200_costs_three_deaths_and_one_error_row(start_server: StartServer) -> None:
    server = start_server(settings=QUICK_REBUILD, expected_errors=DEATHS)
    lines = [chat(str(number), echo={"delay_ms": 20}) for number in range(200)]
    lines[117] = chat("117", echo={"crash": True})
    with server.sdk() as client:
        batch = run(client, lines, seconds=30)
        assert counts(batch) == (200, 199, 1)
        assert set(by_id(rows(client, batch.output_file_id))) == {str(number) for number in range(200)} - {"117"}
        [row] = rows(client, batch.error_file_id)
    assert row["custom_id"] == "117"
    assert row["response"]["status_code"] == 500
    assert row["response"]["body"]["error"]["code"] == "engine_error"
    assert deaths(server) == 3


def test_a_line_at_which_the_engine_hangs_ends_as_an_error_row(start_server: StartServer) -> None:
    server = start_server(
        settings=QUICK_REBUILD | {"BATCHYARD_ENGINE_HANG_SECONDS": "1"}, expected_errors=DEATHS | {"engine_hung"}
    )
    with server.sdk() as client:
        batch = run(client, [*(chat(str(number)) for number in range(50)), hanging("x")], seconds=30)
        assert counts(batch) == (51, 50, 1)
        [row] = rows(client, batch.error_file_id)
        assert row["custom_id"] == "x"
    assert deaths(server) == 3


def test_too_many_rebuilds_end_the_process_and_the_next_one_knows(start_server: StartServer) -> None:
    """Leases are handed back, and what is known of the line outlives the process: it runs alone at once."""
    gives_up = start_server(settings=QUICK_REBUILD | {"BATCHYARD_ENGINE_REBUILDS_MAX": "1"})
    with gives_up.sdk() as client:
        batch = create(client, [*(chat(str(number)) for number in range(50)), chat("x", echo={"crash": True})])
    assert gives_up.process.wait(15) == 1
    assert leased(gives_up) == 0
    assert {"engine_given_up", "doubts_recorded"} <= {event["event"] for event in gives_up.events()}
    server = start_server(settings=QUICK_REBUILD, data_dir=gives_up.data_dir, expected_errors=DEATHS)
    with server.sdk() as client:
        ended = wait(client, batch.id, until={"completed"})
        assert counts(ended) == (51, 50, 1)
    assert deaths(server) == 1


def test_a_model_that_can_never_load_ends_the_process_with_a_plain_word(start_server: StartServer) -> None:
    server = start_server(flags=("--engine", "echo"))
    server.stop()
    server.flags = ("--engine", "vllm", "--model", "/no/such/model")
    server.start_worker()
    assert server.process.wait(30) == 2
    assert server.log().splitlines()[-1] == "error: there is no model in /no/such/model"


@pytest.mark.parametrize("crash", [True, False], ids=["dead", "loading"])
def test_a_stop_does_not_wait_for_an_engine_that_is_away(start_server: StartServer, crash: bool) -> None:
    server = start_server(settings={"BATCHYARD_ENGINE_ECHO_LOAD_SECONDS": "0.5"}, wait="/ready", expected_errors=DEATHS)
    settings = {"BATCHYARD_ENGINE_ECHO_LOAD_SECONDS": "600"}
    if crash:
        settings = {"BATCHYARD_ENGINE_REBUILD_FIRST_SECONDS": "600", "BATCHYARD_ENGINE_REBUILD_MAX_SECONDS": "600"}
    server.stop()
    server.settings = settings
    server.start(wait="/health")
    with server.sdk() as client:
        lines = [chat("a", echo={"delay_ms": 300, "crash": True}), *(hanging(str(number)) for number in range(20))]
        batch = create(client, lines)
        if crash:
            while deaths(server) < 1:
                time.sleep(0.02)
        assert client.batches.retrieve(batch.id).status in ("validating", "in_progress")
    start = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    try:
        assert server.process.wait(15) == 0
    except subprocess.TimeoutExpired:
        pytest.fail(server.log())
    assert time.monotonic() - start < 4
    assert leased(server) == 0


def test_lines_of_another_batch_go_on_while_a_suspect_is_tried(start_server: StartServer) -> None:
    server = start_server(settings=QUICK_REBUILD, expected_errors=DEATHS)
    with server.sdk() as client:
        good = create(client, [chat(str(number), echo={"delay_ms": 30}) for number in range(1000)])
        wait_for_progress(client, good.id, lines=20)
        bad = create(client, [chat("x", echo={"crash": True}), chat("y")])
        assert counts(wait(client, bad.id, until={"completed"})) == (2, 1, 1)
        assert counts(wait(client, good.id, until={"completed"})) == (1000, 1000, 0)
