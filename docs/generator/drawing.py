"""The paper's boxes as SVGs that stand in the page and follow its colours: all of them, and what happens in each."""

from __future__ import annotations

WIDTH = 460
STYLE = (
    ".boxes{width:100%;max-width:30rem;height:auto;display:block;margin:1rem auto;color:inherit}"
    ".boxes rect,.boxes path{fill:none;stroke:currentColor;stroke-width:1.5}"
    ".boxes .lit{fill:currentColor;fill-opacity:.15}.boxes .dashed{stroke-dasharray:4 3}"
    ".boxes text{fill:currentColor;font:13px sans-serif}.boxes .name{font-weight:bold;font-size:15px}"
)
HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8" /></marker></defs>'
)


def pages() -> dict[str, str]:
    """The drawings, to be included as raw HTML; the first brings what all share."""
    made = {"boxes": boxes(), "actors": actors(), "loader": loader(), "learner": learner(), "parameter": parameter()}
    return {f"drawings/{name}.svg": text for name, text in {**made, "cache": cache()}.items()}


def svg(height: int, about: str, *parts: str) -> str:
    """A drawing; `about` is what it says to whom it is read out."""
    head = f'<svg class="boxes" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{about}">'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def rect(x: int, y: int, width: int, height: int, kind: str = "") -> str:
    """A rectangle; `lit` is filled."""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="4" />'


def text(x: int, y: int, words: str, anchor: str = "middle", kind: str = "") -> str:
    """A line of text."""
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'


def arrow(path: str, kind: str = "") -> str:
    """A line with a head at its end."""
    return f'<path class="{kind}" d="{path}" marker-end="url(#head)" />'


def box(x: int, y: int, width: int, name: str, about: str) -> str:
    """One of the paper's boxes."""
    middle = x + width // 2
    return rect(x, y, width, 56) + text(middle, y + 24, name, kind="name") + text(middle, y + 44, about)


def boxes() -> str:
    """All five, and what goes from one to the other."""
    return svg(
        470,
        "Actors send fragments to the data loader, which hands minibatches to learner functions. Their gradients go to "
        "the parameter function, which publishes new policies to the cache, from where actors and learners fetch them.",
        f"<style>{STYLE}</style>{HEAD}",
        box(10, 10, 180, "actors", "roll out fragments"),
        box(10, 150, 180, "data loader", "cuts minibatches"),
        box(10, 290, 180, "learner functions", "one gradient each"),
        box(10, 404, 440, "parameter function", "gate · weights · optimizer step"),
        box(270, 150, 180, "cache", "the last H policies"),
        arrow("M100 66V150") + text(108, 112, "fragments", "start"),
        arrow("M100 206V290") + text(108, 252, "minibatches", "start"),
        arrow("M100 346V404") + text(108, 380, "gradients", "start"),
        arrow("M360 404V206") + text(352, 372, "new version", "end"),
        arrow("M360 150V38H190") + text(278, 30, "behaviour policy"),
        arrow("M300 206V318H190") + text(245, 310, "policy"),
    )


def actors() -> str:
    """A fragment: T steps of N environments under one version."""
    steps = [rect(150 + 24 * step, 14 + 24 * env, 20, 18, "lit") for env in range(4) for step in range(9)]
    return svg(
        144,
        "A policy steps N environments for T steps.",
        rect(10, 40, 92, 40) + text(56, 65, "version 7"),
        arrow("M102 60H142"),
        *steps,
        text(256, 130, "T steps of N environments: a fragment"),
        arrow("M366 60H402") + text(432, 65, "loader"),
    )


def loader() -> str:
    """Minibatches: a fragment cut anew in every epoch."""
    parts = [rect(10 + 16 * cell, 30, 13, 30, "lit") for cell in range(8)]
    for epoch in range(2):
        y = 14 + 48 * epoch
        parts += [rect(232 + 44 * batch + 16 * cell, y, 13, 22, "lit") for batch in range(4) for cell in range(2)]
        parts.append(text(426, y + 16, f"epoch {epoch + 1}"))
    return svg(
        112,
        "A fragment is cut into minibatches, in every epoch anew.",
        *parts,
        text(72, 84, "fragment"),
        arrow("M148 45H220"),
        text(184, 36, "shuffled"),
        text(318, 106, "a pointer to each waits for a learner"),
    )


def learner() -> str:
    """Staleness: versions published between fetch and aggregation."""
    ticks = [
        f'<path d="M{x} 30V42" />' + text(x, 24, f"version {v}") for x, v in ((60, 3), (190, 4), (270, 5), (380, 6))
    ]
    return svg(
        142,
        "A learner fetches version 3; its gradient is aggregated into version 6, so its staleness is 2.",
        '<path d="M10 36H450" />',
        *ticks,
        rect(76, 62, 222, 28, "lit") + text(187, 81, "one gradient, on version 3"),
        rect(298, 62, 82, 28, "dashed") + text(339, 81, "queued"),
        arrow("M76 44V62"),
        arrow("M380 76V44"),
        text(76, 110, "fetched"),
        text(298, 110, "delivered"),
        text(392, 110, "aggregated"),
        text(230, 134, "two versions were published meanwhile: staleness 2"),
    )


def parameter() -> str:
    """The gate, the weights, the step."""
    queue = [rect(10 + 34 * i, 34, 28, 28, "lit") + text(24 + 34 * i, 53, str(s)) for i, s in enumerate((0, 1, 4, 2))]
    return svg(
        124,
        "Gradients wait in a queue with their staleness; if its mean is low enough, they are weighted and applied.",
        *queue,
        text(75, 84, "queue, by staleness"),
        arrow("M146 48H170"),
        rect(174, 28, 92, 40) + text(220, 53, "mean ≤ β ?"),
        arrow("M266 48H308") + text(286, 40, "yes"),
        rect(312, 28, 64, 40) + text(344, 53, "Σ w g"),
        arrow("M376 48H398"),
        rect(402, 28, 50, 40) + text(427, 53, "step"),
        arrow("M220 68V104H75V92", "dashed") + text(150, 118, "no: wait for more"),
    )


def cache() -> str:
    """The version ring, and who holds what."""
    versions = [
        rect(20 + 60 * i, 14, 50, 32, "lit" if i == 6 else "") + text(45 + 60 * i, 35, str(18 + i)) for i in range(7)
    ]
    holders = ((45 + 60 * 2, "learner 4"), (45 + 60 * 4, "learner 1"), (45 + 60 * 6, "newest"))
    return svg(
        108,
        "The last H versions; learners in flight hold older ones.",
        *versions,
        *(arrow(f"M{x} 78V48") + text(x, 96, who) for x, who in holders),
    )
