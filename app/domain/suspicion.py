"""Lines that may be what kills the engine, or the whole process: what is known of one, and what follows.

    deaths 0    trusted    fills any seat
    deaths 1    suspect    only a few suspects are in flight at a time; trusted lines fill the other seats
    deaths 2    alone      nothing else is in flight
    strikes 2   guilty     it ends with an error row

A death counts for every line that was in flight. So few suspects run at a time that the second death leaves few lines
to run alone: one poison line among many costs three deaths, and the engine stays full meanwhile.

Only a death that meets a line alone is held against it, as strikes. An engine that died by itself, or hung, strikes
twice: that is the third death, and the line is guilty. An engine that was killed from outside, or a process that went
as a whole, strikes once: an operator, the kernel or a power cut may have done it, so it must happen again.

A chunk that was taken over from vanished processes again and again, while nothing of it became durable, is cautious:
each of its lines is a suspect, and is noted in the database before it runs, for its process may not be there to tell.
"""

from __future__ import annotations

from dataclasses import dataclass

ALONE_AFTER_DEATHS = 2
GUILTY_AFTER_STRIKES = 2
CAUTIOUS_AFTER_TAKEOVERS = 2


@dataclass(frozen=True, slots=True)
class Doubt:
    """How many deaths met a line in flight, and what of that is held against it."""

    deaths: int = 0
    strikes: int = 0

    @property
    def alone(self) -> bool:
        """It runs with nothing else in flight."""
        return self.deaths >= ALONE_AFTER_DEATHS

    @property
    def guilty(self) -> bool:
        """It is not run again."""
        return self.strikes >= GUILTY_AFTER_STRIKES

    def after_death(self, *, killed: bool) -> Doubt:
        """What is known after one more death. `killed`: the engine did not die by itself, as far as can be told."""
        strikes = (1 if killed else GUILTY_AFTER_STRIKES) if self.alone else 0
        return Doubt(self.deaths + 1, self.strikes + strikes)


TRUSTED = Doubt()
SUSPECT = Doubt(deaths=1)
