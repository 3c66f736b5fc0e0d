"""Outcomes of cells, stored in one file per task of the results, and training of missing cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.records import Record
from stellaris_jax.execute.run import enable_compile_cache
from stellaris_jax.many.population import Population
from studies.builds import current_build
from studies.files import locked, read_rows, write_packed
from studies.study import Study
from studies.training import Variant

POINTS = 20
"""Evaluations of a run after its start, evenly spread over its rounds; the last is at its end."""
DATA = ("data_lag", "data_lag_batches", "data_lag_max", "actor_utilisation", "learner_utilisation", "actor_blocked")
"""Records of a round whose means over its rounds are stored.

Utilisation and blocked time of a round's record are of the run up to that round, so that early rounds weigh more in
their means: these are not the utilisation of the whole run.
"""
DROPPED = ("fragments_dropped_slowness", "fragments_dropped_return")
"""Records of rounds with dropped fragments, whose means over those rounds are stored; NaN without any."""


class Cell(NamedTuple):
    """Setting that is trained; studies subclass it.

    Attributes:
      question: what it is trained for.
      task: name of its task, and of the file of its outcomes.
      method: name of what is compared.
      level: number that is varied, such as a data lag in batches.
      rate: learning rate.
    """

    question: str
    task: str
    method: str
    level: int
    rate: str

    @property
    def episodes(self) -> int:
        """Episodes of an evaluation."""
        return 16

    @property
    def together(self) -> int:
        """Most runs of one seed that are trained at a time."""
        return 48

    @property
    def signals(self) -> tuple[str, ...]:
        """Records whose means between evaluations are stored."""
        return ()

    @property
    def place(self) -> Self:
        """This cell without its learning rate; cells of one place share a compiled program."""
        return self._replace(rate="")

    @property
    def variant(self) -> Variant:
        """Variant that is trained there."""
        raise NotImplementedError

    def share(self, value: float) -> float:
        """Return as a share of the way from an untrained policy to a solved task."""
        raise NotImplementedError


def at_rates(places: Iterable[Cell], rates: Iterable[str]) -> list[Cell]:
    """Cells of places at these learning rates; those of one place are adjacent."""
    rates = list(rates)
    return [place._replace(rate=rate) for place in places for rate in rates]


class Outcome(NamedTuple):
    """Outcome of one seed of a cell.

    Attributes:
      cell: the cell.
      seed: the seed.
      rounds: number of rounds before each evaluation, from 0 to all.
      returns: returns of the evaluations.
      seconds: simulated seconds at each evaluation; interpolated where `rounds` are ends of chunks.
      rolled: env steps that actors have rolled, at the end.
      dropped: fragments dropped, as a share of all.
      data: means of `DATA` and `DROPPED`, in their order.
      config: digest of the configuration.
      signals: means of the cell's signals over each of `POINTS` equal parts of the run `[signals][POINTS]`; NaN where
        none is known.
    """

    cell: Cell
    seed: int
    rounds: tuple[int, ...]
    returns: tuple[float, ...]
    seconds: tuple[float, ...]
    rolled: float
    dropped: float
    data: tuple[float, ...]
    config: str
    signals: tuple[tuple[float, ...], ...] = ()

    def datum(self, name: str) -> float:
        """Mean of one of `DATA` and `DROPPED` over the run."""
        return self.data[(*DATA, *DROPPED).index(name)]

    def signal(self, name: str) -> np.ndarray:
        """Means of one of the cell's signals over each of `POINTS` equal parts of the run `[POINTS]`."""
        return np.array(self.signals[self.cell.signals.index(name)])

    @property
    def shares(self) -> np.ndarray:
        """Evaluated returns as shares of the way from the worst to the solved return."""
        return np.array([self.cell.share(value) for value in self.returns])

    @property
    def final(self) -> float:
        """Mean of the evaluations in the last fifth of the run, as a share of the way to solved."""
        return float(np.mean(self.shares[np.array(self.rounds) > 0.8 * self.rounds[-1]]))

    @property
    def area(self) -> float:
        """Area under the learning curve over rounds, over its width, as a share of the way to solved."""
        return float(np.trapezoid(self.shares, self.rounds)) / self.rounds[-1]

    def evaluated_by(self, seconds: float) -> int:
        """Number of evaluations up to this simulated second, that at the start included."""
        return sum(at <= seconds for at in self.seconds)

    def area_until(self, seconds: float) -> float:
        """Area under the learning curve over simulated seconds up to a limit; the last value lasts."""
        grid = np.linspace(0.0, seconds, 201)
        shares = np.interp(grid, self.seconds, self.shares)
        return float(np.mean((shares[:-1] + shares[1:]) / 2.0))


