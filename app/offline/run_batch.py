"""`batchyard run-batch`: one file of requests through one engine, without a server and without a database.

    places checked ─► input brought ─► surveyed ─► journal opened      refused up to here: exit code 2
      ─► drain, which loads the engine for the first line that needs it
      ─► rows put in input order ─► delivered ─► journal removed

Stopped or killed anywhere, the same command goes on from what the journal holds.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog
from rich.console import Console

from app.engine.supervised import SupervisedEngine
from app.errors import BatchyardError, Internal, SettingsInvalid, Unavailable
from app.offline.drain import LocalDrain
from app.offline.format import Name, rows_of
from app.offline.input import Input, Survey
from app.offline.journal import COMPLETED, Journal
from app.offline.line import fault_finder
from app.offline.place import Kind, place_of
from app.offline.progress import Meter
from app.offline.source import bring
from app.offline.target import Target
from app.settings import Settings

log = structlog.get_logger()

#: Share of `server.stop_seconds` that lines in flight get to end in.
_LINES_SHARE = 0.5
_MERGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `errors` names the second file of the format `openai`, and only there.

    `folder` is where the journal lies when the output is not a local file. `strict` refuses a file with a malformed
    line; `restart` forgets what an earlier run has done.
    """

    input: str
    output: str
    errors: str | None = None
    format: Name = "vllm"
    strict: bool = False
    restart: bool = False
    folder: Path | None = None


async def run_batch(
    plan: Plan,
    settings: Settings,
    *,
    engine_of: Callable[[Settings], SupervisedEngine],
    console: Console,
    stop: asyncio.Event,
    begun: asyncio.Event | None = None,
) -> int | None:
    """Run it. The exit code: 0, or 1 when a line was malformed; None when `stop` ended it early.

    `stop` is heeded once `begun` is set; until then there is nothing to save, and the process may just end.

    Raises SettingsInvalid when it is refused before the model loads, and another BatchyardError when it broke off
    later; then the same plan goes on from where it was.
    """
    async with AsyncExitStack() as stack:
        source, targets = place_of(plan.input), _targets(plan, settings)
        for target in targets:
            if target.is_same_file(source):
                raise SettingsInvalid(f"the output {target.place.text} is the input: it would be overwritten")
        folder = _folder(plan, targets[0])
        file = await bring(source, folder=folder, s3=settings.blobs)
        data = Input(file, name=source.shown, line_max_bytes=settings.limits.line_max_bytes)
        stack.callback(data.close)
        survey = await asyncio.to_thread(data.survey, fault_finder(settings.limits) if plan.strict else None)
        if survey.faulty:
            raise SettingsInvalid(_complaint(survey))
        key = _key(plan, survey, settings)
        base = _base(targets[0], folder, key)
        journal = await asyncio.to_thread(_journal, base, key, survey, plan.restart)
        stack.callback(journal.close)
        if begun is not None:
            begun.set()
        meter = Meter(
            lines=survey.lines, before=journal.ended.tally, malformed=journal.ended.malformed, console=console
        )
        await _drain(data, journal, meter, plan, settings, engine_of=engine_of, stop=stop)
        if meter.total.lines < survey.lines:
            meter.say(f"stopped; {meter.total.lines} of {survey.lines} lines are done; the same command goes on")
            return None
        await _deliver(journal, targets, base)
        await asyncio.to_thread(journal.remove)
        meter.say(f"{meter.summary()}; wrote {', '.join(target.place.shown for target in targets)}")
        return 1 if meter.malformed else 0


async def _drain(
    data: Input,
    journal: Journal,
    meter: Meter,
    plan: Plan,
    settings: Settings,
    *,
    engine_of: Callable[[Settings], SupervisedEngine],
    stop: asyncio.Event,
) -> None:
    """Let every line that is left end, unless `stop`."""
    if meter.before.lines == meter.lines:
        return
    worker = settings.worker
    with meter:
        engine = engine_of(settings)
        try:
            drain = LocalDrain(
                runs=data.runs(max_lines=worker.chunk_max_lines, max_bytes=worker.chunk_max_bytes),
                journal=journal,
                engine=engine,
                rows=rows_of(plan.format),
                find=fault_finder(settings.limits),
                meter=meter,
                engine_settings=settings.engine,
                settings=worker,
                stop_seconds=settings.server.stop_seconds * _LINES_SHARE,
            )
            await drain.run(stop)
        except ExceptionGroup as group:
            raise _first(group) from group
        finally:
            await engine.stop()


