"""Lists in docs/ are complete: settings, metrics, log events; links lead somewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app import telemetry
from app.cli.listing import as_markdown

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CATALOGUE = (DOCS / "metrics-and-logs.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "DEVELOPERS.md", *sorted(DOCS.rglob("*.md"))]
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}


def events_in_code() -> set[str]:
    """The first argument of every `log.…(…)` call under app/, also where the method was put into a variable first."""
    found = set()
    for path in (ROOT / "app").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        writers = {
            target.id
            for node in nodes
            if isinstance(node, ast.Assign) and any(_is_method(part) for part in ast.walk(node.value))
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in nodes:
            if isinstance(node, ast.Call) and (
                _is_method(node.func) or (isinstance(node.func, ast.Name) and node.func.id in writers)
            ):
                assert node.args, f"{path.name}:{node.lineno}: a log call without an event"
                found.update(_words(node.args[0]))
    return found


def _is_method(node: ast.AST) -> bool:
    """`log.info` and the like."""
    named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "log"
    return named and isinstance(node, ast.Attribute) and node.attr in LEVELS


def _words(node: ast.expr) -> set[str]:
    """The string constants that an expression may be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.IfExp):
        return _words(node.body) | _words(node.orelse)
    raise AssertionError(f"line {node.lineno}: a log event that is not a plain word")


def listed(heading: str) -> set[str]:
    """The first column of the tables under `heading`."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", CATALOGUE, re.MULTILINE | re.DOTALL)
    assert section, heading
    first_cells = re.findall(r"^\| (`.*?) \|", section[1], re.MULTILINE)
    return {word for cell in first_cells for word in re.findall(r"`(\w+)`", cell)}


def test_settings_page_is_what_the_command_writes() -> None:
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert page == as_markdown(), "run `batchyard settings --markdown > docs/settings.md`"


def test_every_metric_is_listed_and_every_listed_one_exists() -> None:
    exported = set()
    for family in text_string_to_metric_families(telemetry.metrics_text().decode()):
        if not family.name.startswith(("process_", "python_")):  # the client library's own, the same everywhere
            exported.add(family.name + ("_total" if family.type == "counter" else ""))
    assert listed("Metrics") == exported


def test_every_log_event_is_listed_and_every_listed_one_exists() -> None:
    # `foreign_log` is given to records of other libraries by the formatter.
    assert listed("Log events") == events_in_code() | {"foreign_log"}


def test_log_events_are_snake_case_words() -> None:
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", event) for event in events_in_code())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_only_settings_that_exist(page: Path) -> None:
    from app.settings import knobs

    names = {knob.name for knob in knobs()}
    rooms = {knob.room for knob in knobs() if knob.room}
    pattern = rf"\b((?:{'|'.join(sorted(rooms))})\.[a-z_]+)\b(?![/(.])"
    for mention in re.findall(pattern, page.read_text(encoding="utf-8")):
        if not mention.endswith((".py", ".md", ".log", ".db")):
            assert mention in names, f"{page.name} names {mention}"
