"""Figures of the study and their claims: `scripts/reproduce.py regimes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.base import inputs
from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.report.curves import BLACK, BLUE, GREEN, LINES, TEXT, VERMILION, legend_below, save, tidy, titled
from stellaris_jax.report.style import drawing
from stellaris_jax.telemetry.format import significant
from studies.claims import Claim, less
from studies.files import replace_block
from studies.regimes.cells import (
    CELLS,
    COLD,
    COLLECTING,
    FAST,
    LEARNERS,
    PARETO,
    RATIOS,
    REGIMES,
    RULES,
    TAILS,
    WARM,
    Cell,
    Regime,
)
from studies.regimes.timelines import Timed, timelines
from studies.study import Figure, Study

ENVS: tuple[str, ...] = ()
"""Timelines have no environments."""


class System(NamedTuple):
    """A rule of aggregation, and a way of actors."""

    rule: str
    actors: str


SYNCHRONOUS = System("all-reduce", "barrier")
COMPARED = {
    "pipelined actors": System("all-reduce", "pipelined"),
    "asynchronous actors": System("all-reduce", "independent"),
    "asynchronous learners": System("async", "barrier"),
    "both": System("async", "independent"),
    "one fast learner": System(FAST, "barrier"),
    "one fast learner, asynchronous actors": System(FAST, "independent"),
}
"""Systems whose speed is compared with that of `SYNCHRONOUS`, on the same hardware."""
STYLES = dict(
    zip(
        COMPARED,
        zip((GREEN, GREEN, BLUE, VERMILION, BLACK, BLACK), (LINES[2], *LINES[:1] * 3, *LINES[1:3]), strict=True),
        strict=True,
    )
)
HEADER = ("ratio", "tail", "failure", "start", "learners", "system", "speedup", "staleness", "data_lag")
FEW, MANY = 8, 32
"""Numbers of learners of the claims."""
TOLERANCE = 0.03
"""Share by which one figure must be smaller than another to count as smaller."""


def speedups(timed: Mapping[Cell, Timed], regime: Regime, system: System) -> np.ndarray:
    """Speed of a system as a multiple of the synchronous one's, by number of learners and seed `[learners, seeds]`."""

    def seconds(own: System) -> np.ndarray:
        return np.array([timed[Cell(regime, learners, *own)].seconds for learners in LEARNERS])

    return seconds(SYNCHRONOUS) / seconds(system)


def front(timed: Mapping[Cell, Timed], regime: Regime, learners: int) -> frozenset[System]:
    """Systems of which no other is both faster and fresher.

    Freshness is the age of data when their gradient is aggregated, in batches: data lag and staleness over the
    updates of a batch. `FAST` is left out, for nobody has it.
    """
    systems = [System(rule, actors) for rule in RULES if rule != FAST for actors in COLLECTING]
    figures = {}
    for system in systems:
        own = timed[Cell(regime, learners, *system)]
        figures[system] = np.array([own.mean("seconds"), own.age + 0.05])
    return frozenset(
        system
        for system, own in figures.items()
        if not any(
            np.all(other <= own * (1.0 + TOLERANCE)) and np.any(other < own * (1.0 - TOLERANCE))
            for other in figures.values()
        )
    )


def when(study: Study) -> list[Claim]:
    """How many times as fast as all-reduce are asynchronous actors and learners, on the same hardware?"""
    timed = timelines(CELLS, study.results, partial(print, flush=True))
    rows = []
    for regime in REGIMES:
        for name, system in COMPARED.items():
            gains = speedups(timed, regime, system).mean(axis=1)
            for learners, gain in zip(LEARNERS, gains, strict=True):
                own = timed[Cell(regime, learners, *system)]
                lags = (f"{own.mean(figure):.4g}" for figure in ("staleness", "data_lag"))
                rows.append((*regime, learners, name, f"{gain:.4g}", *lags))
    study.table("when", HEADER, rows)
    usual = {tail: [Regime(ratio, tail, 0.0, WARM) for ratio in RATIOS] for tail in TAILS}
    save(_picture(timed, {PARETO: usual[PARETO]}, "When does asynchrony win, and by what?"), study.picture("when"))
    save(_picture(timed, usual, "The same by the tail of durations"), study.results / "figure_when_tails.png")
    other = {
        "5 % of gradients fail": [Regime(ratio, PARETO, 0.05, WARM) for ratio in RATIOS],
        "cold starts": [Regime(ratio, PARETO, 0.0, COLD) for ratio in RATIOS],
    }
    save(_picture(timed, other, "The same with failures and cold starts"), study.results / "figure_when_starts.png")
    return [
        less(
            f"{tail}, {learners} learners, rollout {_share(ratio)}: both asynchronous take less time than all-reduce",
            "–",
            timed[Cell(Regime(ratio, tail, 0.0, WARM), learners, *COMPARED["both"])].seconds,
            timed[Cell(Regime(ratio, tail, 0.0, WARM), learners, *SYNCHRONOUS)].seconds,
        )
        for tail in TAILS
        for learners in (FEW, MANY)
        for ratio in RATIOS
    ]


