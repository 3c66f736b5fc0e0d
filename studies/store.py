"""Stored results of training runs, in one small file of the results; stored runs are never trained again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.execute.loading import load_config
from stellaris_jax.report.runs import Run
from stellaris_jax.telemetry.format import plural
from stellaris_jax.timeline.scaling import is_scaled
from studies.builds import current_build
from studies.files import locked, read_rows
from studies.training import Variant, jobs, runs

LAST = 0.2
"""Share of a run's last evaluations whose mean is its final return, since a single evaluation is noisy."""


@dataclass(frozen=True)
class Learned:
    """Evaluations of one seed of a variant.

    Attributes:
      variant: name of the variant.
      seed: the seed.
      rounds: rounds of the evaluations `[points]`.
      returns: evaluated returns `[points]`.
      kl: KL divergence of the round between the actors' policy and the learners', mean over the seeds of the run
        `[points]`.
      actors: actors of every round `[rounds]`, if the run scales them; else empty.
      config: digest of the configuration.
    """

    variant: str
    seed: int
    rounds: tuple[int, ...]
    returns: tuple[float, ...]
    kl: tuple[float, ...]
    actors: tuple[int, ...] = ()
    config: str = ""

    @property
    def final_return(self) -> float:
        return final(self.returns)


def final(returns: Sequence[float]) -> float:
    """Mean of the last evaluations of a curve."""
    return float(np.mean(returns[-max(1, round(LAST * len(returns))) :]))


def learned(variants: Iterable[Variant], seeds: range, root: Path, store: Path) -> dict[Variant, list[Learned]]:
    """Results of variants with these seeds; missing ones are trained below `root` and added to the file `store`.

    Args:
      variants: variants to train.
      seeds: seeds of every variant.
      root: directory of the runs.
      store: file of stored results.

    Raises:
      ConfigError: the file has other settings of a variant, or new runs must not be mixed with a published figure.
      RunError: as `runs` does.
    """
    variants = list(dict.fromkeys(variants))
    known = _read(store)
    requested = [(variant.name, seed) for variant in variants for seed in seeds]
    absent = [key for key in requested if key not in known]
    current_build().check_training(len(absent))
    untrained = [variant for variant in variants if any((variant.name, seed) in absent for seed in seeds)]
    if untrained:
        print(f"to train: {_amount(untrained, absent)}", flush=True)
    for variant in variants:
        for seed in seeds:
            if (variant.name, seed) in known and known[variant.name, seed].config != variant.digest:
                raise ConfigError(
                    f"{store} has {variant.name} with other settings: keep them apart with --results DIR, or "
                    "remove its lines to train it anew."
                )
        missing = jobs(variant, [seed for seed in seeds if (variant.name, seed) not in known])
        if missing:
            print(f"training {untrained.index(variant) + 1} of {len(untrained)}: {variant.name}", flush=True)
            finished = runs(missing, root)
            known = _add(store, [row for run in finished for row in _of_run(variant, run)])
    current_build().count(requested, absent)
    return {variant: [known[variant.name, seed] for seed in seeds] for variant in variants}


def _amount(variants: Sequence[Variant], absent: Sequence[tuple[str, int]]) -> str:
    """Amount of training: settings, runs of one seed, and env steps of each."""
    steps = sorted({load_config(variant.overrides).total_steps for variant in variants})
    each = " to ".join(f"{count:,}" for count in (*steps[:1], *steps[1:][-1:]))
    return f"{plural(len(variants), 'setting')}, {plural(len(absent), 'run')} of one seed, {each} env steps each"


def _of_run(variant: Variant, run: Run) -> list[Learned]:
    rounds = tuple(row["round"] for row in run.evaluations)
    divergence = {row["round"]: math.nan if row["kl"] is None else row["kl"] for row in run.rounds}
    kl = tuple(divergence[round_] for round_ in rounds)
    returns = zip(*(row["per_seed"]["eval_return_mean"] for row in run.evaluations), strict=True)
    seeds = range(run.config["seed"], run.config["seed"] + run.config["num_seeds"])
    actors: list[tuple[int, ...]] = [()] * len(seeds)
    if is_scaled(load_config(variant.overrides)):
        actors = list(zip(*(row["per_seed"]["actors"] for row in run.rounds), strict=True))
    rows = zip(seeds, returns, actors, strict=True)
    return [Learned(variant.name, seed, rounds, curve, kl, widths, variant.digest) for seed, curve, widths in rows]


def _read(store: Path) -> dict[tuple[str, int], Learned]:
    if not store.is_file():
        return {}
    return {(row.variant, row.seed): row for row in read_rows(store, _learned)}


def _learned(row: dict[str, str]) -> Learned:
    rounds, returns, kl = (_numbers(float, row[name]) for name in ("rounds", "returns", "kl"))
    if not len(rounds) == len(returns) == len(kl):
        raise ValueError(f"it has {len(rounds)} rounds, {len(returns)} returns and {len(kl)} divergences")
    config = row.get("config") or ""  # files of earlier versions have none
    return Learned(
        row["variant"],
        int(row["seed"]),
        tuple(map(int, rounds)),
        returns,
        kl,
        _numbers(int, row.get("actors") or ""),
        config,
    )


def _numbers(kind: Callable[[str], Any], text: str) -> tuple[Any, ...]:
    return tuple(map(kind, text.split()))


def _add(store: Path, new: Iterable[Learned]) -> dict[tuple[str, int], Learned]:
    """Add rows and return all rows of the file; other processes may add rows at the same time."""
    with locked(store):
        rows = _read(store) | {(row.variant, row.seed): row for row in new}
        lines = ["variant,seed,config,rounds,returns,kl,actors"]
        for _, row in sorted(rows.items()):
            curves = (row.rounds, row.returns, row.kl, row.actors)
            numbers = [" ".join(f"{value:.6g}" for value in curve) for curve in curves]
            lines.append(",".join([row.variant, str(row.seed), row.config, *numbers]))
        write_atomically(store, "\n".join(lines) + "\n")
        return _read(store)