async def _deliver(journal: Journal, targets: list[Target], base: Path) -> None:
    """Rows into their files, in input order, and those to their places. Raises BatchyardError."""
    drafts = [target.draft(base.with_name(f"{base.name}.{at}")) for at, target in enumerate(targets)]
    try:
        await asyncio.to_thread(_merge, journal, drafts)
        for target, draft in zip(targets, drafts, strict=True):
            await target.deliver(draft)
    finally:
        await asyncio.to_thread(_discard, drafts)


def _discard(drafts: list[Path]) -> None:
    for draft in drafts:
        draft.unlink(missing_ok=True)


def _merge(journal: Journal, drafts: list[Path]) -> None:
    """What completed goes to the first draft, the rest to the last."""
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(draft.open("wb", buffering=_MERGE_BYTES)) for draft in drafts]
            for kind, row in journal.merged():
                files[0 if kind == COMPLETED else -1].write(row)
            for file in files:
                file.flush()
                os.fsync(file.fileno())
    except OSError as exc:
        raise Unavailable(f"{drafts[0].parent} cannot take the results: {exc.strerror}") from exc


def _targets(plan: Plan, settings: Settings) -> list[Target]:
    if plan.format == "openai" and plan.errors is None:
        raise SettingsInvalid("--format openai writes two files: name the second one with --error-file")
    if plan.format != "openai" and plan.errors is not None:
        raise SettingsInvalid("--error-file goes with --format openai; --format vllm writes one file")
    texts = [plan.output] if plan.errors is None else [plan.output, plan.errors]
    targets = [Target(place_of(text), s3=settings.blobs) for text in texts]
    if len(targets) == 2 and (targets[0].is_same_file(targets[1].place) or texts[0] == texts[1]):
        raise SettingsInvalid("--output-file and --error-file are one file")
    return targets


def _folder(plan: Plan, target: Target) -> Path:
    """Where the journal and a copy of the input lie: beside a local output, else in a folder of the user's own."""
    if target.place.kind is Kind.FILE and target.place.path is not None:
        return target.place.path.parent
    folder = plan.folder or Path(tempfile.gettempdir()) / f"batchyard-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as exc:
        raise SettingsInvalid(f"{folder} cannot be made: {exc.strerror}") from exc
    if plan.folder is None and (found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode)):
        raise SettingsInvalid(f"{folder} belongs to somebody else; name another folder with --output-tmp-dir")
    return folder


def _base(target: Target, folder: Path, key: bytes) -> Path:
    """What the names of the run's own files begin with."""
    if target.place.kind is Kind.FILE and target.place.path is not None:
        return target.place.path
    return folder / f"run-{key.hex()[:24]}"


def _journal(base: Path, key: bytes, survey: Survey, restart: bool) -> Journal:
    try:
        return Journal.open(base, key=key, lines=survey.lines, restart=restart)
    except Unavailable as exc:
        raise SettingsInvalid(exc.message) from exc


def _key(plan: Plan, survey: Survey, settings: Settings) -> bytes:
    """32 bytes that name the run: its input's content and everything that decides what its rows say."""
    engine = settings.engine
    facts = [
        survey.digest.hex(),
        survey.bytes,
        plan.format,
        # How fast and how patiently it answers decides nothing.
        engine.model_dump(mode="json", include={"kind", "model", "arguments", "url"}),
        settings.limits.line_max_bytes,
        settings.limits.json_max_depth,
        plan.output,
        plan.errors,
    ]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=32).digest()


def _complaint(survey: Survey) -> str:
    more = survey.faulty - len(survey.faults)
    sentences = [fault.message for fault in survey.faults] + ([f"and {more} more"] if more else [])
    return f"--strict: {survey.faulty} of {survey.lines} lines are malformed. {' '.join(sentences)}"


def _first(group: ExceptionGroup) -> Exception:
    """The expected error in it that says most; anything else is a defect of ours."""
    expected, defects = group.split(BatchyardError)
    if expected is None or defects is not None:
        log.critical("offline_run_failed", exc_info=group)
        return Internal("the run broke off by a defect; the log has it")
    found: BaseException = expected
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Exception)
    return found
