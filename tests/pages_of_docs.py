"""Pages of the documentation for tests: their blocks of code, their commands, and the generated pages."""

from __future__ import annotations

import re
import shlex
import sys
from functools import cache
from types import ModuleType

from commands import REPOSITORY

DOCS = REPOSITORY / "docs"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.M | re.S)


def commands(text: str) -> list[list[str]]:
    """The commands of a page, as lists of words; all of them are ours."""
    lines = "".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines if line.strip()]
    assert all(words[0] == "stellaris-jax" for words in found if words), "what is not ours stands in a console block"
    return [words[1:] for words in found if words]


@cache
def generator() -> ModuleType:
    """Generator of pages."""
    sys.path.insert(0, str(DOCS))
    try:
        import generator
    finally:
        sys.path.remove(str(DOCS))
    return generator


@cache
def made() -> dict[str, str]:
    """Every page that is made."""
    pages: dict[str, str] = generator().pages()
    return pages
