"""Picture of a timeline: the learners' gradients coloured by staleness, the actors' fragments, and the updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.tree import Config
from stellaris_jax.report.curves import BLUE, DPI, LINE, TEXT, VERMILION, WIDTH, save
from stellaris_jax.report.gantt_shards import draw_shards, shard_heights
from stellaris_jax.report.shards import fragments_under_way, shard_bars
from stellaris_jax.report.style import drawing
from stellaris_jax.timeline import Gradient, Round, Timeline
from stellaris_jax.timeline.plan import MinibatchLayout
from stellaris_jax.timeline.records import Fragment
from stellaris_jax.timeline.scaling.limits import is_constant, is_scaled, limits_of

DARK = 0.4
"""Share of the largest staleness above which a bar is dark."""
NARROW = 4.0
"""Pixels that no text fits into."""
SIMULATED = "simulated seconds"
"""Label of the time axis of a simulation."""


def plot_timeline(config: Config, rounds: int, path: Path) -> Path:
    """Simulate the first rounds of a configuration's first seed and draw them. Returns `path`."""
    return save(timeline_figure(config, rounds), path)


def timeline_figure(config: Config, rounds: int) -> Figure:
    """Figure with one row per learner, one for the actors, one for the parameter function; bars coloured by staleness.

    Where there is room, a gradient has the number of the version that its group makes, and so has each update.

    Independent actors have panels of their own; see `gantt_shards`.

    Raises ConfigError if training decides the number of actors, or how long their rollouts take.
    """
    timeline, limits = Timeline.of(config, config.seed), limits_of(config)
    if not is_constant(config):
        raise ConfigError(f"A timeline of scaling.rule={config.scaling.rule} is known only once it has been trained.")
    if config.delays.by == "episodes":
        raise ConfigError("A timeline of delays.by=episodes is known only once it has been trained.")
    layout, actors = MinibatchLayout.of(config), limits.buckets[0]
    size = (actors, layout.epochs * layout.count(actors * limits.envs)) if is_scaled(config) else ()
    simulated = [timeline.next_round(*size) for _ in range(rounds)]
    under_way = {SIMULATED: fragments_under_way(timeline)}
    return pictured({SIMULATED: simulated}, config, under_way)


@drawing()
def pictured(
    timelines: dict[str, list[Round]], config: Config, under_way: Mapping[str, Sequence[Fragment]] | None = None
) -> Figure:
    """Timelines of one configuration below each other.

    Args:
      timelines: rounds, by the labels of their time axes.
      config: the configuration.
      under_way: fragments of independent actors that waited or were rolled after the rounds, by the same labels.
    """
    rows, learners, shards = len(timelines), config.system.learners, config.actor_shards
    heights = shard_heights(shards) if shards else []
    heights += [0.3 * (learners + (1 if shards else 2)) + 1.6]
    figure = Figure(figsize=(WIDTH, rows * sum(heights)), dpi=DPI, layout="constrained")
    drawn = figure.subplots(rows * len(heights), squeeze=False, height_ratios=rows * heights)[:, 0]
    below = drawn[len(heights) - 1 :: len(heights)]
    most = max(g.staleness for rounds in timelines.values() for g in [*_gradients(rounds), Gradient(0, 0, 0, 0)])
    colours, scale = matplotlib.colormaps["viridis_r"], Normalize(0, max(1, most))
    for axes, (seconds, rounds) in zip(below, timelines.items(), strict=True):
        axes.set_xlabel(seconds, fontsize=TEXT)
        _draw(axes, rounds, config, lambda stale: colours(scale(stale)))
        kind = f"{seconds.partition(' ')[0]}, " if rows > 1 else ""  # real or simulated
        axes.set_title(fill(kind + _counts(rounds, config), LINE), fontsize=TEXT + 2)
    key = figure.colorbar(ScalarMappable(scale, colours), ax=list(below), pad=0.01, ticks=MaxNLocator(integer=True))
    key.set_label("staleness (versions)", fontsize=TEXT)
    if shards:
        open_ones = under_way or {}
        bars = [shard_bars(config, rounds, open_ones.get(label, ())) for label, rounds in timelines.items()]
        draw_shards(figure, drawn.reshape(rows, -1), bars, list(timelines.values()), config)
    # The length of a second on paper is known only after the layout.
    figure.draw_without_rendering()
    for axes, rounds in zip(below, timelines.values(), strict=True):
        for round_, span in [] if shards else zip(rounds, _collected(rounds), strict=True):
            _label(axes, span, learners + 1, _labels(round_))
        groups = [group for round_ in rounds for group in round_.groups]
        ends = [group.second for group in groups[1:]] + [axes.get_xlim()[1]]
        for group, end in zip(groups, ends, strict=False):
            version = str(group.clock + 1)
            _label(axes, (group.second, end), -1, [f" {version}"], ha="left")
            for g in group.gradients:
                colour = "white" if scale(g.staleness) > DARK else "black"
                _label(axes, (g.start, g.end), g.learner, [version], color=colour)
    return figure


def _label(axes: Axes, span: tuple[float, float], row: float, texts: Sequence[str], **style: Any) -> None:
    """Write the first of some texts that fits between two seconds, if one does."""
    left, right = axes.transData.transform([(second, 0) for second in span])[:, 0]
    place = span[0] if style.get("ha") == "left" else sum(span) / 2
    for text in texts if right - left > NARROW else ():
        label = axes.text(place, row, text, **{"ha": "center", "va": "center", "fontsize": TEXT - 1, **style})
        if label.get_window_extent().width <= right - left:
            return
        label.remove()


def _counts(rounds: list[Round], config: Config) -> str:
    groups = sum(len(round_.groups) for round_ in rounds)
    return f"{config.system.name}: {len(_gradients(rounds))} gradients, {groups} updates"


def _gradients(rounds: list[Round]) -> list[Gradient]:
    return [gradient for round_ in rounds for group in round_.groups for gradient in group.gradients]


def _collected(rounds: list[Round]) -> list[tuple[float, float]]:
    """Start and end of the collection of each fragment. A learner may begin later: its function starts up first."""
    return [(round_.start, max(round_.start, round_.complete)) for round_ in rounds]


def _draw(axes: Axes, rounds: list[Round], config: Config, colour: Callable[[int], Any]) -> None:
    learners, gradients = config.system.learners, _gradients(rounds)
    groups = [group for round_ in rounds for group in round_.groups]
    collected = [] if config.actor_shards else _collected(rounds)
    for start, ready in collected:
        axes.broken_barh([(start, ready - start)], (learners + 0.6, 0.8), color=BLUE, alpha=0.35)
    span = max((g.end for g in gradients), default=1.0) - min((g.start for g in gradients), default=0.0)
    for g in gradients:
        bar = (g.start, g.end - g.start)
        edge = 0.5 if bar[1] > 0.005 * span else 0.0  # an edge would cover a narrow bar
        axes.broken_barh([bar], (g.learner - 0.4, 0.8), color=colour(g.staleness), edgecolor="white", lw=edge)
    axes.vlines([group.second for group in groups], -1.4, -0.6, color=VERMILION, lw=1)
    names = {-1: "parameter function", **{i: f"learner {i}" for i in range(learners)}}
    if collected:
        names[learners + 1] = "actors"
    axes.set_yticks(list(names))
    axes.set_yticklabels(list(names.values()), fontsize=TEXT)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _labels(round_: Round) -> list[str]:
    """Labels for a bar of the actors, from the longest to the shortest."""
    fragment = f"fragment {round_.index}"
    return [f"collect {fragment} with version {round_.behaviour_version}", fragment, str(round_.index)]
