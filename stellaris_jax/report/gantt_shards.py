"""Panels of independent actors in the picture of a timeline: fragments coloured by version, and the data queue."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from stellaris_jax.config.tree import Config
from stellaris_jax.report.curves import BLACK, BLUE, GREEN, LINE, TEXT, VERMILION, legend_below
from stellaris_jax.report.shards import DIED, DROPPED, ShardBar, queue_length
from stellaris_jax.report.style import drawing
from stellaris_jax.timeline import Round

LIGHT, DARK = 0.12, 0.62
"""Range of the colour map for the first and the last version: dark text can be read on all of it."""
ENDED: dict[str, tuple[str, str, str]] = {
    DROPPED: ("////", VERMILION, "fragment that was dropped"),
    DIED: ("xxxx", "0.55", "attempt that died"),
}
"""Hatch, colour and name of fragments that no batch has."""
QUEUE = 1.1
"""Height of the panel of the data queue, in inches."""

NARROWEST = 12
"""Width of the narrowest segment that a version is tried to be written into, in pixels."""


def shard_heights(shards: int) -> list[float]:
    """Heights of the panels of shards and of the data queue, in inches."""
    return [0.3 * shards + 0.5, QUEUE]


@drawing()
def draw_shards(
    figure: Figure, panels: np.ndarray, bars: Sequence[Sequence[ShardBar]], rounds: Sequence[Sequence[Round]],
    config: Config,
) -> None:  # fmt: skip
    """Draw the panels of shards and data queues above those of learners.

    Args:
      figure: the figure.
      panels: its axes, `[N, 3]`: of shards, data queue and learners, for each of N timelines.
      bars: fragments of each timeline.
      rounds: rounds of each timeline.
      config: configuration of the run.
    """
    last = max((version for every in bars for bar in every for *_, version in bar.segments), default=0)
    colours, scale = matplotlib.colormaps["Blues"], Normalize(0, max(1, last))
    tint = LIGHT + (DARK - LIGHT) * np.linspace(0, 1, 256)
    shades = matplotlib.colors.ListedColormap(colours(tint))
    marked = set[str]()
    for (shards, queue, learners), every, row in zip(panels, bars, rounds, strict=True):
        until = _end(row)
        learners.set_xlim(0, 1.01 * until)
        for axes in (shards, queue):
            axes.sharex(learners)
            axes.tick_params(labelbottom=False)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.tick_params(axis="y", length=0)
        marked |= _draw_fragments(shards, every, config, lambda version: shades(scale(version)), until)
        _draw_queue(queue, every, row, until)
        for batch in (batch for round_ in row for batch in round_.batches):
            for axes in (shards, learners):
                axes.axvline(batch.second, color=GREEN, lw=0.9, ls=":", zorder=0.5)
        shards.set_title(fill(_title(learners, every, row, config), LINE), fontsize=TEXT + 2)
        learners.set_title("")
    key = figure.colorbar(ScalarMappable(scale, shades), ax=list(panels[:, 0]), pad=0.01)
    key.locator = MaxNLocator(4, integer=True)
    key.update_ticks()
    key.set_label("version", fontsize=TEXT)
    begins = "begin of a fragment" + (" (white: of a further segment)" if config.segments > 1 else "")
    handles: list[Artist] = [
        Line2D([], [], color=GREEN, ls=":", marker="v", ms=4, label="batch formed, with its number"),
        Line2D([], [], color=BLACK, lw=0, marker="|", ms=9, mew=1.2, label=begins),
    ]
    for outcome, (hatch, colour, name) in ENDED.items():
        if outcome in marked:
            handles.append(Patch(facecolor="white", edgecolor=colour, hatch=hatch, label=name))
    legend_below(figure, handles, columns=4)
    for (shards, *_), every, row in zip(panels, bars, rounds, strict=True):
        _write_versions(figure, shards, every, config, _end(row))


def _end(rounds: Sequence[Round]) -> float:
    """End of the last round, in seconds."""
    return max((round_.usage.seconds for round_ in rounds), default=0.0) or 1.0


def _title(learners: Axes, bars: Sequence[ShardBar], rounds: Sequence[Round], config: Config) -> str:
    batches = sum(len(round_.batches) for round_ in rounds)
    dropped = sum(bar.outcome == DROPPED for bar in bars)
    parts = [learners.get_title(), f"{batches} batches", f"{dropped} fragments dropped" if dropped else ""]
    return f"{', '.join(filter(None, parts))}; data admission {config.system.data_admission}"


def _row(shard: int, config: Config) -> int:
    """Height of a shard's row: the first shard is at the top."""
    return config.actor_shards - 1 - shard


