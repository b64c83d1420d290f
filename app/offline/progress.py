"""How far a run is, for people, on stderr: a bar on a terminal, else a line now and then; and a summary."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.domain.chunk import NO_TALLY, Tally

#: Between two lines, where there is no terminal.
LINE_SECONDS = 10.0


class Meter:
    """A context. `before` and `malformed` are what earlier runs have done of `lines`."""

    def __init__(self, *, lines: int, before: Tally, malformed: int, console: Console) -> None:
        self.lines = lines
        self.before = before
        self.now = NO_TALLY
        self.malformed = malformed
        self._console = console
        self._began: float | None = None
        self._took_seconds = 0.0
        self._said_at = 0.0
        self._progress: Progress | None = None
        if console.is_terminal:
            columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"))
            self._progress = Progress(*columns, TimeRemainingColumn(compact=True), console=console)
            self._bar = self._progress.add_task("reading", total=lines, completed=before.lines, speed="")

    def __enter__(self) -> Meter:
        if self._progress is not None:
            self._progress.start()
        else:
            self.say(f"{self.lines} lines, {self.before.lines} of them done before")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._began is not None:
            self._took_seconds = time.monotonic() - self._began
        if self._progress is not None:
            self._progress.stop()

    def loading(self) -> None:
        """The model is needed, and loads."""
        if self._progress is not None:
            self._progress.update(self._bar, description="loading")
        else:
            self.say("loading the model")

    def loaded(self) -> None:
        """The model answers: the clock runs from here."""
        self._began = self._said_at = time.monotonic()
        if self._progress is not None:
            self._progress.update(self._bar, description="running")

    def ended(self, tally: Tally, malformed: int) -> None:
        """So much more has ended and is durable."""
        self.now += tally
        self.malformed += malformed
        if self._progress is not None:
            self._progress.update(self._bar, completed=self.before.lines + self.now.lines, speed=self._speed())
        elif self._began is not None and time.monotonic() - self._said_at >= LINE_SECONDS:
            self._said_at = time.monotonic()
            done = self.before.lines + self.now.lines
            self.say(f"{done} of {self.lines} lines, {self._speed()}, {self._left(done)} left")

    @property
    def total(self) -> Tally:
        """This run and those before it."""
        return self.before + self.now

    def summary(self) -> str:
        """How the whole went, and how fast this run was."""
        total, usage = self.total, self.total.usage
        counts = f"{total.completed} answered, {total.failed - self.malformed} failed, {self.malformed} malformed"
        tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
        if not self._began:
            return f"{total.lines} lines: {counts}; {tokens}"
        speed = self._speed(self._took_seconds)
        earlier = f", {self.before.lines} lines before" if self.before.lines else ""
        return f"{total.lines} lines: {counts}; {tokens}; {self._took_seconds:.1f} s, {speed}{earlier}"

    def say(self, sentence: str) -> None:
        """One plain line."""
        self._console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def _speed(self, seconds: float | None = None) -> str:
        if self._began is None:
            return ""
        seconds = max(seconds or self._elapsed(), 1e-3)
        return f"{self.now.lines / seconds:,.1f} lines/s, {self.now.usage.total_tokens / seconds:,.0f} tokens/s"

    def _left(self, done: int) -> str:
        if not self.now.lines:
            return "unknown time"
        seconds = int((self.lines - done) * self._elapsed() / self.now.lines)
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"

    def _elapsed(self) -> float:
        return time.monotonic() - self._began if self._began is not None else 0.0
