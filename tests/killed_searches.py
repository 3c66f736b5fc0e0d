"""Program that kills searches: `python killed_searches.py [PLACES]` prints a JSON object of tables of their trials.

The search "whole" is not interrupted. Every other one is ended by SIGKILL at an event, whose name is its key, and then
resumed. Runs are made up: the return is a function of the setting and of the evaluation's number. With PLACES searches
are killed at that many events, spread evenly, else once at every kind of event.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from math import log10
from pathlib import Path
from typing import Any

import yaml
from optuna.storages import RDBStorage

from stellaris_jax import load_config
from stellaris_jax.config.schema import flatten
from stellaris_jax.config.stored import read_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.many import search_store, tune
from stellaris_jax.many.choose.objective import Goal
from stellaris_jax.telemetry.integrity import run_identity, with_digests
from stellaris_jax.telemetry.jsonl import MetricsLog

SMALL = [
    "env=gymnax/cartpole", "env.num_envs=4", "algorithm.rollout_length=16", "network.hidden=[8]", "total_steps=192",
    "num_seeds=1", "evaluation.points=3", "run.progress=false", "run.loggers=[]",
]  # fmt: skip
SPACE = {
    "algorithm.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
    "algorithm.epochs": {"low": 1, "high": 8},
    "network.activation": ["tanh", "relu"],
}
WRITES = ("_create_new_trial", "_set_trial_param", "set_trial_intermediate_value", "set_trial_state_values")
TRIALS = 13
STARTED = 10
"""Trials that are over before a search is killed: TPE goes by results from then on."""


class Events:
    """Names of the events so far; the process is killed at the one whose position is `last`."""

    def __init__(self, last: int | None):
        self.names: list[str] = []
        self.last = last

    def happen(self, name: str) -> None:
        """Note an event, or die of it."""
        if len(self.names) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.names.append(name)


def observed(call: Callable[..., Any], name: str, events: Events) -> Callable[..., Any]:
    """A write to the database between two events."""

    def write(*arguments: Any, **options: Any) -> Any:
        events.happen(f"before {name}")
        result = call(*arguments, **options)
        events.happen(f"after {name}")
        return result

    return write


def trainer(events: Events) -> Callable[..., dict[str, Any]]:
    """Training as far as a search notices it; evaluations of a run that is resumed are watched again."""

    def train(run_dir: Path, config: Config, *rest: Any, watch: Callable[[Any], bool]) -> dict[str, Any]:
        events.happen("a run is laid out")
        flat = flatten(read_yaml(run_dir / "config.yaml"))
        log = MetricsLog(run_dir / "metrics.jsonl", resume_round=config.rounds, owner=run_identity(flat))
        record, ended = {}, False
        for record in log.evaluations:
            ended = watch(record)
        first = len(log.evaluations) + 1
        for number in range(first, config.rounds + 1):
            if ended:
                break
            best = -((log10(config.algorithm.learning_rate) + 2.5) ** 2) - (config.algorithm.epochs - 5) ** 2 / 9
            value = number * (best + (config.network.activation == "relu")) + number**2
            steps = {"round": number, "env_steps": 64 * number}
            record = {**steps, "eval_return_mean": value, "per_seed": {"eval_return_mean": [value]}}
            log.write([{"kind": "round", **steps, "train_return": value, "per_seed": {"train_return": [value]}}])
            log.write([{"kind": "evaluation", **record}])
            events.happen("an evaluation is written")
            ended = watch(record)
        summary = {key: record[key] for key in ("eval_return_mean",)}
        summary |= {"rounds": record["round"], "ended_early": ended and record["round"] < config.rounds}
        (run_dir / "summary.json").write_text(json.dumps(with_digests({**summary, "failure": None}, log.digest, flat)))
        events.happen("a summary is written")
        return summary

    return train


def search(directory: Path, last: int | None, trials: int) -> list[str]:
    """Begin a search of so many trials, or resume it with them; the names of its events."""
    events = Events(last)
    tune.max_concurrent_runs = lambda configs: 2
    tune.train_within = trainer(events)
    for name in WRITES:
        setattr(RDBStorage, name, observed(getattr(RDBStorage, name), name, events))
    if not (directory / "tune.yaml").is_file():
        space = directory.parent / "space.yaml"
        space.write_text(yaml.safe_dump(SPACE))
        search_store.begin(directory, load_config(SMALL), space, search_store.Search(trials, 3, seed=7))
    study = tune.tune(directory, trials, parallel=1)
    (directory / "trials.csv").write_text(tune._table(study, Goal("return")))
    return events.names


def apart(directory: Path, last: int | None = None, trials: int = TRIALS) -> list[str]:
    """A search in a process of its own, which may be killed; the names of its events where it was not."""
    notes = directory.with_suffix(".json")
    child = os.fork()
    if not child:
        notes.write_text(json.dumps(search(directory, last, trials)))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == (0 if last is None else signal.SIGKILL), status
    return json.loads(notes.read_text()) if last is None else []


def places(names: Sequence[str], count: int | None) -> list[int]:
    """Positions at which to kill: that many, or the first one of every name."""
    if count is not None:
        return [round(index * (len(names) - 1) / (count - 1)) for index in range(count)]
    return sorted(names.index(name) for name in set(names))


def main() -> None:
    """Run all searches."""
    start, whole = Path("start"), Path("whole")
    apart(whole)
    tables = {"whole": (whole / "trials.csv").read_text()}
    apart(start, trials=STARTED)
    shutil.copytree(start, "resumed")
    names = apart(Path("resumed"))
    tables["resumed"] = Path("resumed/trials.csv").read_text()
    for place in places(names, int(sys.argv[1]) if len(sys.argv) > 1 else None):
        directory = Path(f"killed-{place}")
        shutil.copytree(start, directory)
        apart(directory, place)
        apart(directory)
        tables[f"{place}: {names[place]}"] = (directory / "trials.csv").read_text()
    print(json.dumps(tables))


if __name__ == "__main__":
    main()
