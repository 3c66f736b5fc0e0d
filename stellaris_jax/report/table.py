"""Tables for a terminal or a pipe in which nothing is cut off."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Literal

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stellaris_jax.base.errors import printable

PIPE_WIDTH = 160
GAP = 2
INDENT = 2
HALF = 0.5
"""Share of a line that the headings of stacked cells, or the names of rows, may take."""
MOST_PARTS = 3
"""Tables, each with the names of the rows, that one is split into."""
Row = Mapping[str, str]
"""Cells by heading."""


def wide_console() -> Console:
    """A console as wide as its terminal; in a pipe or a file, which have no width, wide enough for any table."""
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def print_table(console: Console, title: str, rows: Sequence[Row], names: Collection[str] = ()) -> None:
    """Print rows of cells by heading, all with the same headings; nothing where there are no rows.

    Columns break between words. Where they do not fit side by side, the table goes on below, each part with the first
    columns. Where that takes many parts, rows are printed one below the other, a line for each cell.

    Args:
      console: where to print; its width bounds every line.
      title: heading of the table.
      rows: cells by heading.
      names: headings of columns that are read from the left; the others hold figures. The first ones name a row.
    """
    if not rows:
        return
    rows = [{printable(heading): printable(cell) for heading, cell in row.items()} for row in rows]
    for line in wrapped(printable(title), console.width):
        _print_line(console, Text(line, style="italic"))
    parts = _parts_of(rows, names, console.width)
    for index, part in enumerate(parts):
        if index:
            console.print()
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold underline")
        for heading, width in _widths(part, console.width).items():
            justify: Literal["left", "right"] = "left" if heading in names else "right"
            table.add_column(Text(heading), overflow="fold", width=width, justify=justify)
        for row in part:
            table.add_row(*map(Text, row.values()))
        console.print(table)
    for row in () if parts else rows:
        console.print()
        for text in _stacked(row, console.width):
            _print_line(console, text)


def _print_line(console: Console, line: Text) -> None:
    console.print(line, no_wrap=True, overflow="ignore", crop=False)


def print_sentence(console: Console, text: str, style: str = "") -> None:
    """Print a sentence, broken between words on a terminal, and one line in a pipe or a file."""
    text = printable(text)
    for line in wrapped(text, console.width) if console.is_terminal else [text]:
        console.print(Text(line, style=style), soft_wrap=True)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of a text, broken between words; longer words, such as paths, after a sign, and else where they must.

    >>> wrapped("a setting of runs/sweeps/rates", 14)
    ['a setting of', 'runs/sweeps/', 'rates']
    """
    lines = [""]
    for word in text.split():
        space = " " if lines[-1] else ""
        if cell_len(lines[-1] + space + word) <= width:
            lines[-1] += space + word
            continue
        for index, part in enumerate(_parts(word, width)):
            if index and cell_len(lines[-1] + part) <= width:
                lines[-1] += part
            else:
                lines.append(part)
    return lines[1:] if len(lines) > 1 and not lines[0] else lines


def _parts(word: str, width: int) -> Iterable[str]:
    """Parts of a word that each fit into a line; the word itself where it does."""
    if cell_len(word) <= width:
        return [word]
    parts = re.findall(r"[^/=,;:._-]*[/=,;:._-]|[^/=,;:._-]+", word)
    return [line for part in parts for line in chop_cells(part, max(2, width))]


def _stacked(row: Row, width: int) -> Iterable[Text]:
    """Lines of one row: headings on the left, and values beside or, where their words are too long, below them."""
    left = max(map(cell_len, row)) + GAP
    words = [cell_len(word) for value in row.values() for word in value.split()]
    beside = left <= HALF * width and max(words, default=0) <= width - left
    for heading, value in row.items():
        first, *further = wrapped(value, width - left if beside else width - INDENT)
        if beside:
            yield Text.assemble((heading + " " * (left - cell_len(heading)), "bold"), first)
            yield from (Text(" " * left + line) for line in further)
        else:
            yield from (Text(line, style="bold") for line in wrapped(heading, width))
            yield from (Text(" " * INDENT + line) for line in (first, *further))


def _least(rows: Sequence[Row]) -> dict[str, int]:
    """Widths at which no word of a column breaks, by heading."""
    return {key: max(map(cell_len, " ".join([key, *(row[key] for row in rows)]).split())) for key in rows[0]}


def _parts_of(rows: Sequence[Row], names: Collection[str], room: int) -> list[list[Row]]:
    """Tables that each fit into a line, at most MOST_PARTS of them; none where there is too little room."""
    least = _least(rows)
    keys = list(takewhile(lambda heading: heading in names, least)) or list(least)[:1]
    while len(keys) > 1 and sum(least[key] + GAP for key in keys) > HALF * room:
        keys.pop()
    parts: list[list[str]] = []
    if sum(least.values()) + GAP * (len(least) - 1) <= room:
        parts = [list(least)]
    else:
        for heading in [heading for heading in least if heading not in keys]:
            if parts and sum(least[key] + GAP for key in [*parts[-1], heading]) - GAP <= room:
                parts[-1].append(heading)
            else:
                parts.append([*keys, heading])
        if len(parts) > MOST_PARTS or any(sum(least[key] + GAP for key in part) - GAP > room for part in parts):
            return []
    return [[{heading: row[heading] for heading in part} for row in rows] for part in parts]


def _widths(rows: Sequence[Row], room: int) -> dict[str, int]:
    """Widths at which no word of a column breaks, wider from the left as far as there is room."""
    least = _least(rows)
    room -= sum(least.values()) + GAP * (len(least) - 1)
    widths = {}
    for heading, width in least.items():
        more = min(room, max(map(cell_len, [heading, *(row[heading] for row in rows)])) - width)
        room -= more
        widths[heading] = width + more
    return widths