def _draw_fragments(axes: Axes, bars: Sequence[ShardBar], config: Config, colour: Any, until: float) -> set[str]:
    """Draw a row for each shard; returns the outcomes that have a hatch."""
    marked = set[str]()
    for bar in bars:
        fragment, low = bar.fragment, _row(bar.fragment.shard, config) - 0.4
        end = min(bar.end, until)
        if bar.outcome != DIED:
            for start, stop, version in bar.segments:
                axes.broken_barh([(start, min(stop, until) - start)], (low, 0.8), color=colour(version), lw=0)
            later = [start for start, *_ in bar.segments[1:] if start < until]
            axes.vlines(later, low, low + 0.8, color="white", lw=1)
        if bar.outcome in ENDED:
            hatch, edge, _ = ENDED[bar.outcome]
            marked.add(bar.outcome)
            face: dict[str, Any] = {"facecolor": "none", "edgecolor": edge, "hatch": hatch, "lw": 0.6}
            axes.broken_barh([(fragment.begin, end - fragment.begin)], (low, 0.8), **face)
        axes.vlines([fragment.begin], low, low + 0.8, color=BLACK, lw=1.2)
    axes.set_yticks(range(config.actor_shards))
    axes.set_yticklabels([f"shard {_row(place, config)}" for place in range(config.actor_shards)], fontsize=TEXT)
    axes.set_ylim(-0.6, config.actor_shards - 0.4)
    return marked


def _draw_queue(axes: Axes, bars: Sequence[ShardBar], rounds: Sequence[Round], until: float) -> None:
    seconds, waiting = queue_length(bars, until)
    axes.fill_between(seconds, waiting, step="post", color=BLUE, alpha=0.2, lw=0)
    axes.step(seconds, waiting, where="post", color=BLUE, lw=1)
    most = max(1, int(waiting.max()))
    for batch in (batch for round_ in rounds for batch in round_.batches):
        axes.vlines([batch.second], 0, 1.12 * most, color=GREEN, lw=0.9, ls=":", zorder=0.5)
        axes.plot([batch.second], [1.12 * most], color=GREEN, marker="v", ms=4, clip_on=False)
        axes.text(batch.second, 1.22 * most, str(batch.index), ha="center", va="bottom", fontsize=TEXT - 2, color=GREEN)
    dropped = [bar.fragment.left for bar in bars if bar.outcome == DROPPED]
    axes.plot(dropped, [0.5] * len(dropped), ls="", marker="x", ms=4, color=VERMILION)
    axes.set_ylim(0, 1.5 * most)
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.tick_params(labelsize=TEXT - 1)
    axes.set_ylabel("data queue\n(fragments)", fontsize=TEXT)


def _write_versions(figure: Figure, axes: Axes, bars: Sequence[ShardBar], config: Config, until: float) -> None:
    """Write a version into the first segment of a fragment that has it, and room; known only after the layout."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    for bar in bars:
        written = None
        for start, stop, version in bar.segments if bar.outcome != DIED else ():
            end = min(stop, until)
            left, right = axes.transData.transform([(start, 0), (end, 0)])[:, 0]
            if version == written or right - left < NARROWEST:
                continue
            middle, row = (start + end) / 2, _row(bar.fragment.shard, config)
            label = axes.text(middle, row, f"v{version}", ha="center", va="center", fontsize=TEXT - 2)
            if label.get_window_extent(renderer).width > right - left:
                label.remove()
            else:
                written = version