def fronts(study: Study) -> list[Claim]:
    """Which systems are neither slower nor staler than another, by regime and number of learners?"""
    timed = timelines(CELLS, study.results, partial(print, flush=True))
    rows = [
        (*regime, learners, "; ".join(sorted(", ".join(system) for system in front(timed, regime, learners))))
        for regime in REGIMES
        for learners in LEARNERS[1:]
    ]
    study.table("fronts", (*HEADER[:5], "systems"), rows)
    save(_front_picture(timed), study.picture("fronts"))
    return []


def _share(ratio: float) -> str:
    return "1" if ratio == 1.0 else f"1/{round(1.0 / ratio)}"


@drawing()
def _picture(timed: Mapping[Cell, Timed], rows: Mapping[str, Sequence[Regime]], title: str) -> Any:
    figure = titled(title, 0.9 + 2.3 * len(rows))
    grid = figure.subplots(len(rows), len(RATIOS), sharey="row", squeeze=False)
    for line, (name, regimes) in zip(grid, rows.items(), strict=True):
        for axes, regime in zip(line, regimes, strict=True):
            for label, system in COMPARED.items():
                colour, style = STYLES[label]
                axes.plot(
                    range(len(LEARNERS)), speedups(timed, regime, system).mean(axis=1), color=colour, linestyle=style,
                    marker="o" if colour != BLACK else "", markersize=3, label=label,
                )  # fmt: skip
            axes.axhline(1.0, color="0.6", linewidth=0.8)
            axes.set_xticks(range(len(LEARNERS)), list(map(str, LEARNERS)), fontsize=TEXT - 1)
            axes.set_title(f"{name}, rollout {_share(regime.ratio)}", fontsize=TEXT)
            tidy(axes)
        line[0].set_ylabel("times as fast as all-reduce", fontsize=TEXT)
    for axes in grid[-1]:
        axes.set_xlabel("learners", fontsize=TEXT)
    handles = grid[0][0].get_legend_handles_labels()[0]
    note = (
        "rollout: its duration, as a share of what one learner takes for the batch; "
        "black: an ideal on all hardware, no loss"
    )
    legend_below(figure, handles, len(handles), note)
    return figure


@drawing()
def _front_picture(timed: Mapping[Cell, Timed]) -> Any:
    figure = titled(f"Speed and freshness of every system, {FEW} learners, Pareto", 3.4)
    colours = dict(zip(RULES, ("0.5", BLACK, VERMILION, "#E69F00", GREEN, BLUE, "#CC79A7", "#56B4E9"), strict=True))
    for number, ratio in enumerate(RATIOS, 1):
        regime = Regime(ratio, PARETO, 0.0, WARM)
        axes = figure.add_subplot(1, len(RATIOS), number)
        kept = front(timed, regime, FEW)
        for rule, colour in colours.items():
            for actors, marker in zip(COLLECTING, "os^", strict=True):
                own = timed[Cell(regime, FEW, rule, actors)]
                face = colour if System(rule, actors) in kept else "none"
                label = rule if actors == "barrier" else None
                axes.plot(own.mean("seconds"), own.age, marker, color=colour, markerfacecolor=face, label=label)
        axes.set_xlabel("duration of a batch (gradients)", fontsize=TEXT)
        axes.set_title(f"rollout {_share(ratio)}", fontsize=TEXT)
        if number == 1:
            axes.set_ylabel("age of data (batches)", fontsize=TEXT)
        tidy(axes)
    handles = figure.axes[0].get_legend_handles_labels()[0]
    note = "circles: barrier, squares: pipelined, triangles: independent actors; filled: no other is faster and fresher"
    legend_below(figure, handles, len(handles), note)
    return figure


def answer(timed: Mapping[Cell, Timed]) -> str:
    """Table of speeds beside all-reduce that waits for its actors, with ranges over the ratios."""
    lines = [f"| durations | learners | {' | '.join(COMPARED)} |", "|---" * (2 + len(COMPARED)) + "|"]
    for tail in TAILS:
        for learners in (FEW, MANY):
            place, cells = LEARNERS.index(learners), []
            for system in COMPARED.values():
                regimes = [Regime(ratio, tail, 0.0, WARM) for ratio in RATIOS]
                gains = [speedups(timed, regime, system).mean(axis=1)[place] for regime in regimes]
                cells.append(f"{significant(min(gains), 2)} to {significant(max(gains), 2)}")
            lines.append(f"| {tail} | {learners} | {' | '.join(cells)} |")
    return "\n".join(lines)


BEGIN, END = "<!-- speeds: begin -->", "<!-- speeds: end -->"


def finish(results: Path) -> None:
    """Update the table of speeds on the page."""
    page = results / "README.md"
    table = answer(timelines(CELLS, results, partial(print, flush=True)))
    write_atomically(page, replace_block(inputs.read_text(page), BEGIN, END, table))


FIGURES: dict[str, Figure] = {"when": when, "fronts": fronts}
