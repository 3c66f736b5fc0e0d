"""The paper's boxes, and what goes from one to the other, as an SVG that stands in the page and follows its colours."""

from __future__ import annotations

from typing import NamedTuple

WIDTH, HEIGHT = 460, 470


class Box(NamedTuple):
    """A box: its left upper corner, its size, its name, and a line below the name."""

    x: int
    y: int
    width: int
    height: int
    name: str
    about: str


class Arrow(NamedTuple):
    """From one point to another, with a text at a third."""

    path: str
    x: int
    y: int
    text: str
    anchor: str = "start"


BOXES = (
    Box(10, 10, 180, 56, "actors", "roll out fragments"),
    Box(10, 150, 180, 56, "data loader", "cuts minibatches"),
    Box(10, 290, 180, 56, "learner functions", "one gradient each"),
    Box(10, 404, 440, 56, "parameter function", "gate · weights · optimizer step"),
    Box(270, 150, 180, 56, "cache", "the last H policies"),
)
ARROWS = (
    Arrow("M100 66V150", 108, 112, "fragments"),
    Arrow("M100 206V290", 108, 252, "minibatches"),
    Arrow("M100 346V404", 108, 380, "gradients"),
    Arrow("M360 404V206", 352, 372, "new version", "end"),
    Arrow("M360 150V38H190", 278, 30, "behaviour policy", "middle"),
    Arrow("M300 206V318H190", 245, 310, "policy", "middle"),
)
TITLE = (
    "Actors send fragments to the data loader, which hands minibatches to learner functions. Their gradients go to the "
    "parameter function, which publishes new policies to the cache, from where actors and learners fetch them."
)
STYLE = (
    ".boxes{width:100%;max-width:30rem;height:auto;display:block;margin:1rem auto;color:inherit}"
    ".boxes rect{fill:none;stroke:currentColor;stroke-width:1.5}"
    ".boxes path{fill:none;stroke:currentColor;stroke-width:1.5}"
    ".boxes text{fill:currentColor;font:13px sans-serif}.boxes .name{font-weight:bold;font-size:15px}"
)


def pages() -> dict[str, str]:
    """The drawing, to be included as raw HTML."""
    return {"drawings/boxes.svg": svg()}


def svg() -> str:
    """The drawing."""
    parts = [f'<svg class="boxes" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{TITLE}">']
    parts += [f"<style>{STYLE}</style>"]
    parts.append('<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
                 'orient="auto"><path d="M0 0L8 4L0 8" /></marker></defs>')  # fmt: skip
    for box in BOXES:
        middle = box.x + box.width // 2
        parts.append(f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6" />')
        parts.append(f'<text class="name" x="{middle}" y="{box.y + 24}" text-anchor="middle">{box.name}</text>')
        parts.append(f'<text x="{middle}" y="{box.y + 44}" text-anchor="middle">{box.about}</text>')
    for arrow in ARROWS:
        parts.append(f'<path d="{arrow.path}" marker-end="url(#head)" />')
        parts.append(f'<text x="{arrow.x}" y="{arrow.y}" text-anchor="{arrow.anchor}">{arrow.text}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
