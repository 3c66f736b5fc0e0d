"""Docstrings as Markdown: paragraphs, `Args:` and its siblings, examples, and formulas with Greek letters."""

from __future__ import annotations

import inspect
import re
from typing import Any

GREEK = dict(
    alpha="α", beta="β", gamma="γ", delta="δ", epsilon="ε", eta="η", theta="θ", kappa="κ", **{"lambda": "λ"}, mu="μ",
    pi="π", rho="ρ", sigma="σ", tau="τ",
)  # fmt: skip
LETTER = re.compile(rf"(?<![\w.=`])(?<!\w-)({'|'.join(GREEK)})(?![a-zA-Z=.]\w)(?=\b|_)")
"""A letter's name in a formula; not in a key, a name or an example."""
SECTIONS = {"Args": "Arguments", "Attributes": "Attributes", "Returns": "Returns", "Raises": "Raises"}
ENTRY = re.compile(r"(\*{0,2}\w[\w.*]*(?:, \w+)*): ")


def markdown(thing: Any) -> str:
    """The docstring of something, or a text, as Markdown; empty where there is none."""
    text = inspect.cleandoc(thing) if isinstance(thing, str) else inspect.getdoc(thing) or ""
    return "\n\n".join(_block(block) for block in re.split(r"\n\s*\n", text) if block.strip())


def line(text: str) -> str:
    """A text on one line, that stands in a table."""
    return _prose(" ".join(text.split())).replace("|", "\\|")


def first_paragraph(thing: Any) -> str:
    """First sentence of a docstring, on one line."""
    return line((inspect.getdoc(thing) or "").partition("\n\n")[0])


def _block(block: str) -> str:
    lines = block.split("\n")
    if lines[0].startswith(">>> "):
        return fenced(block, "pycon")
    section = SECTIONS.get(lines[0].removesuffix(":"))
    if section and lines[0].endswith(":"):
        return f"**{section}**\n\n{_entries(inspect.cleandoc(chr(10).join(lines[1:])))}"
    if all(row.startswith("    ") for row in lines):
        return fenced(_greek(inspect.cleandoc(block)), "text")
    return _prose(block)


def _entries(text: str) -> str:
    """The lines `name: what it is` of a section as a list; what follows a line further in belongs to it."""
    rows: list[str] = []
    for row in text.split("\n"):
        found = ENTRY.match(row)
        if found:
            rows.append(f"- `{found[1]}`: {_prose(row[found.end() :])}")
        elif rows:
            rows[-1] += f"\n  {_prose(row.strip())}"
        else:
            rows.append(_prose(row))
    return "\n".join(rows)


def _prose(text: str) -> str:
    """Text outside of `code` with Greek letters, and nothing that would be taken for HTML."""
    parts = re.split(r"(`+[^`]*`+)", text)
    return "".join(part if index % 2 else _greek(part).replace("<", "&lt;") for index, part in enumerate(parts))


def _greek(text: str) -> str:
    return LETTER.sub(lambda found: GREEK[found[1]], text)


def fenced(text: str, language: str) -> str:
    """A block of code."""
    return f"```{language}\n{text}\n```"
