"""Run directories as reports read them: one run, and runs grouped into replicates of one configuration."""

from __future__ import annotations

import io
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from stellaris_jax.base import inputs
from stellaris_jax.base.registry import register
from stellaris_jax.base.statistics import Curve
from stellaris_jax.config.old_options import migrated
from stellaris_jax.config.optioned import completed
from stellaris_jax.config.options import PLACES
from stellaris_jax.config.schema import flatten, plain
from stellaris_jax.config.stored import refuse_aliases
from stellaris_jax.config.tree import Config
from stellaris_jax.telemetry.format import value_text
from stellaris_jax.telemetry.integrity import Digests, has_identity, has_settings_digest, summary_digests
from stellaris_jax.telemetry.jsonl import Log, read_log, warn_on_stderr

SUMMARY = "summary.json"
LEARNED = "learned_steps"
"""Key of the steps learned from, which the records of independent actors have beside the steps rolled (env_steps)."""


def is_compared(key: str) -> bool:
    """Whether a config key makes two runs different.

    Paths and loggers do not, nor do seeds, which make runs replicates, nor that objects have no options.
    """
    return key not in ("seed", "num_seeds") and not key.startswith("run.") and not key.endswith("_options")


def setting_of(config: dict[str, Any]) -> str:
    """Text that equal settings have in common, whatever their seeds, of a flat configuration."""
    return json.dumps({key: value for key, value in config.items() if is_compared(key)}, default=str)


@dataclass(frozen=True)
class Run:
    """Contents of a run directory.

    Attributes:
      path: the directory.
      config: the flat configuration (`system.rule`); empty if it cannot be read.
      summary: figures of a run with a result, as they were written; None if they are missing, damaged, or of another
        configuration.
      rounds: intact records of rounds.
      evaluations: intact records of evaluations.
      failure: reason why a finished run has no result.
      damage: a sentence for each damaged or missing file.
      curve: whether `rounds` and `evaluations` are complete. If not, nothing is computed from them, and the final
        return is the summary's.
      foreign: whether the metrics belong to another configuration.
    """

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any] | None
    rounds: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    failure: str | None = None
    damage: tuple[str, ...] = ()
    curve: bool = True
    foreign: bool = False

    @cached_property
    def settings(self) -> dict[str, Any]:
        """`config` with defaults for keys that the run's version lacked, and without empty mappings of options.

        Runs are compared by these.
        """
        values = _with_delay_options(_defaults() | self.config) if self.config else {}
        return {key: value for key, value in values.items() if value != {}}

    @property
    def incomplete(self) -> bool:
        """Whether the result, or the failure, is lost: files are missing or damaged."""
        return self.summary is None and self.failure is None and bool(self.damage)


