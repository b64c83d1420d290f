"""Names, heavy imports, broad excepts and log events: conventions that a reader relies on."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import pytest

from tests.architecture.source import Module, modules

FORBIDDEN_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc", "core", "tools"}
#: Heavy or optional: each is known to one module, which imports it where it is used, so the rest runs without it.
CONFINED = ("vllm", "ray", "obstore", "torch", "transformers")
#: Where an unforeseen error must not end the process: the worker's loop, and what turns errors into responses.
BROAD_EXCEPT = {"app/worker/loop.py", "app/http/app.py", "app/http/errors.py"}
LOG_METHODS = {"debug", "info", "warning", "error", "critical", "exception", "adebug", "ainfo", "awarning", "aerror"}
EVENT = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def test_module_is_a_noun() -> None:
    named = {module.path: PurePosixPath(module.path).with_suffix("").parts for module in modules()}
    assert [path for path, parts in named.items() if FORBIDDEN_NAMES.intersection(parts)] == []


def imports(tree: ast.AST, inside_function: bool = False) -> Iterator[tuple[str, bool]]:
    """Top-level package names that are imported, and whether a function body does it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], inside_function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0], inside_function
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            # Never runs; what stands in it is not an import.
            yield from ((name, True) for name, _ in imports(node, inside_function))
        else:
            yield from imports(node, inside_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("package", CONFINED)
def test_heavy_package_is_imported_by_one_module_inside_functions(package: str) -> None:
    importers: dict[str, list[bool]] = defaultdict(list)
    for module in modules("app"):
        for name, inside_function in imports(module.tree):
            if name == package:
                importers[module.path].append(inside_function)
    assert len(importers) <= 1
    assert [path for path, inside in importers.items() if not all(inside)] == []


def broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type
    if caught is None:
        return True
    return any_exception(caught.elts if isinstance(caught, ast.Tuple) else [caught])


def any_exception(types: Sequence[ast.expr]) -> bool:
    return any(isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"} for kind in types)


def broad_excepts(module: Module) -> Iterator[str]:
    """Places that swallow every error without a word of reason.

    A handler that ends by raising passes the error on; one with a comment on its line or the next has its reason.
    """
    lines = module.text.splitlines()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            swallows = broad(node) and not isinstance(node.body[-1], ast.Raise)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "suppress":
            swallows = any_exception(node.args)
        else:
            continue
        if swallows and "#" not in "".join(lines[node.lineno - 1 : node.lineno + 1]):
            yield f"{module.path}:{node.lineno}"


def test_unforeseen_errors_are_swallowed_with_a_reason_only() -> None:
    found = [place for module in modules("app") if module.path not in BROAD_EXCEPT for place in broad_excepts(module)]
    assert found == []


SAMPLE = """
import alpha
from beta.gamma import delta
def work():
    import epsilon
    try:
        pass
    except (ValueError, Exception):
        log.info("A sentence.")
    try:
        pass
    except BaseException:
        log.info("seen" if x else "Not seen", x=1)
        raise
    try:
        pass
    except Exception:
        # a reason
        pass
    with contextlib.suppress(Exception):
        pass
"""


def test_the_checks_see_what_they_forbid() -> None:
    module = Module("sample.py", SAMPLE, ast.parse(SAMPLE))
    assert list(imports(module.tree)) == [("alpha", False), ("beta", False), ("epsilon", True)]
    assert sorted(broad_excepts(module)) == ["sample.py:20", "sample.py:8"]
    assert [(line, event) for line, event in log_events(module)] == [(9, "A sentence."), (13, "seen"), (13, "Not seen")]


def log_events(module: Module) -> Iterator[tuple[int, object]]:
    """Line and first argument of each log call, both arms of a conditional one; None where it is not a constant."""
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LOG_METHODS
            and ast.unparse(node.func.value).rpartition(".")[2] in {"log", "_log"}
        ):
            first = node.args[0] if node.args else None
            for event in (first.body, first.orelse) if isinstance(first, ast.IfExp) else (first,):
                yield node.lineno, event.value if isinstance(event, ast.Constant) else None


def test_log_call_begins_with_an_event_word() -> None:
    sentences = [
        f"{module.path}:{line}"
        for module in modules("app")
        for line, event in log_events(module)
        if not (isinstance(event, str) and EVENT.fullmatch(event))
    ]
    assert sentences == []


def test_unit_test_mirrors_a_module() -> None:
    known = {PurePosixPath(module.path).relative_to("app").with_suffix("") for module in modules("app")}
    known |= {path.parent for path in known if path.name == "__init__"}

    def mirrors(room: PurePosixPath, tested: str) -> bool:
        # test_drain.py, and test_drain_cancel.py once one file is not enough
        return any(room == it.parent and (tested == it.name or tested.startswith(f"{it.name}_")) for it in known)

    strays = []
    for module in modules("tests"):
        path = PurePosixPath(module.path)
        if path.parts[:2] != ("tests", "unit") or not path.name.startswith("test_"):
            continue
        if not mirrors(path.parent.relative_to("tests/unit"), path.stem.removeprefix("test_")):
            strays.append(module.path)
    assert strays == []
