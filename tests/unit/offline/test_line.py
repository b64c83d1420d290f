from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.domain.lines import Line
from app.offline.line import Fault, fault_finder, request_of
from app.settings import LimitSettings
from tests.unit.offline.scenes import line

find = fault_finder(LimitSettings(line_max_bytes=2000))


def of(text: bytes | None, number: int = 7) -> Fault | None:
    return find(Line(number, 0, 0, text))


def test_good_line_has_no_fault_and_gives_its_request() -> None:
    text = line("a", url="/anything")
    assert of(text) is None
    assert request_of(text)[:2] == ("a", "/anything")


def test_line_may_do_what_a_hosted_one_may_not() -> None:
    assert of(line("x" * 1000, model="", priority=1, request_id="r", chat_template="t")) is None
    assert of(b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{},"more":1}') is None
    assert of(line("a", stream=False)) is None
    assert of(line("a", text="[" * 500)) is None


def test_line_above_the_limit_has_a_fault_without_an_id() -> None:
    assert of(None) == Fault(None, "line_too_long", "Line 7: This line is longer than the limit of 2000 bytes.")


@given(st.binary(max_size=200))
def test_any_bytes_are_judged_and_what_passes_can_be_run(text: bytes) -> None:
    fault = of(text)
    if fault is None:
        assert request_of(text).body.startswith(b"{")
    else:
        assert fault.message.startswith("Line 7: ")
