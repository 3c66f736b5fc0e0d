"""One printed number: where it stands, what it is, and how it follows from the data."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from published.files import ROOT


class Case(NamedTuple):
    """A number of a page.

    Attributes:
      page: path of the page, from the root of the repository on.
      near: text that only the number's passage has.
      printed: what stands there.
      computed: function that makes the same text of the data.
    """

    page: str
    near: str
    printed: str
    computed: Callable[[], str]


def passages_with(page: str, near: str) -> list[str]:
    """Passages of a page that have a text."""
    return [passage for passage in _passages(page) if near in passage]


def states(passage: str, printed: str) -> bool:
    """Whether a passage has these numbers, and not as a part of longer ones or with another sign."""
    return re.search(rf"(?<![\d.,+−]){re.escape(printed)}(?!\d|[.,]\d)", passage) is not None


@functools.cache
def _passages(page: str) -> tuple[str, ...]:
    return tuple(_split((ROOT / page).read_text(encoding="utf-8")))


def _split(text: str) -> Iterator[str]:
    """Rows of tables, items of lists and paragraphs, each as one line."""
    gathered: list[str] = []
    for line in [*text.splitlines(), ""]:
        alone = line.startswith(("|", "#", "<", "!["))
        if gathered and (alone or not line.strip() or line.lstrip().startswith("- ")):
            yield " ".join(gathered)
            gathered = []
        if alone:
            yield line
        elif line.strip():
            gathered.append(line.strip())
