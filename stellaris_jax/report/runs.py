"""Run directories as reports read them: one run, and runs grouped into replicates of one configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from stellaris_jax.config.schema import flatten
from stellaris_jax.config.stored import refuse_aliases
from stellaris_jax.report.statistics import Curve
from stellaris_jax.report.telemetry.jsonl import complain, read_records


def is_compared(key: str) -> bool:
    """Whether a config key makes two runs different: not where a run lives, who logs it, nor its seed, which makes it
    a replicate."""
    return key != "seed" and not key.startswith("run.")


@dataclass(frozen=True)
class Run:
    """What a run directory holds. `config` is flat (`system.rule`); `summary` is None until there is a result.

    `failure`: why there will be none, of a run that is over.
    """

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any] | None
    rounds: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    failure: str | None = None


@dataclass
class Group:
    """Runs of one configuration, apart from the seed. `values` are the keys that set it apart from other groups."""

    values: dict[str, Any]
    runs: list[Run] = field(default_factory=list)

    @property
    def label(self) -> str:
        """A name for legends: `stellaris, decay=0.9`."""
        parts = [str(value) if key.endswith(".name") else f"{short(key)}={value}" for key, value in self.values.items()]
        first = self.runs[0]
        return ", ".join(parts) or str(first.config.get("system.name", first.path.name))


def read_run(path: Path, note: Callable[[str], None] = complain) -> Run:
    """Reads a run directory.

    Missing and damaged files leave their part empty, so that a run that failed can be listed; `note` is told of damaged
    ones. Of a run that is over but has no result, the summary is left out.
    """
    metrics = path / "metrics.jsonl"
    records = read_records(metrics, note) if metrics.exists() else []
    summary = _mapping(path / "summary.json", json.loads, note)
    return Run(
        path=path,
        config=flatten(_mapping(path / "config.yaml", _yaml, note)),
        summary=None if not summary or summary.get("failure") else summary,
        failure=str(summary["failure"]) if summary.get("failure") else None,
        rounds=[record for record in records if record["kind"] == "round"],
        evaluations=[record for record in records if record["kind"] == "evaluation"],
    )


def _yaml(text: str) -> Any:
    refuse_aliases(text)
    return OmegaConf.to_container(OmegaConf.create(text))


def _mapping(path: Path, parse: Callable[[str], Any], note: Callable[[str], None]) -> dict[str, Any]:
    """The mapping a file holds; an empty one if it is missing or damaged."""
    if not path.exists():
        return {}
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        value = error
    if isinstance(value, dict):
        return value
    note(f"{path} is damaged and left out")
    return {}


def group_replicates(runs: Sequence[Run]) -> list[Group]:
    """Groups runs of equal configuration, in order of first appearance. Runs without a configuration are left out."""
    runs = [run for run in runs if run.config]
    keys = differing_keys([run.config for run in runs])
    groups: dict[str, Group] = {}
    for run in runs:
        values = {key: run.config.get(key) for key in keys}
        groups.setdefault(json.dumps(values), Group(values)).runs.append(run)
    return list(groups.values())


def short(key: str) -> str:
    """A config key as a heading: `system` for `system.name`, `decay` for `system.decay`."""
    return key.removesuffix(".name").rpartition(".")[2]


def differing_keys(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The keys in which flat configs differ, names before others.

    A value that follows from the names in every config (`system.rule` from `system.name`, a tuned learning rate from
    `system.name` and `env.name`) tells nothing new, and its key is left out.
    """

    def distinct(columns: list[str]) -> int:
        return len({json.dumps([config.get(column) for column in columns]) for config in configs})

    keys = list(dict.fromkeys(key for config in configs for key in config if is_compared(key)))
    keys = [key for key in keys if distinct([key]) > 1]
    names = [key for key in keys if key.endswith(".name")]
    return names + [key for key in keys if distinct(names) < distinct([*names, key])]


def seed_curves(run: Run, axis: str) -> list[Curve]:
    """The return of every seed of a run against `axis`: env_steps, simulated_seconds or cost_usd.

    Evaluated returns, or the returns of training episodes where the run has no evaluations. Points without a value
    are left out, and so are seeds without points.
    """
    records, key = (run.evaluations, "eval_return_mean") if run.evaluations else (run.rounds, "train_return")
    curves = []
    for seed in range(len(records[0]["per_seed"][key]) if records else 0):
        points = [(_at(record, axis, seed), record["per_seed"][key][seed]) for record in records]
        present = np.array([point for point in points if None not in point], dtype=float)
        if len(present):
            curves.append((present[:, 0], present[:, 1]))
    return curves


def _at(record: dict[str, Any], axis: str, seed: int) -> Any:
    """Where a seed stands on an axis; runs of earlier versions have its env steps as the mean over seeds only."""
    per_seed = record["per_seed"].get(axis)
    return record.get(axis) if per_seed is None else per_seed[seed]
