"""Run directories as reports read them: one run, and runs grouped into replicates of one configuration."""

from __future__ import annotations

import io
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from stellaris_jax.config import inputs
from stellaris_jax.config.schema import ConfigError, flatten
from stellaris_jax.config.stored import refuse_aliases
from stellaris_jax.report.statistics import Curve
from stellaris_jax.report.telemetry.jsonl import Record, complain, stream_records


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


def read_run(path: Path, note: Callable[[str], None] = complain, last: int | None = None) -> Run:
    """Reads a run directory.

    Missing and damaged files leave their part empty, so that a run that failed can be listed; `note` is told of damaged
    ones, and of those that are larger than what is read. Of a run that is over but has no result, the summary is left
    out.

    Args:
      path: the directory.
      note: told of what is left out.
      last: as many rounds and evaluations are kept, the last ones; all by default.
    """
    rounds, evaluations = (list(found) for found in _records(path / "metrics.jsonl", note, last))
    summary = _mapping(path / "summary.json", inputs.DOCUMENT, json.loads, note)
    return Run(
        path=path,
        config=flatten(_mapping(path / "config.yaml", inputs.CONFIGURATION, _yaml, note)),
        summary=None if not summary or summary.get("failure") else summary,
        failure=str(summary["failure"]) if summary.get("failure") else None,
        rounds=rounds,
        evaluations=evaluations,
    )


def _records(path: Path, note: Callable[[str], None], last: int | None) -> Iterable[Iterable[Record]]:
    """The rounds and the evaluations in a metrics file; none where it is missing or cannot be read."""
    found: dict[str, deque[Record]] = {kind: deque(maxlen=last) for kind in ("round", "evaluation")}
    try:
        for record in stream_records(path, note) if path.exists() else ():
            found[record["kind"]].append(record)
    except ConfigError as error:
        note(f"{str(error).rstrip('.')}, and is left out")
        return (), ()
    return found.values()


def _yaml(text: str) -> Any:
    refuse_aliases(text)
    return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))


def _mapping(path: Path, limit: int, parse: Callable[[str], Any], note: Callable[[str], None]) -> dict[str, Any]:
    """The mapping that a file of at most `limit` bytes holds; an empty one if it is missing or damaged."""
    if not path.exists():
        return {}
    told = "is damaged and left out"
    try:
        value = parse(inputs.read_text(path, limit))
    except OSError as error:
        value, told = error, f"cannot be read: {inputs.reason(error)}, and is left out"
    except (ValueError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        value = error
    if isinstance(value, dict):
        return value
    note(f"{path} {told}")
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