@dataclass
class Group:
    """Runs of one configuration, apart from the seed.

    Attributes:
      values: keys, with values, that distinguish the group from other groups.
      runs: the runs.
    """

    values: dict[str, Any]
    runs: list[Run] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Name for legends: `stellaris, decay=0.9`."""
        first = self.runs[0]
        return settings_text(self.values) or str(first.config.get("system.name", first.path.name))


@cache
def _defaults() -> dict[str, Any]:
    return flatten(plain(Config()))


def _with_delay_options(config: dict[str, Any]) -> dict[str, Any]:
    """Flat configuration with all options of delays, since earlier versions stored those of `delays.loader` as given.

    Delays of plug-ins keep the options that they have: reading a run imports no plug-in.
    """
    for place in PLACES:
        if place.kind is not register.delay or not isinstance(name := config.get(place.key), str):
            continue
        thing = register.delay.get(name)
        if thing is not None and thing.__module__.startswith("stellaris_jax."):
            prefix = f"{place.options}."
            given = {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
            config = {key: value for key, value in config.items() if not key.startswith(prefix)}
            config |= {prefix + option: plain(value) for option, value in completed(thing, given).items()}
    return config


def read_run(path: Path, note: Callable[[str], None] = warn_on_stderr, last: int | None = None) -> Run:
    """Read a run directory.

    Missing and damaged files leave their part empty, so that a failed run can be listed. The summary is left out if it
    belongs to a run without a result or to another configuration, or if it contradicts the metrics.

    Args:
      path: the directory.
      note: receives a sentence about each damaged or omitted part.
      last: number of last rounds, and of last evaluations, to keep; all by default.
    """
    damage: list[str] = []
    config = flatten(migrated(_mapping(path / "config.yaml", inputs.CONFIGURATION, _yaml, damage)))
    document = _mapping(path / SUMMARY, inputs.DOCUMENT, json.loads, damage)
    log = _log(path / "metrics.jsonl", last, damage)
    rounds = [row for row in log.rows if row["kind"] == "round"]
    evaluations = [row for row in log.rows if row["kind"] == "evaluation"]
    curve = not (log.damage or log.gap)
    foreign = bool(config and log.owner.strip("0")) and not has_identity(config, log.owner)
    if foreign:
        damage.append(f"{path / 'metrics.jsonl'} belongs to another configuration than {path / 'config.yaml'}")
        curve = False
    digests = summary_digests(document)
    if digests is None:
        damage.append(f"{path / 'summary.json'} is damaged and left out")
        document = {}
    elif config and digests.settings and not has_settings_digest(config, digests.settings):
        damage.append(
            f"{path / SUMMARY} belongs to other settings than {path / 'config.yaml'}: the run was taken up again and "
            "is not over, or a file was changed"
        )
        document = {}
    elif contradiction := _contradiction(document, digests, log, evaluations):
        damage.append(f"{path / 'metrics.jsonl'} {contradiction}")
        curve = False
        if not digests.metrics and evaluations:  # either of the two may be wrong
            document = {}
    if not document and not damage and _is_over(path, config, log, evaluations):
        damage.append(f"{path} has trained to its end, but there is no {SUMMARY}")
    for message in damage:
        note(message)
    failure = document.get("failure")
    return Run(
        path=path,
        config=config,
        summary=None if not document or failure else document,
        failure=str(failure) if failure else None,
        rounds=rounds,
        evaluations=evaluations,
        damage=tuple(damage),
        curve=curve,
        foreign=foreign,
    )


def planned_evaluations(rounds: int, points: int) -> list[int]:
    """Rounds after which a run is evaluated: so many points, evenly spread, the last round among them."""
    return sorted({math.ceil(rounds * i / points) for i in range(1, points + 1)})


def _is_over(path: Path, config: dict[str, Any], log: Log, evaluations: list[dict[str, Any]]) -> bool:
    """Whether a run without a summary was trained to its end, by its last round, checkpoint, or evaluation."""
    if evaluations and evaluations[-1].get("over") is True and log.rounds <= evaluations[-1]["round"]:
        return True
    sizes = [config.get(key) for key in ("total_steps", "env.num_envs", "algorithm.rollout_length")]
    numbers = [size for size in sizes if isinstance(size, int) and size > 0]
    if len(numbers) < len(sizes):
        return False
    total, envs, length = numbers
    last = -(-total // (envs * length))
    trained = max((row["round"] for row in log.rows), default=0)
    return trained >= last or os.path.isdir(path / "checkpoints" / str(last))


def _contradiction(summary: dict[str, Any], digests: Digests, log: Log, evaluations: list[dict[str, Any]]) -> str:
    """Contradiction between metrics and a summary; "" if there is none, or damage is known already."""
    if not summary or log.damage:
        return ""
    if digests.metrics:
        return (
            "" if digests.metrics == log.digest else "is not as the run left it: records are missing, or were changed"
        )
    last = summary.get("rounds")
    if not isinstance(last, int):
        return ""  # the number of rounds is unknown
    if log.rounds != last:
        return f"does not have the {last} rounds of {SUMMARY}"
    returns = summary.get("eval_return_per_seed")
    if evaluations and evaluations[-1]["round"] == last and returns is not None:
        same = evaluations[-1]["per_seed"]["eval_return_mean"] == returns
        return "" if same else f"has other returns than {SUMMARY}"
    return ""


def _log(path: Path, last: int | None, damage: list[str]) -> Log:
    """Metrics as far as they can be read; adds sentences about damage to `damage`."""
    try:
        log = read_log(path, last)
    except FileNotFoundError:
        return Log([])
    except OSError as error:
        log = Log([], f"{path} cannot be read: {inputs.reason(error)}, and is left out")
    if log.damage:
        damage.append(log.damage)
    return log


def _yaml(text: str) -> Any:
    refuse_aliases(text)
    value = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))
    json.dumps(value)  # raises for values, such as bytes, that no configuration has
    return value


def _mapping(path: Path, limit: int, parse: Callable[[str], Any], damage: list[str]) -> dict[str, Any]:
    """Mapping in a file of at most `limit` bytes; empty if the file is missing, or damaged (added to `damage`)."""
    problem = "is damaged and left out"
    try:
        value = parse(inputs.read_text(path, limit))
    except FileNotFoundError:
        return {}
    except OSError as error:
        value, problem = error, f"cannot be read: {inputs.reason(error)}, and is left out"
    except Exception as error:  # parsers raise many kinds of errors for foreign files
        value = error
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    damage.append(f"{path} {problem}")
    return {}


def group_replicates(runs: Sequence[Run]) -> list[Group]:
    """Groups of runs of equal configuration, in order of first appearance. Runs without a configuration are omitted."""
    runs = [run for run in runs if run.config]
    keys = differing_keys([run.settings for run in runs])
    groups: dict[str, Group] = {}
    for run in runs:
        values = {key: run.settings.get(key) for key in keys}
        groups.setdefault(json.dumps(values), Group(values)).runs.append(run)
    return list(groups.values())


def short(key: str) -> str:
    """Config key as a heading: `system` for `system.name`, `decay` for `system.decay`."""
    return key.removesuffix(".name").rpartition(".")[2]


def short_names(keys: Collection[str]) -> dict[str, str]:
    """Names of config keys, as short as they can be told apart.

    >>> short_names(["system.name", "system.seconds", "delays.learner.seconds"])
    {'system.name': 'system', 'system.seconds': 'system.seconds', 'delays.learner.seconds': 'delays.learner.seconds'}
    """
    names = Counter(map(short, keys))
    return {key: short(key) if names[short(key)] == 1 else key for key in keys}


def settings_text(values: Mapping[str, Any]) -> str:
    """Settings as a label: `stellaris, decay=0.9`; names of groups have no key."""
    names = short_names(values)
    return ", ".join(
        str(value) if key.endswith(".name") else f"{names[key]}={value_text(value)}" for key, value in values.items()
    )


def differing_keys(configs: Sequence[dict[str, Any]]) -> list[str]:
    """Keys in which flat configs differ, names before others.

    Keys whose values follow from the names in every config are left out, such as `system.rule` from `system.name`, or a
    tuned learning rate from `system.name` and `env.name`.
    """

    def distinct(columns: list[str]) -> int:
        return len({json.dumps([config.get(column) for column in columns]) for config in configs})

    keys = list(dict.fromkeys(key for config in configs for key in config if is_compared(key)))
    keys = [key for key in keys if distinct([key]) > 1]
    names = [key for key in keys if key.endswith(".name")]
    return names + [key for key in keys if distinct(names) < distinct([*names, key])]


def seed_curves(run: Run, axis: str) -> list[Curve]:
    """Return of every seed of a run against `axis`, a clock of the records such as env_steps or cost_usd.

    Returns are evaluated, or of training episodes if the run has no evaluations. Points without a value are left out,
    and so are seeds without points.
    """
    rows, key = (run.evaluations, "eval_return_mean") if run.evaluations else (run.rounds, "train_return")
    curves = []
    for seed in range(len(rows[0]["per_seed"][key]) if rows else 0):
        points = [(at_seed(row, axis, seed), row["per_seed"][key][seed]) for row in rows]
        present = np.array([point for point in points if None not in point], dtype=float)
        if len(present):
            curves.append((present[:, 0], present[:, 1]))
    return curves


def at_seed(row: dict[str, Any], axis: str, seed: int) -> Any:
    """Value of a seed on an axis; runs of earlier versions have only the mean over seeds."""
    axis = recorded_axis(row, axis)
    per_seed = row["per_seed"].get(axis)
    return row.get(axis) if per_seed is None else per_seed[seed]


def recorded_axis(row: dict[str, Any], axis: str) -> str:
    """Key of an axis in a record: steps learned from are all steps rolled, unless actors are independent.

    Pipelined actors are a batch ahead, which is counted.
    """
    return "env_steps" if axis == LEARNED and row.get(LEARNED) is None else axis


def counts_learned(runs: Iterable[Run]) -> bool:
    """Whether a run tells steps learned from apart from steps rolled."""
    return any(row.get(LEARNED) is not None for run in runs for row in (*run.evaluations[:1], *run.rounds[:1]))
