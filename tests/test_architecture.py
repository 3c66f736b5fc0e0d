"""Architecture: which package may import which, read from the sources."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import thorough

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "stellaris_jax"
LEVELS = {
    "base": 0, "config": 1, "envs": 2, "timeline": 2, "telemetry": 2, "agent": 3, "engine": 4, "report": 5, "live": 5,
    "sources": 6, "runs": 7, "execute": 8, "policies": 9, "many": 9, "cli": 10,
}  # fmt: skip
"""Level of each package, which may import packages of lower levels; docs/architecture.md draws them."""
WITHOUT_JAX = ("config", "timeline", "telemetry", "report")
"""Packages that import no JAX, directly or through what they import."""
HEAVY = {"jax", "flax", "optax"}


@cache
def imports() -> dict[str, set[str]]:
    """Every module of the package, and what it imports, inside functions too, as far as it is a module."""
    files = {".".join(p.relative_to(PACKAGE).with_suffix("").parts): p for p in PACKAGE.rglob("*.py")}
    files = {name.removesuffix(".__init__"): p for name, p in files.items() if name not in ("__init__", "__main__")}
    found: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                asked = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                asked = [alias.name for alias in node.names]
            else:
                continue
            for one in asked:
                if not one.startswith("stellaris_jax."):
                    found[name].add(one.partition(".")[0])
                    continue
                module = one.removeprefix("stellaris_jax.")
                while module not in files and "." in module:
                    module = module.rpartition(".")[0]
                if module in files:
                    found[name].add(module)
    return found


def test_public_names_are_imported_from_where_they_stand() -> None:
    """`from stellaris_jax import Trainer` would be an arrow from any level to the highest."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == PACKAGE.name:
                assert {alias.name for alias in node.names} <= {"__version__", *LEVELS}, f"{path}, {node.lineno}"


def package(module: str) -> str:
    return module.partition(".")[0]


def test_every_package_has_a_level() -> None:
    entries = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert entries == {"__init__", "__main__", *LEVELS}
    assert len(LEVELS) <= 15


@pytest.mark.parametrize("module", sorted(imports()))
def test_no_arrow_goes_up(module: str) -> None:
    known = {package(other) for other in imports()[module] if package(other) in LEVELS and other in imports()}
    up = {other for other in known if other != package(module) and LEVELS[other] >= LEVELS[package(module)]}
    assert not up, f"{module} knows of {', '.join(up)}"


def test_no_circle_between_files() -> None:
    ours = {name: {other for other in others if other in imports()} - {name} for name, others in imports().items()}
    try:
        TopologicalSorter(ours).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("kind", WITHOUT_JAX)
def test_packages_without_jax(kind: str) -> None:
    """Imports at the top of modules are followed to the end."""
    for module in imports():
        if package(module) == kind:
            assert (path := way_to_jax(module)) is None, " -> ".join(path)


def way_to_jax(module: str) -> list[str] | None:
    """Shortest chain of imports from a module to JAX, flax or optax."""
    ways = {module: [module]}
    for one in (queue := [module]):
        parts = one.split(".")
        above = {".".join(parts[:i]) for i in range(1, len(parts))}  # packages are imported before their modules
        for other in above | imports().get(one, set()):
            if other in HEAVY:
                return [*ways[one], other]
            if other not in ways:
                ways[other] = [*ways[one], other]
                queue.append(other)
    return None


FILES = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}
"""Functions and methods that open a file by its name."""
OPENING = {
    "os": {"open", "fdopen"},
    "io": {"open", "FileIO"},
    "np": {"load", "save", "savez", "savetxt", "loadtxt", "fromfile", "memmap"},
    "gzip": {"open"},
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move"},
    "OmegaConf": {"save"},
    "tempfile": {"mkstemp", "NamedTemporaryFile"},
}
"""Functions that do, by what they are called on."""
BUFFERS = {"sources/actionlog.py": "save", "sources/replay_log.py": "save", "timeline/scaling/scheduler.py": "savez"}
"""Modules that write NumPy's arrays to what was opened already."""
OPENERS = {
    "base/inputs.py": "reads",
    "base/outputs.py": "writes",
    "base/machine.py": "the kernel's own files",
    "live/broker.py": "a log in the folder of Ray's session",
    "live/keeper.py": "the kernel's own files",
    "live/sessions.py": "the kernel's own files",
    "live/vitals.py": "the kernel's own files",
    "runs/provenance.py": "the kernel's own files",
    "base/registry.py": "plug-ins that the user named or allowed",
    "runs/anchor.py": "directories, by which a move is told from a removal",
    "runs/run_store.py": "a lock that is not made",
    "cli/program.py": "/dev/null",
}
"""Modules that open files themselves, and which."""


def opens(node: ast.Call, module: str) -> bool:
    """Whether a call opens a file by its name."""
    function = node.func
    if isinstance(function, ast.Name):
        return function.id == "open"
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    if owner in OPENING:
        return function.attr in OPENING[owner] and BUFFERS.get(module) != function.attr
    by_mode = function.attr != "open" or any(
        isinstance(a, ast.Constant) and isinstance(a.value, str) for a in node.args
    )
    return owner != "inputs" and function.attr in FILES and by_mode


def test_files_are_opened_in_few_places() -> None:
    """`base.inputs` reads files that a stranger may have made; `base.outputs` writes files."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE).as_posix()
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        found |= {(module, node.lineno) for node in calls if opens(node, module)}
    assert [f"{module}, line {line}" for module, line in sorted(found) if module not in OPENERS] == []
    assert {module for module, _ in found} == set(OPENERS)


@pytest.mark.parametrize("path", sorted(TESTS.glob("*.py")), ids=lambda path: path.stem)
def test_no_test_module_is_imported(path: Path) -> None:
    """Shared code of tests is in helper modules beside them."""
    names = {path.stem for path in TESTS.glob("test_*.py")}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            asked = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            asked = [alias.name for alias in node.names]
        else:
            continue
        found = names & {part for name in asked for part in name.split(".")}
        assert not found, f"line {node.lineno} imports {', '.join(found)}"


def test_what_is_left_to_ci_exists() -> None:
    for test in thorough.listed():
        path, _, name = test.partition("::")
        function = name.partition("[")[0]
        assert f"\ndef {function}(" in (TESTS.parent / path).read_text(encoding="utf-8"), f"{test} is in no file"


def test_the_page_draws_these_levels() -> None:
    page = (TESTS.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn, level = {}, -1
    for line in page.partition("## Modules")[2].partition("`config`")[0].splitlines():
        number, name = line[4:7].strip(), line[8:20].strip()
        if line.startswith("    ") and name:
            level = int(number) if number else level
            drawn[name] = level
    assert drawn == LEVELS
