"""Tables for a terminal or a pipe in which nothing is cut off."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 160
GAP = 2


def wide_console() -> Console:
    """A console as wide as its terminal; in a pipe or a file, which have no width, wide enough for any table."""
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def print_table(console: Console, title: str, rows: Sequence[Mapping[str, str]], names: Collection[str] = ()) -> None:
    """Print rows of cells by heading, all with the same headings; nothing where there are no rows.

    Columns break between words, and in the middle of one only where nothing else fits. `names` are the headings of
    columns that are read from the left; the others hold figures.
    """
    if not rows:
        return
    table = Table(title=Text(title), box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold underline")
    for heading, width in _widths(rows, console.width).items():
        table.add_column(Text(heading), overflow="fold", width=width, justify="left" if heading in names else "right")
    for row in rows:
        table.add_row(*map(Text, row.values()))
    console.print(table)


def _widths(rows: Sequence[Mapping[str, str]], room: int) -> dict[str, int | None]:
    """The widths at which no word of a column breaks, wider from the left as far as there is room.

    None, which leaves the widths to the table, where there is too little.
    """
    texts = {heading: [heading, *(row[heading] for row in rows)] for heading in rows[0]}
    least = {heading: max(map(len, " ".join(lines).split())) for heading, lines in texts.items()}
    room -= sum(least.values()) + GAP * (len(least) - 1)
    if room < 0:
        return dict.fromkeys(least)
    widths: dict[str, int | None] = {}
    for heading, width in least.items():
        more = min(room, max(map(len, texts[heading])) - width)
        room -= more
        widths[heading] = width + more
    return widths
