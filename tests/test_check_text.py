"""The check of pages and docstrings: what it reports, and that its list of exceptions only shrinks."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "check_text.py"
SPEC = importlib.util.spec_from_file_location("check_text", SCRIPT)
assert SPEC is not None and SPEC.loader is not None
check_text = importlib.util.module_from_spec(SPEC)
sys.modules["check_text"] = check_text
SPEC.loader.exec_module(check_text)


def kinds(path: Path, text: str) -> list[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return sorted(fault.kind for fault in check_text.check(path))


LONG = " ".join(["word"] * 36)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{LONG}.", ["long"]),
        (f"- {LONG}.\n", ["long"]),
        (" ".join(["word"] * 35) + ". Another " + " ".join(["word"] * 30) + ".", []),
        (" ".join(["word"] * 20) + " e.g. " + " ".join(["word"] * 20) + ".", ["long"]),
        (f"```\n{LONG}.\n```\n| {LONG} |\n# {LONG}\n", []),
        (f"`{LONG}` is code.", []),
        (f"[word]({'x/' * 40}) " * 5, []),
        ("word\n" * 36, ["long"]),
        ("- word\n" * 36, []),
        ("Age β matters.", []),
        ("It is multiplied by β.", []),
        ("β matters.", ["symbol"]),
        ("β matters. The threshold β falls.", []),
    ],
)
def test_pages(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert kinds(tmp_path / "page.md", text) == expected


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Learner of a run.", []),
        ("Of a run, the learner.", ["opening"]),
        ("Whoever asks.", ["opening"]),
        (f"{LONG}.", ["long"]),
        (f"Learner.\n\nArgs:\n  a: {' '.join(['word'] * 20)}\n  b: {' '.join(['word'] * 20)}\n", []),
    ],
)
def test_docstrings(tmp_path: Path, docstring: str, expected: list[str]) -> None:
    source = f'def f():\n    """{docstring}"""\n\nX = 1\n"""Number."""\n'
    assert kinds(tmp_path / "module.py", source) == expected


def test_words_of_the_glossary_are_linked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_text, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text("# Glossary\n\nData lag\n: Age of data.\n\nBatch\n: A batch.\n")
    page = tmp_path / "docs" / "page.md"
    assert kinds(page, "The data lag grows in a batch.") == ["term"]
    assert kinds(page, "The [data lag](glossary.md) grows. The data lag is old.") == []
    assert kinds(page, "The data lag is old. The [data lag](glossary.md) grows.") == ["term"]
    assert kinds(page, "`data lag` is code.") == []


def test_the_list_only_shrinks(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text("# Glossary\n")
    script, page = tmp_path / "scripts" / "check_text.py", tmp_path / "README.md"
    script.write_text(SCRIPT.read_text())

    def run(text: str, *options: str) -> tuple[int, str]:
        page.write_text(text)
        done = subprocess.run([sys.executable, script, *options], capture_output=True, text=True)
        return done.returncode, done.stderr

    two = f"{LONG}.\n\n{LONG}.\n"
    script.with_suffix(".txt").write_text("README.md long 1\n")
    code, told = run(two)
    assert code == 1 and "README.md has 2 of kind long, not 1" in told and "README.md:1" in told
    assert run(two, "--update")[0] == 1, "a number rose"
    assert run(f"{LONG}.")[0] == 0
    code, told = run("Short.")
    assert code == 1 and "--update" in told
    assert run("Short.", "--update")[0] == 0 and not script.with_suffix(".txt").read_text()
    assert run(f"{LONG}.")[0] == 1
