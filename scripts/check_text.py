"""Check how pages and docstrings are written: `python scripts/check_text.py [--update]`.

- Sentences have at most 35 words.
- Docstrings begin with a noun or a verb, not with Of, Those, Whoever, Who, What or Whose.
- Words of the glossary are linked to it where a page of `docs/` uses them first.
- Greek letters are explained where a page uses them first.

`scripts/check_text.txt` has the number of exceptions of each file and kind. A file with more fails. So does one with
fewer, until `--update` has lowered its number. Numbers never rise.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
EXCEPTIONS = Path(__file__).with_suffix(".txt")
LONGEST = 35
"""Most words of a sentence."""
OPENINGS = re.compile(r"(Of|Those|Whoever|Who|What|Whose)\b")
SOURCES = ("stellaris_jax", "studies", "benchmarks", "scripts", "docs/generator")
GENERATED = ("docs/results/", "docs/project/", "docs/methods/", "docs/reference/", "docs/_build/")
PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "docs/**/*.md", "results/**/*.md", "studies/**/*.md")
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|al|cf|vs|Eq|Eqs|Fig|Figs|Sec|no|approx)\.")
EXPLAINED = r"\(x[),]|x_?\w? ?(is|are|=|of|stands)\b|x, (the|a|an)\b|x:|, x\)|[a-z] x\b|x ="
"""Pattern of an explanation of the letter x."""
GREEK = re.compile(r"[αβγδεηθκλμνπρστφχψω]")


class Fault(NamedTuple):
    """One exception.

    Attributes:
      kind: what is wrong.
      line: line of the file.
      text: beginning of the text.
    """

    kind: str
    line: int
    text: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="lower the numbers of files that have become better")
    parser.add_argument("--show", action="store_true", help="print every exception")
    arguments = parser.parse_args()
    faults = {file: list(check(ROOT / file)) for file in files()}
    found = Counter(f"{file} {fault.kind}" for file, several in faults.items() for fault in several)
    if arguments.show:
        for file, several in faults.items():
            for fault in several:
                print(f"{file}:{fault.line}: {fault.kind}: {fault.text}")
    begun = EXCEPTIONS.is_file()
    allowed = {key: int(number) for key, number in (line.rsplit(" ", 1) for line in lines_of(EXCEPTIONS))}
    if arguments.update or not begun:
        kept = {key: min(number, allowed.get(key, 0) if begun else number) for key, number in found.items()}
        EXCEPTIONS.write_text("".join(f"{key} {kept[key]}\n" for key in sorted(kept) if kept[key]))
        allowed = kept
    failures = []
    for key in sorted({*found, *allowed}):
        file, kind = key.split(" ")
        if found[key] > allowed.get(key, 0):
            failures.append(f"{file} has {found[key]} of kind {kind}, not {allowed.get(key, 0)} as allowed:")
            failures += [f"  {file}:{fault.line}: {fault.text}" for fault in faults[file] if fault.kind == kind]
        elif found[key] < allowed[key]:
            failures.append(
                f"{file} has {found[key]} of kind {kind}, fewer than {allowed[key]}: run scripts/check_text.py --update"
            )
    if failures:
        sys.exit("\n".join(failures))


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []


def files() -> list[str]:
    """Files that people write, relative to the repository."""
    pages = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    sources = {path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")}
    named = sorted(path.relative_to(ROOT).as_posix() for path in pages | sources)
    return [name for name in named if not name.startswith(GENERATED)]


def check(path: Path) -> Iterator[Fault]:
    """Exceptions of one file."""
    text = path.read_text()
    if path.suffix == ".py":
        yield from check_docstrings(text)
        return
    paragraphs = list(paragraphs_of(text))
    for line, paragraph in paragraphs:
        yield from check_sentences(line, paragraph)
    if path.is_relative_to(ROOT / "docs") and path.name != "glossary.md":
        yield from check_terms(paragraphs)
    yield from check_greek(paragraphs)


# Pages ----------------------------------------------------------------------------------------------------------------


def paragraphs_of(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and items of lists, each with its first line; without code, tables, headings and HTML."""
    block: list[str] = []
    first, fence = 0, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        opening = re.match(r"\s*(`{3,}|~{3,}|:{3,})", line)
        if fence:
            fence = "" if opening and line.strip() == fence else fence
            continue
        if opening and not opening[1].startswith(":"):
            fence = opening[1]
        ends = bool(opening) or not line.strip() or line.lstrip().startswith(("|", "#", "<", ":::"))
        item = re.match(r"\s*([-*+]|\d+\.|:)\s", line)
        if (ends or item) and block:
            yield first, " ".join(block)
            block = []
        if ends or (line.startswith("    ") and not block):
            continue
        first = first if block else number
        block.append(line.strip() if not item else line[item.end() :].strip())


