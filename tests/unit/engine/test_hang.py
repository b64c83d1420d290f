"""When silence is a hang."""

from __future__ import annotations

from app.engine.base import Pulse
from app.engine.hang import HangWatch


def looks(watch: HangWatch, *pulses: tuple[Pulse, float]) -> list[bool]:
    return [watch.hung(pulse, now=now) for pulse, now in pulses]


def test_silence_with_requests_inside_is_a_hang() -> None:
    silent = Pulse(inside=1, beats=7)
    assert looks(HangWatch(2), *((silent, float(now)) for now in range(4))) == [False, False, True, True]


def test_a_beat_or_an_empty_engine_starts_again() -> None:
    silent, beat, empty = Pulse(3, 7), Pulse(3, 8), Pulse(0, 8)
    seen = looks(HangWatch(2), (silent, 0), (silent, 1), (beat, 2), (beat, 3), (empty, 4), (beat, 5))
    assert seen == [False] * 6


def test_time_in_which_nobody_looked_does_not_count() -> None:
    silent = Pulse(1, 7)
    assert looks(HangWatch(10), (silent, 0), (silent, 3600), (silent, 7200)) == [False] * 3


def test_zero_seconds_never_hang() -> None:
    silent = Pulse(1, 7)
    assert looks(HangWatch(0), *((silent, float(now)) for now in range(100))) == [False] * 100
