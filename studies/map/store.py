"""Outcomes of cells, stored in one file per task of the results, and training of missing cells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.records import WARNINGS, Record
from stellaris_jax.many.population import Population
from studies.builds import current_build
from studies.files import locked, read_rows, write_packed
from studies.map.cells import Cell

POINTS = 20
"""Points of a stored curve."""
TOGETHER = 16
"""Number of cells that are trained at once."""


class Outcome(NamedTuple):
    """Outcome of one seed of a cell.

    Attributes:
      cell: the cell.
      seed: the seed.
      rounds: rounds of the run.
      returns: returns of training episodes, means over `POINTS` parts of the run, as equal as rounds allow.
      seconds: simulated seconds at the end of each part.
      cost_usd: simulated dollars.
      staleness: mean staleness of all gradients of all seeds.
      dropped: share of dropped gradients.
      config: digest of the configuration.
      warnings: diagnostics of `records.WARNINGS`, in their order, means over the same parts.
    """

    cell: Cell
    seed: int
    rounds: int
    returns: tuple[float, ...]
    seconds: tuple[float, ...]
    cost_usd: float
    staleness: float
    dropped: float
    config: str
    warnings: tuple[tuple[float, ...], ...]

    @property
    def final(self) -> float:
        """Mean return of the last tenth of the parts."""
        return float(np.mean(self.returns[-max(1, POINTS // 10) :]))

    @property
    def auc(self) -> float:
        """Mean return over the whole run: the area under the curve over its width."""
        return float(np.average(self.returns, weights=sizes(self.rounds)))

    @property
    def peak(self) -> float:
        """Largest mean return of a part."""
        return max(self.returns)

    def warning(self, name: str) -> tuple[float, ...]:
        """Diagnostic over the run."""
        return self.warnings[WARNINGS.index(name)]


Key = tuple[Cell, int]


def outcomes(cells: Iterable[Cell], seeds: range, results: Path) -> dict[Cell, list[Outcome]]:
    """Outcomes of cells, a list of one per seed; cells missing from the files below `results` are trained now.

    Cells are stored once they are trained, so that an interrupted call continues when it is repeated.

    Args:
      cells: the cells.
      seeds: seeds of every cell.
      results: directory of the files.

    Raises:
      ConfigError: a file has other settings of a cell, or new runs must not be mixed with a published figure.
    """
    cells = list(dict.fromkeys(cells))
    for task in dict.fromkeys(cell.task for cell in cells):
        path = results / f"{task}.csv.gz"
        known = read(path)
        members = [cell for cell in cells if cell.task == task]
        _check(members, seeds, known, path)
        requested = [(cell, seed) for cell in members for seed in seeds]
        absent = [key for key in requested if key not in known]
        current_build().check_training(len(absent))
        missing = list(dict.fromkeys(cell for cell, _ in absent))
        for begin in range(0, len(missing), TOGETHER):
            batch = missing[begin : begin + TOGETHER]
            print(f"{task}: cells {begin + 1} to {begin + len(batch)} of {len(missing)}", flush=True)
            enter(trained(batch, seeds), path)
        current_build().count(requested, absent)
    stored = {
        key: outcome
        for task in {cell.task for cell in cells}
        for key, outcome in read(results / f"{task}.csv.gz").items()
    }
    return {cell: [stored[cell, seed] for seed in seeds] for cell in cells}


def enter(rows: Iterable[Outcome], path: Path) -> None:
    """Add outcomes to a file; other processes may add theirs at the same time."""
    with locked(path):
        write({**read(path), **{(row.cell, row.seed): row for row in rows}}.values(), path)


def _check(cells: Iterable[Cell], seeds: range, known: Mapping[Key, Outcome], path: Path) -> None:
    for cell in cells:
        for seed in seeds:
            if (cell, seed) in known and known[cell, seed].config != digest(cell):
                raise ConfigError(
                    f"{path} has {cell.variant.name} with other settings: keep them apart with --results DIR, or "
                    "remove it to train it anew."
                )


@cache
def digest(cell: Cell) -> str:
    """Digest of a cell's configuration."""
    return cell.variant.digest


def trained(cells: Sequence[Cell], seeds: range) -> list[Outcome]:
    """Train cells concurrently, with all seeds."""
    many = [f"seed={seeds[0]}", f"num_seeds={len(seeds)}"]
    population = Population([load_config([*cell.variant.overrides, *many]) for cell in cells])
    try:
        records = population.run()
    finally:
        population.close()
    return [outcome for cell, rows in zip(cells, records, strict=True) for outcome in _outcomes(cell, seeds, rows)]


