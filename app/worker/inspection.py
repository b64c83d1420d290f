"""What validation finds in a batch input file (openai-contract 4), and the chunks it cuts: blocks in, verdict out.

Memory: the line cutter's, 8 bytes for each custom_id, one entry for each distinct model, and at most `problems_max`
problems.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.domain import tokens
from app.domain.batch import BatchProblem
from app.domain.chunk import ChunkSpec
from app.domain.lines import Line, LineCutter
from app.domain.request import LineRules, RequestLine, line_too_long, parse_line, stated_custom_id
from app.settings import LimitSettings, WorkerSettings
from app.worker.repeats import Hashes, Suspects

_MODEL_SHOWN_CHARS = 256  # a longer name is no model of ours, and not worth keeping


class Inspection:
    """Feed the blocks of the file in order until `feed` says enough, `finish`, then ask for `problems` and `chunks`.

    Duplicate ids are found by a second inspection only, which is given the `suspects` of the first; when the first
    `repeated` none, there are none, and it stands.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        limits: LimitSettings,
        worker: WorkerSettings,
        suspects: Suspects | None = None,
        hashes: Hashes | None = None,
    ) -> None:
        self._limits = limits
        self._rules = LineRules(
            endpoint=endpoint,
            line_max_bytes=limits.line_max_bytes,
            json_max_depth=limits.json_max_depth,
            custom_id_max_chars=limits.custom_id_max_chars,
            allowed_fields=limits.fields_let_through,
        )
        self._cutter = LineCutter(line_max_bytes=limits.line_max_bytes)
        self._problems: list[BatchProblem] = []
        self._hashes = Hashes() if hashes is None else hashes
        self._is_duplicate = self._hashes.note if suspects is None else suspects.note
        self._models: dict[str, list[int]] = {}  # the lines that name it, the first `problems_max` of them
        self._inputs = 0
        self._chunks = _ChunkCutter(max_lines=worker.chunk_max_lines, max_bytes=worker.chunk_max_bytes)
        self.lines = 0
        self.tokens = 0  # estimated, prompts and answers

    @property
    def model(self) -> str:
        """The first model that a line names; empty when none does."""
        return next(iter(self._models), "")

    @property
    def chunks(self) -> list[ChunkSpec]:
        """The cut of the whole file; complete after `finish`."""
        return self._chunks.specs

    def feed(self, block: bytes) -> bool:
        """Look at the lines that end in `block`. False: no further block can change the verdict."""
        return self._take(self._cutter.feed(block))

    def finish(self) -> None:
        """The file has ended."""
        if self._take(self._cutter.finish()):
            self._chunks.close()

    def repeated(self) -> Sequence[int]:
        """Hashes of custom_ids that stand twice in what was fed, or that only seem to. Ask once."""
        return self._hashes.repeated()

    def problems(self, models: Collection[str] | None) -> tuple[BatchProblem, ...]:
        """Everything found, in line order, what concerns the whole file first; at most `problems_max`.

        `models` are the names that are served; None while that is not known, and then nothing is said about unknown
        names.
        """
        found = [*self._file_problems(), *self._problems, *self._model_problems(models)]
        found.sort(key=lambda problem: problem.line or 0)
        return tuple(found[: self._limits.problems_max])

    def _take(self, lines: list[Line]) -> bool:
        for line in lines:
            self.lines += 1
            if self.lines > self._limits.batch_max_lines:
                return False
            self._look(line)
            if len(self._problems) >= self._limits.problems_max:
                return False
        return True

    def _look(self, line: Line) -> None:
        if line.text is None:
            self._problems.append(line_too_long(line=line.number, limit_bytes=self._limits.line_max_bytes))
            return
        found = parse_line(line.text, line=line.number, rules=self._rules)
        if isinstance(found, RequestLine):
            self._note_id(found.custom_id, line.number)
            self._note_model(found.model, line.number)
            self._inputs += found.inputs
            self.tokens += tokens.estimate(found.body)
            self._chunks.add(line)
            return
        self._problems.extend(found)
        custom_id = stated_custom_id(line.text)
        if custom_id is not None:
            self._note_id(custom_id, line.number)

    def _note_id(self, custom_id: str, number: int) -> None:
        if not self._is_duplicate(custom_id):
            return
        shown = custom_id[: self._limits.custom_id_max_chars]
        message = (
            f"The custom_id '{shown}' for this request is a duplicate of another request. "
            "The custom_id parameter must be unique for each request in a batch."
        )
        self._problems.append(BatchProblem("duplicate_custom_id", message, "custom_id", number))

    def _note_model(self, model: str, number: int) -> None:
        lines = self._models.setdefault(model[:_MODEL_SHOWN_CHARS], [])
        if len(lines) < self._limits.problems_max:
            lines.append(number)

    def _file_problems(self) -> list[BatchProblem]:
        limits = self._limits
        if not self.lines:
            return [BatchProblem("empty_file", "The input file holds no requests.")]
        found = []
        if self.lines > limits.batch_max_lines:
            message = f"The input file holds more requests than the limit of {limits.batch_max_lines}."
            found.append(BatchProblem("too_many_tasks", message))
        if self._rules.endpoint == "/v1/embeddings" and self._inputs > limits.embedding_max_inputs:
            message = f"The input file holds more embedding inputs than the limit of {limits.embedding_max_inputs}."
            found.append(BatchProblem("too_many_inputs", message))
        return found

    def _model_problems(self, models: Collection[str] | None) -> list[BatchProblem]:
        found = []
        unknown = [] if models is None else [model for model in self._models if model not in models]
        for model in unknown:
            message = f"The provided model '{model}' is not supported by the Batch API."
            found += [BatchProblem("model_not_found", message, "body.model", line) for line in self._models[model]]
        if self._limits.mixed_models:
            return found
        # The first served model is the batch's; every other served one does not match it.
        for model in [model for model in self._models if model not in unknown][1:]:
            message = (
                f"The model '{model}' for this request does not match the rest of the batch. "
                "Each batch must contain requests for a single model."
            )
            found += [BatchProblem("mismatched_model", message, "body.model", line) for line in self._models[model]]
        return found


class _ChunkCutter:
    """Runs of whole lines up to both limits; a line above `max_bytes` is a chunk of its own."""

    def __init__(self, *, max_lines: int, max_bytes: int) -> None:
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._start = 0
        self._end = 0
        self._first_line = 0
        self._lines = 0
        self.specs: list[ChunkSpec] = []

    def add(self, line: Line) -> None:
        if self._lines and (self._lines >= self._max_lines or line.end - self._start > self._max_bytes):
            self.close()
        if not self._lines:
            self._start, self._first_line = line.start, line.number
        self._end = line.end
        self._lines += 1

    def close(self) -> None:
        if self._lines:
            self.specs.append(
                ChunkSpec(
                    position=len(self.specs),
                    start=self._start,
                    end=self._end,
                    first_line=self._first_line,
                    lines=self._lines,
                )
            )
            self._lines = 0
