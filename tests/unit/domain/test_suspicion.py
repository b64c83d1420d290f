"""What deaths prove."""

from __future__ import annotations

from app.domain.suspicion import SUSPECT, TRUSTED, Doubt


def test_third_death_by_itself_makes_guilty() -> None:
    doubt = TRUSTED
    seen = []
    for _ in range(3):
        doubt = doubt.after_death(killed=False)
        seen.append((doubt.alone, doubt.guilty))
    assert seen == [(False, False), (True, False), (True, True)]


def test_killed_from_outside_alone_must_happen_again() -> None:
    doubt = Doubt(deaths=2).after_death(killed=True)
    assert (doubt.alone, doubt.guilty) == (True, False)
    assert doubt.after_death(killed=True).guilty
    assert doubt.after_death(killed=False).guilty


def test_deaths_in_company_are_not_held_against_a_line() -> None:
    assert TRUSTED.after_death(killed=True) == SUSPECT
    assert SUSPECT.after_death(killed=False).strikes == 0
