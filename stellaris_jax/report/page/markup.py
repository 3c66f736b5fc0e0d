"""HTML of the page: tables, small pictures of intervals, and the document around them.

Strings from runs are text, never markup: all of them go through `text`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple

from stellaris_jax.base import inputs


class Cell(NamedTuple):
    """Cell of a table.

    Attributes:
      html: markup of the cell.
      order: figure that it is sorted by; None sorts by its text.
      figure: whether it shows a figure.
    """

    html: str
    order: float | None = None
    figure: bool = False


def text(value: object) -> str:
    """Value as escaped markup."""
    return escape(str(value))


def words(value: object) -> Cell:
    """Left-aligned cell of text."""
    return Cell(text(value))


def figure(shown: str, order: float | None = None) -> Cell:
    """Right-aligned cell of a figure; `order` is the value to sort by."""
    return Cell(text(shown), order if order is None or math.isfinite(order) else None, True)


def link(target: str, shown: object) -> str:
    """Link to an address, which the caller has checked."""
    return f'<a href="{escape(target)}">{text(shown)}</a>'


def paragraph(*sentences: str) -> str:
    """Paragraph of sentences, which are escaped; empty without sentences."""
    return f"<p>{text(' '.join(filter(None, sentences)))}</p>" if any(sentences) else ""


def panels(drawn: Iterable[str], small: bool = False) -> str:
    """Pictures beside each other; empty ones are left out."""
    kind = "panels small" if small else "panels"
    return f'<div class="{kind}">{"".join(f"<figure>{panel}</figure>" for panel in drawn if panel)}</div>'


def bullets(items: Iterable[str]) -> str:
    """List of texts."""
    return f"<ul>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>"


def table(headings: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str, sortable: bool = True) -> str:
    """Table that scrolls sideways if it is wider than the screen.

    Args:
      headings: texts of the header.
      rows: rows, with one cell for each heading.
      caption: description for screen readers.
      sortable: whether a click on a heading sorts it.
    """
    numeric = [all(row[i].figure for row in rows) for i in range(len(headings))]
    tags = [' class="n"' if is_figure else "" for is_figure in numeric]
    names = [f'<button type="button">{text(name)}</button>' if sortable and name else text(name) for name in headings]
    head = "".join(f"<th{tag}>{name}</th>" for tag, name in zip(tags, names, strict=True))
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    kind = ' class="n"' if cell.figure else ""
    order = "" if cell.order is None else f' data-v="{cell.order:.6g}"'
    return f"<td{kind}{order}>{cell.html}</td>"


def interval_bar(
    middle: float, low: float, high: float, span: tuple[float, float], seeds: Iterable[float] = (), zero: bool = False
) -> str:
    """Small picture of an estimate, its interval, and the values behind it.

    Args:
      middle: the estimate.
      low: lower end of its interval; NaN draws none.
      high: upper end.
      span: range of values over the width of the picture.
      seeds: values drawn as faint strokes.
      zero: whether to mark zero.
    """
    left, right = span
    width = (right - left) or 1.0

    def at(value: float) -> str:
        return f"{2 + 196 * min(1.0, max(0.0, (value - left) / width)):.1f}"

    parts = [f'<path class="zero" d="M{at(0.0)} 0V20"/>'] if zero else []
    parts += [f'<path class="seed" d="M{at(value)} 6V14"/>' for value in seeds]
    if math.isfinite(low) and math.isfinite(high):
        parts.append(f'<path class="ends" d="M{at(low)} 10H{at(high)}"/>')
    if math.isfinite(middle):
        parts.append(f'<path class="middle" d="M{at(middle)} 3V17"/>')
    return f'<svg class="bar" viewBox="0 0 200 20" aria-hidden="true">{"".join(parts)}</svg>'


def details(summary: str, *parts: str) -> str:
    """Content that a click unfolds."""
    return f"<details><summary>{text(summary)}</summary>{''.join(parts)}</details>"


def section(name: str, *parts: str) -> str:
    """Section of the page under a heading; empty without content."""
    content = "".join(parts)
    return f"<section><h2>{text(name)}</h2>{content}</section>" if content else ""


def document(title: str, content: str, style: str = "", script: str = "") -> str:
    """Self-contained page. It is light or dark as the reader's system is, until the reader switches it.

    Args:
      title: title of the page.
      content: markup of the body.
      style: CSS besides the common one.
      script: JavaScript besides the common one.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{asset('page.css')}{style}</style></head>"
        f'<body><main><button type="button" id="scheme" aria-label="light or dark">◐</button>{content}</main>'
        f"<script>{asset('page.js')}{script}</script></body></html>\n"
    )


@cache
def asset(name: str) -> str:
    """Text of a stylesheet or a script beside this module."""
    return inputs.read_text(Path(__file__).with_name(name))