def _outcomes(cell: Cell, seeds: range, records: Sequence[Record]) -> list[Outcome]:
    last = records[-1]
    gradients = [sum(row["staleness_counts"]) for row in records]
    staleness = float(np.average([row["staleness_mean"] for row in records], weights=gradients))
    dropped = last["dropped"] / (last["dropped"] + sum(gradients))

    def curve(name: str, seed: int) -> list[float]:
        return [row["per_seed"][name][seed] for row in records]

    return [
        Outcome(
            cell,
            seed,
            len(records),
            parts(curve("train_return", i)),
            tuple(part[-1] for part in split(curve("simulated_seconds", i), POINTS)),
            last["per_seed"]["cost_usd"][i],
            staleness,
            dropped,
            digest(cell),
            tuple(parts(curve(name, i)) for name in WARNINGS),
        )
        for i, seed in enumerate(seeds)
    ]


def parts(returns: Sequence[float | None], number: int = POINTS) -> tuple[float, ...]:
    """Curve as means of equal parts; a round without finished episodes takes the previous return.

    >>> parts([None, 1.0, None, 3.0], 2)
    (1.0, 2.0)
    """
    filled: list[float] = []
    for value in returns:
        known = value is not None and math.isfinite(value)
        filled.append(float(value) if known else filled[-1] if filled else math.nan)  # type: ignore[arg-type]
    first = next((value for value in filled if not math.isnan(value)), math.nan)
    filled = [first if math.isnan(value) else value for value in filled]
    return tuple(float(np.mean(part)) for part in split(filled, number))


def split(values: Sequence[float], number: int) -> list[Sequence[float]]:
    """Values in parts of nearly equal size; with fewer values than parts, some values are in several parts.

    >>> split([1.0, 2.0, 3.0], 2), split([1.0, 2.0], 3)
    ([[1.0, 2.0], [3.0]], [[1.0], [1.0], [2.0]])
    """
    if len(values) < number:
        return [[values[part * len(values) // number]] for part in range(number)]
    return [part.tolist() for part in np.array_split(np.asarray(values), number)]


@cache
def sizes(rounds: int) -> tuple[float, ...]:
    """Rounds in each of `POINTS` parts of so many rounds; one that is in several parts is shared out.

    >>> sizes(31)[:12], sum(sizes(31)), sum(sizes(19))
    ((2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0), 31.0, 19.0)
    """
    members = split(list(range(rounds)), POINTS)
    times = Counter(number for part in members for number in part)
    return tuple(sum(1.0 / times[number] for number in part) for part in members)


def read(path: Path) -> Mapping[Key, Outcome]:
    """Outcomes in a file, read again when the file has changed; empty if there is no file."""
    if not path.is_file():
        return {}
    about = path.stat()
    return _read(path, about.st_ino, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=8)
def _read(path: Path, *_version: int) -> Mapping[Key, Outcome]:
    rows = read_rows(path, _outcome)
    return MappingProxyType({(one.cell, one.seed): one for one in rows})


def _outcome(row: dict[str, str]) -> Outcome:
    cell = Cell(row["task"], row["method"], int(row["learners"]), row["rate"], row["variation"])
    cost, staleness, dropped = (float(row[name]) for name in ("cost_usd", "staleness", "dropped"))
    warnings = tuple(_curve(row[name]) for name in WARNINGS)
    curves = (_curve(row["returns"]), _curve(row["seconds"]))
    return Outcome(
        cell, int(row["seed"]), int(row["rounds"]), *curves, cost, staleness, dropped, row["config"], warnings
    )


def _curve(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


def write(rows: Iterable[Outcome], path: Path) -> None:
    """Replace the file atomically; equal outcomes give equal bytes."""

    def cells(row: Outcome) -> list[Any]:
        curves = [" ".join(f"{value:.5g}" for value in curve) for curve in (row.returns, row.seconds)]
        figures = [f"{value:.5g}" for value in (row.cost_usd, row.staleness, row.dropped)]
        warnings = [" ".join(f"{value:.3g}" for value in curve) for curve in row.warnings]
        return [*row.cell, row.seed, row.rounds, *curves, *figures, row.config, *warnings]

    header = [*Cell._fields, *Outcome._fields[1:-1], *WARNINGS]
    write_packed(path, header, map(cells, sorted(rows, key=lambda row: (row.cell, row.seed))))
