"""HTML of the page: tables, small pictures of intervals, and the document around them.

Strings from runs are text, never markup: all of them go through `text`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple


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
        f"<title>{text(title)}</title><style>{STYLE}{style}</style></head>"
        f'<body><main><button type="button" id="scheme" aria-label="light or dark">◐</button>{content}</main>'
        f"<script>{SCRIPT}{script}</script></body></html>\n"
    )


DARK = """\
--back:#14171b;--fore:#e4e7ea;--soft:#9aa5b1;--line:#343b43;--tint:#1d2227;
--mark:#3a3010;--link:#7cb8f2;--blue:#4BA3E3;--orange:#E69F00;--green:#1FBF92;--pink:#DD93BF;--vermilion:#F0813A;
--sky:#8CCBF0"""
STYLE = """
:root{color-scheme:light dark;
--back:#fff;--fore:#1c2024;--soft:#5b6570;--line:#d9dee3;--tint:#f3f5f7;--mark:#fff3d1;--link:#0b57a4;
--blue:#0072B2;--orange:#B87900;--green:#00805F;--pink:#B5588F;--vermilion:#D55E00;--sky:#2C93CF}
:root[data-scheme=dark]{DARK}
@media (prefers-color-scheme:dark){:root:not([data-scheme=light]){DARK}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--fore);font:15px/1.5 system-ui,sans-serif}
main{max-width:1240px;margin:0 auto;padding:1.2rem 1rem 4rem}
h1{font-size:1.6rem;line-height:1.2;margin:.2rem 0 .6rem;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2.2rem 0 .5rem;padding-top:.7rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.2rem 0 .3rem;overflow-wrap:anywhere}
p,li{max-width:80ch;overflow-wrap:anywhere}p{margin:.5rem 0}
a{color:var(--link)}
.wide{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;font-size:13px}
th,td{padding:.28rem .45rem;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:600;border-bottom-width:2px}
.n{text-align:right;font-variant-numeric:tabular-nums}
th button{font:inherit;color:inherit;background:none;border:0;padding:0;cursor:pointer}
th[aria-sort=ascending] button::after{content:" ↑"}th[aria-sort=descending] button::after{content:" ↓"}
.long{display:inline-block;white-space:normal;overflow-wrap:break-word;min-width:11rem;max-width:26rem}
tr:has(.best){background:var(--mark)}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,440px),1fr));gap:.8rem;align-items:start}
figure{margin:0;min-width:0;max-width:620px}figure svg{width:100%;height:auto;display:block}
figcaption{color:var(--soft);font-size:13px}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;list-style:none;padding:0;margin:.6rem 0;font-size:13.5px}
.legend svg{width:30px;height:10px;margin-right:.4rem;vertical-align:middle}
.bar{width:200px;height:20px;display:block}
.bar path{fill:none;vector-effect:non-scaling-stroke}
.ends{stroke:var(--blue);stroke-width:5;opacity:.45}.middle{stroke:var(--blue);stroke-width:2.5}
.seed{stroke:var(--soft);stroke-width:1;opacity:.8}.zero{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 2}
pre{background:var(--tint);padding:.6rem .8rem;white-space:pre-wrap;overflow-wrap:anywhere;font-size:13px}
.notes ul{margin:.3rem 0;padding-left:1.1rem}
.notes{background:var(--tint);border-left:4px solid var(--orange);padding:.3rem .9rem}
summary{cursor:pointer;margin:.5rem 0}
.small{grid-template-columns:repeat(auto-fill,minmax(min(100%,290px),1fr))}
.tools button,#scheme{font:inherit;color:inherit;background:var(--tint);border:1px solid var(--line);border-radius:4px;
min-width:2rem;padding:.1rem .4rem;cursor:pointer}
#scheme{float:right;margin:.2rem 0 .3rem .6rem;font-size:1rem}
""".replace("DARK", DARK)
SCRIPT = """
document.getElementById('scheme').onclick=()=>{const of=document.documentElement.dataset;
of.scheme=getComputedStyle(document.body).backgroundColor=='rgb(255, 255, 255)'?'dark':'light';
document.documentElement.style.colorScheme=of.scheme};
document.querySelectorAll('th button').forEach(b=>b.onclick=()=>{
const th=b.parentNode,i=th.cellIndex,body=th.closest('table').tBodies[0],up=th.getAttribute('aria-sort')!='ascending';
th.parentNode.querySelectorAll('th').forEach(h=>h.removeAttribute('aria-sort'));
th.setAttribute('aria-sort',up?'ascending':'descending');
const key=r=>{const c=r.cells[i],v=c.dataset.v;
return v!==undefined?+v:c.classList.contains('n')?NaN:c.textContent};
[...body.rows].sort((a,b)=>{const x=key(a),y=key(b);if(x!==x||y!==y)return (x!==x)-(y!==y);
return (typeof x=='number'&&typeof y=='number'?x-y:String(x).localeCompare(y,undefined,{numeric:true}))*(up?1:-1)
}).forEach(r=>body.append(r))});
"""