def plain(markdown: str) -> str:
    """Text as it is read: links without targets, code as one word."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    text = re.sub(r"`+[^`]+`+", "Code", text)
    return re.sub(r"[*_]{1,2}", "", text)


def sentences(text: str) -> list[str]:
    """Sentences of a paragraph; those in parentheses, and after colons and semicolons, belong to it."""
    text = ABBREVIATIONS.sub(r"\1", text)
    return re.split(r"(?<=[.!?])[\"')\]]*\s+(?=[A-Z0-9\"'(`*])", text)


def check_sentences(line: int, paragraph: str) -> Iterator[Fault]:
    for sentence in sentences(plain(paragraph)):
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if len(words) > LONGEST:
            yield Fault("long", line, f"{len(words)} words: {sentence[:80]}")


def check_greek(paragraphs: list[tuple[int, str]]) -> Iterator[Fault]:
    """Letters that a page uses without `(x)`, `x is`, `x, the`, `x =`, `x:` or `x of` anywhere on it."""
    whole = plain(" ".join(paragraph for _, paragraph in paragraphs))
    for letter in sorted({*GREEK.findall(whole)}):
        if re.search(EXPLAINED.replace("x", letter), whole):
            continue
        line = next((line for line, paragraph in paragraphs if letter in plain(paragraph)), 1)
        yield Fault("symbol", line, letter)


def check_terms(paragraphs: list[tuple[int, str]]) -> Iterator[Fault]:
    """Words of the glossary whose first use on a page is no link."""
    for term in terms():
        for line, paragraph in paragraphs:
            unquoted = re.sub(r"\]\([^)]*\)", "](x)", re.sub(r"`+[^`]+`+", "code", paragraph))
            match = re.search(rf"(?<![\w-]){term}s?\b", unquoted, re.IGNORECASE)
            if match is None:
                continue
            links = re.finditer(r"\[[^\]]*\]\(", unquoted)
            if not any(link.start() <= match.start() < link.end() for link in links):
                yield Fault("term", line, term)
            break


COMMON = {
    "actor", "policy", "batch", "learner", "version", "algorithm", "advantage", "optimizer", "source", "slot", "weight",
    "rule", "task", "correction", "return", "seed", "run", "trust", "segment", "shard", "peer", "carry", "consent",
    "round", "group", "seconds",
}  # fmt: skip
"""Words of the glossary that a reader knows, or that are words of everyday language as well."""


def terms() -> list[str]:
    """Words of the glossary, in lower case, without remarks in parentheses."""
    lines = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    named = [line for line, following in pairwise(lines) if following.startswith(": ")]
    short = [re.sub(r"\s*\(.*", "", name).strip().lower() for name in named]
    return [name for name in short if name not in COMMON and re.fullmatch(r"[a-z -]+", name)]


# Docstrings -----------------------------------------------------------------------------------------------------------


def check_docstrings(text: str) -> Iterator[Fault]:
    """Docstrings that begin wrongly or have long sentences; strings below assignments count as docstrings."""
    for node in ast.walk(ast.parse(text)):
        for child in getattr(node, "body", ()) if isinstance(getattr(node, "body", None), list) else ():
            if not (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                continue
            docstring = child.value.value.strip()
            if OPENINGS.match(docstring):
                yield Fault("opening", child.lineno, docstring[:60])
            for paragraph in re.split(r"\n\s*\n|\n\s*(?=[-*] |\w+( \(.*\))?: )", docstring):
                if paragraph and not re.search(r">>>|\w {2,}\S", paragraph):  # neither examples nor tables
                    yield from check_sentences(child.lineno, " ".join(paragraph.split()))


if __name__ == "__main__":
    main()
