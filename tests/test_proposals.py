"""Searches that are killed and resumed: the same settings are proposed, and the same trials end early."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import REPOSITORY
from rich.console import Console
from training import steps, tiny

from stellaris_jax import Config
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.execute.run import train_within
from stellaris_jax.runs.run_dir import run_directory
from stellaris_jax.runs.signals import Signals
from stellaris_jax.telemetry.progress import make_display

optuna = pytest.importorskip("optuna")
from stellaris_jax.many.proposals import Halving, Sampler  # noqa: E402

TRIALS = 14
"""Trials of a study: TPE goes by results from the eleventh on."""


def suggest(trial: Any) -> dict[str, Any]:
    """A setting for a trial."""
    return {
        "rate": trial.suggest_float("rate", 1e-4, 1e-1, log=True),
        "epochs": trial.suggest_int("epochs", 1, 8),
        "activation": trial.suggest_categorical("activation", ["tanh", "relu"]),
    }


def study_of(storage: Any, seed: int = 3) -> Any:
    """The study of a storage, as a process that has just begun opens it."""
    return optuna.create_study(
        storage=storage, sampler=Sampler(seed), study_name="s", direction="maximize", load_if_exists=True
    )


def settings(resumed: bool, seed: int = 3) -> list[dict[str, Any]]:
    """Settings of a study's trials, each begun and gone on with by processes of their own where it is resumed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage, found = optuna.storages.InMemoryStorage(), []
    study = study_of(storage, seed)
    for number in range(TRIALS):
        trial = study.ask()
        if resumed:
            trial.suggest_float("rate", 1e-4, 1e-1, log=True)
            study = study_of(storage, seed)
            trial = optuna.Trial(study, study.trials[number]._trial_id)
        found.append(suggest(trial))
        study.tell(trial, -((np.log10(found[-1]["rate"]) + 2.5) ** 2) + found[-1]["epochs"])
    return found


def test_proposals_are_the_same_after_every_resumption() -> None:
    whole = settings(resumed=False)
    assert whole == settings(resumed=True)
    assert len({one["rate"] for one in whole}) == TRIALS, "nothing is proposed twice"
    assert whole[0] != settings(resumed=False, seed=4)[0]


def test_proposals_go_by_results() -> None:
    best = [one["epochs"] for one in settings(resumed=False)[10:]]
    assert min(best) > 6


@pytest.mark.parametrize(("reduction", "points", "evaluations"), [(3, 3, 3), (2, 8, 8), (3, 20, 12), (4, 40, 40)])
def test_halving_is_that_of_optuna(reduction: int, points: int, evaluations: int) -> None:
    """Trials follow each other, and some evaluations of some trials are missing."""
    draw = np.random.default_rng(0)
    first = max(1, points // reduction**2)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=reduction)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    halving = Halving(reduction, evaluations, points)
    others: list[dict[int, float]] = []
    ended = 0
    for _ in range(40):
        trial, own, quality = study.ask(), {}, draw.normal()
        for number in range(1, evaluations + 1):
            if draw.random() < 0.1:
                continue
            own[number] = float(quality + draw.normal())
            trial.report(own[number], number)
            if number < evaluations:
                over = trial.should_prune()
                assert over != halving.goes_on(own, others)
                ended += over
                if over:
                    break
        others.append(own)
        study.tell(trial, 0.0)
    assert 10 < ended < 40


def test_without_halving_all_go_on() -> None:
    assert Halving(0, 4, 4).rungs == []
    assert Halving(0, 4, 4).goes_on({1: -1.0}, [{1: 5.0}])


# Runs -----------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The end of a process, after which nothing is tidied up."""


def trained(config: Config, programs: ProgramCache, watch: Any) -> dict[str, Any]:
    """Summary of a run that is watched."""
    with ExitStack() as stack:
        run_dir = stack.enter_context(run_directory(config))
        display = stack.enter_context(closing(make_display(Console(), "run", config.rounds, progress=False)))
        signals = stack.enter_context(Signals(display.note, display.leave))
        return train_within(run_dir, config, display, signals, programs, watch=watch)


def test_evaluations_of_a_killed_process_are_watched_again(
    tmp_path: Path, programs: ProgramCache, shared_programs: None
) -> None:
    """The process dies between an evaluation and the decision that it leads to."""
    config = tiny(steps(3), "evaluation.points=3", f"run.dir={tmp_path / 'run'}")
    rounds: list[int] = []

    def watch(record: Any, dies: int = 0, ends: tuple[int, ...] = ()) -> bool:
        rounds.append(record["round"])
        if record["round"] == dies:
            raise Killed
        return record["round"] in ends

    with pytest.raises(Killed):
        trained(config, programs, partial(watch, dies=2))
    resumed = config.replace({"resume": str(tmp_path / "run")})
    with pytest.raises(Killed):
        trained(resumed, programs, partial(watch, dies=2, ends=(1,)))  # it had gone on after the first
    assert rounds == [1, 2, 1, 2]
    summary = trained(resumed, programs, partial(watch, ends=(2,)))
    assert rounds == [1, 2] * 3 and summary["rounds"] == 2 and summary["ended_early"]


def test_killed_searches_end_as_whole_ones(tmp_path: Path) -> None:
    """SIGKILL, before and after every kind of write, of searches whose training is made up."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])}
    program = [sys.executable, str(REPOSITORY / "tests" / "killed_searches.py")]
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tables = json.loads(done.stdout.splitlines()[-1])
    whole = tables.pop("whole")
    assert len(tables) > 10 and {"pruned", "complete"} <= {line.split(",")[1] for line in whole.splitlines()[1:]}
    assert [name for name, table in tables.items() if table != whole] == []
