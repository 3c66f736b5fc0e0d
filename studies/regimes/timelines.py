"""Timelines of all cells, kept in one file of the results; those that are there are not simulated again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.timeline.forecast import Forecast, Window
from studies.files import locked, read_rows, write_packed
from studies.regimes.cells import ACTORS, FAST, Cell, Regime, config_of

SEEDS = range(5)
WINDOW = Window(rounds=30, warmup=5)
FILE = "timelines.csv.gz"
EVERY = 200
"""Cells between two writings of the file."""


class Timed(NamedTuple):
    """Figures of a cell, one for each of `SEEDS`; durations are in gradients.

    Attributes:
      cell: the cell.
      seconds: duration of a batch.
      busy: functions' busy time of a batch, without start-ups, failures and aggregations, which are billed, too.
      learners: share of the time that a learner computes.
      actors: share of the time that an actor rolls out.
      staleness: mean staleness of gradients, in versions.
      data_lag: mean data lag, in versions.
      updates: updates of a batch.
    """

    cell: Cell
    seconds: tuple[float, ...]
    busy: tuple[float, ...]
    learners: tuple[float, ...]
    actors: tuple[float, ...]
    staleness: tuple[float, ...]
    data_lag: tuple[float, ...]
    updates: tuple[float, ...]

    def mean(self, figure: str) -> float:
        """Mean over seeds of a figure."""
        return float(np.mean(getattr(self, figure)))

    @property
    def age(self) -> float:
        """Mean age of data when their gradient is aggregated, in batches: data lag and staleness over the updates."""
        return (self.mean("data_lag") + self.mean("staleness")) / self.mean("updates")


FIGURES = Timed._fields[1:]
COLUMNS = ("seconds", "busy", "learners_busy", "actors_busy", "staleness", "data_lag", "updates")
"""Columns of `FIGURES`: the file also has columns for the numbers of learners and the way of actors."""


def simulate(cell: Cell) -> Timed:
    """Simulate the rounds of a cell."""
    config = config_of(cell)
    # The fast learner is as many functions at once.
    functions = cell.learners if cell.rule == FAST else 1
    seeds = [Forecast.of(config, seed, WINDOW) for seed in SEEDS]

    def busy(one: Forecast) -> float:
        learning = functions * config.system.learners * one.learner_utilisation
        return one.round_seconds * (learning + ACTORS * one.actor_utilisation)

    return Timed(
        cell,
        tuple(one.round_seconds for one in seeds),
        tuple(busy(one) for one in seeds),
        tuple(one.learner_utilisation for one in seeds),
        tuple(one.actor_utilisation for one in seeds),
        tuple(one.staleness_mean for one in seeds),
        tuple(one.data_lag_mean for one in seeds),
        tuple(one.round_updates for one in seeds),
    )


def timelines(cells: Iterable[Cell], results: Path, note: Callable[[str], None]) -> dict[Cell, Timed]:
    """Figures of cells; those that the results' file lacks are simulated and added to it.

    Args:
      cells: the cells.
      results: directory of the results.
      note: told of progress.
    """
    cells, path = list(cells), results / FILE
    known = _read(path)
    missing = [cell for cell in cells if cell not in known]
    for begin in range(0, len(missing), EVERY):
        new = {cell: simulate(cell) for cell in missing[begin : begin + EVERY]}
        with locked(path):
            known = _read(path) | new
            _write(path, known)
        note(f"{begin + len(new)} of {len(missing)} timelines")
    return {cell: known[cell] for cell in cells}


def _write(path: Path, known: dict[Cell, Timed]) -> None:
    def cells(cell: Cell, timed: Timed) -> tuple[Any, ...]:
        regime, *system = cell
        return (*regime, *system, *(" ".join(f"{value:.5g}" for value in getattr(timed, name)) for name in FIGURES))

    header = (*Regime._fields, *Cell._fields[1:], *COLUMNS)
    write_packed(path, header, (cells(*item) for item in sorted(known.items())))


def _read(path: Path) -> dict[Cell, Timed]:
    return {timed.cell: timed for timed in read_rows(path, _timed)} if path.is_file() else {}


def _timed(row: dict[str, str]) -> Timed:
    regime = Regime(float(row["ratio"]), row["tail"], float(row["failure"]), row["start"])
    cell = Cell(regime, int(row["learners"]), row["rule"], row["actors"])
    figures = (tuple(map(float, row[column].split())) for column in COLUMNS)
    return Timed(cell, *figures)