Outcomes = dict[Cell, list[Outcome]]
Key = tuple[Cell, int]


def outcomes(cells: Iterable[Cell], seeds: range, study: Study) -> Outcomes:
    """Outcomes of cells, a list of one per seed; cells missing from the files of the results are trained now.

    Cells of a place are trained together and stored at once, so that an interrupted call continues when it is repeated.
    Several calls at once train different places.

    Args:
      cells: the cells.
      seeds: seeds of every cell.
      study: directories of the files, and of the locks of those who train.

    Raises:
      ConfigError: a file has other settings of a cell, or new runs must not be mixed with a published figure.
    """
    cells, results = list(dict.fromkeys(cells)), study.results
    requested = [(cell, seed) for cell in cells for seed in seeds]
    absent = _absent(requested, results)
    current_build().check_training(len(absent))
    places = list(dict.fromkeys(cell.place for cell, _ in absent))
    for patient in (False, True):
        for number, place in enumerate(places, 1):
            with locked(study.runs / "-".join(map(str, place[:4])), patient) as free:
                mine = [key for key in absent if key[0].place == place]
                missing = _absent(mine, results) if free else []
                for begin in range(0, len(missing), place.together):
                    part = missing[begin : begin + place.together]
                    about = f"place {number} of {len(places)}, {len(part)} runs"
                    print(f"{place.variant.name.removesuffix('/')}: {about}", flush=True)
                    enter(trained(part), _path(place, results))
    current_build().count(requested, absent)
    stored = {_path(cell, results): read(_path(cell, results), type(cell)) for cell in cells}
    return {cell: [stored[_path(cell, results)][cell, seed] for seed in seeds] for cell in cells}


def _path(cell: Cell, results: Path) -> Path:
    return results / f"{cell.task}.csv.gz"


def _absent(keys: Iterable[Key], results: Path) -> list[Key]:
    """Keys without a stored outcome. Raises ConfigError if one is stored with other settings."""
    absent = []
    for cell, seed in keys:
        path = _path(cell, results)
        known = read(path, type(cell)).get((cell, seed))
        if known is None:
            absent.append((cell, seed))
        elif known.config != digest(cell):
            raise ConfigError(
                f"{path} has {cell.variant.name} with other settings: keep them apart with --results DIR, or "
                "remove it to train it anew."
            )
    return absent


def enter(rows: Iterable[Outcome], path: Path) -> None:
    """Add outcomes to a file; other processes may add theirs at the same time."""
    rows = list(rows)
    with locked(path):
        write({**read(path, type(rows[0].cell)), **{(row.cell, row.seed): row for row in rows}}.values(), path)


@cache
def digest(cell: Cell) -> str:
    """Digest of a cell's configuration."""
    return cell.variant.digest


def trained(keys: Sequence[Key]) -> list[Outcome]:
    """Train cells concurrently, a run for each seed, and evaluate them on the way."""
    enable_compile_cache()
    settings = [[*cell.variant.overrides, f"seed={seed}", "num_seeds=1"] for cell, seed in keys]
    population = Population([load_config(overrides) for overrides in settings])
    records: list[list[Record]] = [[] for _ in keys]
    returns: list[list[float]] = [[] for _ in keys]
    try:
        ends = parts_of(population.trainers[0].total_rounds)
        for begin, end in pairwise((0, *ends)):
            if end > begin:
                for known, new in zip(records, population.run(end - begin), strict=True):
                    known += new
                    if len(known) != end:
                        raise RuntimeError(f"{len(known)} rounds were trained, not {end}")
            for known_returns, evaluation in zip(returns, population.evaluate(keys[0][0].episodes), strict=True):
                known_returns += evaluation.per_seed
    finally:
        population.close()
        jax.clear_caches()  # the next place compiles its own programs
    runs = zip(keys, records, returns, strict=True)
    return [outcome(cell, seed, rows, curve, ends) for (cell, seed), rows, curve in runs]


def parts_of(total: int) -> list[int]:
    """Bounds of `POINTS` equal parts of so many rounds, the start included.

    >>> parts_of(30)[:5], parts_of(30)[-1]
    ([0, 2, 3, 4, 6], 30)
    """
    return [round(point * total / POINTS) for point in range(POINTS + 1)]


def outcome(cell: Cell, seed: int, records: Sequence[Record], returns: Sequence[float], ends: Sequence[int]) -> Outcome:
    """Outcome of a run.

    Args:
      cell: the cell.
      seed: the seed.
      records: records of all rounds.
      returns: returns of the evaluations.
      ends: number of rounds before each evaluation.
    """
    last = records[-1]
    dropped = last.get("fragments_dropped", 0)  # independent actors alone drop fragments
    parts = list(pairwise(parts_of(len(records))))
    used = len(records) * max(1, load_config(cell.variant.overrides).actor_shards)
    return Outcome(
        cell,
        seed,
        tuple(ends),
        tuple(returns),
        tuple(records[end - 1]["simulated_seconds"] if end else 0.0 for end in ends),
        last["env_steps"],
        dropped / (dropped + used),
        tuple(_mean(row.get(name) for row in records) for name in (*DATA, *DROPPED)),
        digest(cell),
        tuple(
            tuple(_mean(row.get(name) for row in records[begin:end]) for begin, end in parts) for name in cell.signals
        ),
    )


def _mean(values: Iterable[float | None]) -> float:
    """Mean of the known values; NaN if there is none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan


def read(path: Path, kind: Any) -> Mapping[Key, Outcome]:
    """Outcomes of cells of a kind in a file, read again when the file has changed; empty if there is no file."""
    if not path.is_file():
        return {}
    about = path.stat()
    return _read(path, kind, about.st_ino, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=8)
def _read(path: Path, kind: type[Cell], *_version: int) -> Mapping[Key, Outcome]:
    return MappingProxyType({(row.cell, row.seed): row for row in read_rows(path, partial(_outcome, kind))})


def _outcome(kind: type[Cell], row: dict[str, str]) -> Outcome:
    cell = kind(row["question"], row["task"], row["method"], int(row["level"]), row["rate"])
    rounds = tuple(map(int, row["rounds"].split()))
    returns, seconds = _numbers(row["returns"]), _numbers(row["seconds"])
    if not len(rounds) == len(returns) == len(seconds):
        raise ValueError(f"it has {len(returns)} returns and {len(seconds)} seconds of {len(rounds)} evaluations")
    data = tuple(float(row[name]) for name in (*DATA, *DROPPED))
    signals = tuple(_numbers(row[name]) for name in cell.signals)
    rolled, dropped = float(row["rolled"]), float(row["dropped"])
    return Outcome(cell, int(row["seed"]), rounds, returns, seconds, rolled, dropped, data, row["config"], signals)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


def write(rows: Iterable[Outcome], path: Path) -> None:
    """Replace the file atomically; equal outcomes give equal bytes."""
    rows = sorted(rows, key=lambda row: (row.cell, row.seed))
    signals = rows[0].cell.signals if rows else ()
    of_evaluations = ("rounds", "returns", "seconds")
    header = [*Cell._fields, "seed", *of_evaluations, "rolled", "dropped", *DATA, *DROPPED, "config", *signals]

    def cells(row: Outcome) -> list[Any]:
        curves = [" ".join(f"{value:.5g}" for value in curve) for curve in (row.returns, row.seconds)]
        means = [" ".join(f"{value:.4g}" for value in signal) for signal in row.signals]
        numbers = [f"{value:.5g}" for value in (row.rolled, row.dropped, *row.data)]
        return [*row.cell, row.seed, " ".join(map(str, row.rounds)), *curves, *numbers, row.config, *means]

    write_packed(path, header, map(cells, rows))
