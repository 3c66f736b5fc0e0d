"""Searches: what is proposed lies in the space, what was stopped goes on, what does not promise enough ends early."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import call, refusal, start

from stellaris_jax import Config, load_config
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.many.space import Space
from stellaris_jax.report.search import Trial, history_figure, importance_figure

optuna = pytest.importorskip("optuna")
from stellaris_jax.many import search_store, tune  # noqa: E402
from stellaris_jax.many.choose.objective import Goal  # noqa: E402
from stellaris_jax.many.proposals import Halving  # noqa: E402
from stellaris_jax.many.score import score, shown  # noqa: E402

SMALL = [
    "env=gymnax/cartpole", "env.num_envs=4", "algorithm.rollout_length=16", "network.hidden=[8]", "total_steps=192",
    "algorithm.anneal=false", "evaluation.points=3", "evaluation.episodes=4", "run.progress=false", "run.loggers=[]",
]  # fmt: skip
RATES = {"algorithm.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def space(tree: Any, name: str = "space.yaml") -> Path:
    path = Path(name)
    path.write_text(yaml.safe_dump(tree))
    return path


def rows(directory: str) -> list[dict[str, str]]:
    with open(Path(directory) / "trials.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# Spaces ---------------------------------------------------------------------------------------------------------------


def test_what_is_proposed_lies_in_the_space() -> None:
    config = load_config(["system=ssp"])
    tree = {
        **RATES, "algorithm": {"epochs": {"low": 1, "high": 3}, "options": {"clip": {"low": 0.1, "high": 0.3}}},
        "network.activation": ["tanh", "relu"], "system.rule_options.s": {"low": 1, "high": 4},
    }  # fmt: skip
    read = Space.read(space(tree), config)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    found = [read.suggest(study.ask()) for _ in range(50)]
    assert {values["algorithm.epochs"] for values in found} == {1, 2, 3}
    assert {values["system.rule_options.s"] for values in found} == {1, 2, 3, 4}
    assert {values["network.activation"] for values in found} == {"tanh", "relu"}
    rates = [values["algorithm.learning_rate"] for values in found]
    assert 1e-4 <= min(rates) < 1e-3 and 1e-2 < max(rates) <= 1e-1, "magnitudes"
    assert all(0.1 <= values["algorithm.options.clip"] <= 0.3 for values in found)
    for values in found[:3]:
        load_config([*(f"{key}={value}" for key, value in values.items()), "system=ssp"])
    assert read.of(config) is None, "four epochs"
    one = Space.read(space(RATES), config)
    assert one.of(config) == {"algorithm.learning_rate": config.algorithm.learning_rate}


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        ({}, "space.yaml names nothing to search over."),
        ({"algorithm.learning_rat": [1, 2]}, "algorithm.learning_rat is not a config key; did you mean algorithm.l"),
        ({"algorithm.options.clp": [0.1, 0.2]}, "algorithm.options.clp is no option of this configuration; did you"),
        ({"algorithm.gamma": {"low": 0.9, "high": 1.5}}, "algorithm.gamma must be in [0, 1], not 1.5."),
        ({"algorithm.gamma": {"low": 0.9}}, "algorithm.gamma needs two numbers, low and high, not None."),
        ({"algorithm.gamma": {"low": 1.0, "high": 0.9}}, "low of algorithm.gamma, 1.0, must be below high, 0.9."),
        ({"algorithm.gamma": {"low": 0.0, "high": 0.9, "log": True}}, "algorithm.gamma has no logarithm at 0.0."),
        ({"algorithm.gamma": {"low": 0.1, "high": 0.9, "log": 3}}, "log of algorithm.gamma must be true or false"),
        ({"algorithm.gamma": {"low": 0.1, "high": 0.9, "step": 3}}, "algorithm.gamma has step; a range has low, high"),
        ({"algorithm.epochs": {"low": 1.5, "high": 3}}, "algorithm.epochs is an integer, and 1.5 is none."),
        ({"algorithm.gamma": [0.9]}, "algorithm.gamma needs at least two choices."),
        ({"algorithm.gamma": 0.9}, "algorithm.gamma must be a range, as {low: 0.1, high: 10}, or a list, not 0.9."),
        ({"system.rule": {"low": 1, "high": 2}}, "system.rule is no number; list its choices."),
        ({"system.rule": ["async", "asinc"]}, "system.rule must be one of"),
        ({"num_seeds": [1, 2]}, "num_seeds changes nothing of what is learned, or is what trials share."),
    ],
)
def test_spaces_that_are_none(tree: Any, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        Space.read(space(tree), load_config())
    assert told in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["env=gymnax/cartpole"], "--space is missing; it names a .yaml file, or one of learning_rate, ppo."),
        (["--space", "pp"], "--space=pp is neither a .yaml file nor one of learning_rate, ppo; did you mean ppo?"),
        (["--space", "no.yaml"], "--space=no.yaml does not exist."),
        (["--space", "ppo", "--reduction", "1"], "--reduction=1 stops no trial"),
        (["--space", "ppo", "--trials", "0"], "argument --trials: must be an integer of at least 1"),
        (["--resume", "nowhere"], "nowhere holds no search: there is no nowhere/tune.yaml."),
        (["--resume", "x", "--space", "ppo"], "--space cannot change when a search is resumed"),
        (
            ["--resume", "x", "--seed", "0"],
            "--seed cannot change when a search is resumed; --resume accepts --trials, --parallel, --plugin",
        ),
        (["--resume", "x", "--reduction", "0"], "--reduction cannot change"),
        (["--resume", "x", "--config-dir", "y"], "--config-dir cannot change"),
        (["env=gymnax/cartpole", "--resume", "x"], "env=gymnax/cartpole cannot change"),
        (["--space", "ppo", "evaluation.points=0"], "evaluation.points and evaluation.episodes must not be 0"),
        (["env=gymnax/cartpole", "--trials", "3", "evaluation.points=0", "--space", "ppo"], "must not be 0"),
        (
            ["--trials", "3", "env=gymnax/cartpole", "--space", "ppo", "run.dir=x"],
            "resume= and run.dir= belong to single",
        ),
        (["--space", "ppo", "run.dir=x"], "resume= and run.dir= belong to single runs"),
        (["--space", "ppo", "--dir", "full"], "full is not empty; name another directory, or resume"),
        (["--space", "ppo", "seed=4294967292"], "The last fresh seed, seed + 1000 + --fresh-seeds - 1"),
        (["--space", "ppo", "algorithm=impala"], "algorithm.options.clip is no option of this configuration"),
    ],
)
def test_mistakes_cost_nothing(arguments: list[str], told: str) -> None:
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    ended = call("tune.py", *arguments)
    assert ended.returncode == 2 and told in ended.stderr and ended.stderr.count("\n") == 1, ended.stderr


# Searches -------------------------------------------------------------------------------------------------------------


def test_a_search_and_going_on_with_it() -> None:
    path = space({**RATES, "algorithm.minibatches": [2, 3]})
    ended = call("tune.py", *SMALL, "--space", path, "--trials", "4", "--reduction", "0", "--seed", "1", "--dir", "s")
    assert ended.returncode == 0, ended.stderr
    table = rows("s")
    assert [row["trial"] for row in table] == list("0123")
    # 64 samples cannot be cut in three: where that was proposed, the trial has failed, and nothing else.
    states = {row["algorithm.minibatches"]: row["state"] for row in table}
    assert set(states.items()) <= {("2", "complete"), ("3", "fail")} and "2" in states
    assert ("trial" in ended.stderr) == ("3" in states)
    done = [row for row in table if row["state"] == "complete"]
    best = max(done, key=lambda row: float(row["return"]))
    assert yaml.safe_load(Path("s/best.yaml").read_text())["algorithm.learning_rate"] == pytest.approx(
        float(best["algorithm.learning_rate"])
    )
    assert f"trial {best['trial']}: return " in ended.stdout and "algorithm.learning_rate=" in ended.stdout
    stored = {row["trial"]: from_yaml(Path(f"s/{row['trial']}/config.yaml")) for row in done}
    assert all(config.num_seeds == 3 for config in stored.values())
    before = {row["trial"]: Path(f"s/{row['trial']}/summary.json").stat().st_mtime_ns for row in done}
    ended = call("tune.py", "--resume", "s", "--trials", "6")
    assert ended.returncode == 0, ended.stderr
    assert len(rows("s")) == 6 and rows("s")[:4] == table
    assert all(Path(f"s/{name}/summary.json").stat().st_mtime_ns == time for name, time in before.items())
    assert len({row["algorithm.learning_rate"] for row in rows("s")}) == 6, "nothing is proposed twice"
    assert {"history.png", "trials.csv", "best.yaml", "study.db"} <= {path.name for path in Path("s").iterdir()}


def test_the_first_trial_is_what_one_would_have_without() -> None:
    config = load_config([*SMALL, "algorithm.learning_rate=0.02"])
    search_store.begin(Path("s"), config, space(RATES), search_store.Search(trials=1))
    study = tune.tune(Path("s"))
    assert study.trials[0].params == {"algorithm.learning_rate": 0.02}


def test_what_does_not_promise_enough_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Returns are made up: they grow with the rate, so that halving keeps the fastest, of three one."""
    from stellaris_jax.execute.trainer import Trainer

    def record(trainer: Trainer, evaluation: Any) -> dict[str, Any]:
        value = trainer.config.algorithm.learning_rate * trainer.round
        per_seed = {"eval_return_mean": [value]}
        clocks = {"round": trainer.round, "env_steps": 1.0, "wall_seconds": 0.0}
        return {**clocks, "eval_return_mean": value, "per_seed": per_seed}

    monkeypatch.setattr(Trainer, "evaluation_record", record)
    monkeypatch.setattr(tune, "max_concurrent_runs", lambda configs: 1)
    search_store.begin(Path("s"), load_config(SMALL), space(RATES), search_store.Search(trials=9))
    study = tune.tune(Path("s"))
    tune.report(Path("s"), study)
    ended, whole = ([t for t in study.trials if t.state.name == name] for name in ("PRUNED", "COMPLETE"))
    assert len(ended) + len(whole) == 9 and len(ended) >= 4
    assert {len(t.intermediate_values) for t in ended} == {1} and {len(t.intermediate_values) for t in whole} == {3}
    rate = "algorithm.learning_rate"
    assert max(t.params[rate] for t in study.trials) == max(t.params[rate] for t in whole)
    stopped = from_yaml(Path(f"s/{ended[0].number}/config.yaml"))
    assert isinstance(stopped, Config) and stopped.rounds == 3, "it could be gone on with"


@pytest.mark.slow
def test_a_killed_search_goes_on(tmp_path: Path) -> None:
    path = space(RATES)
    job = [*SMALL, "total_steps=2048", "num_seeds=1", "--space", str(path), "--trials", "4", "--reduction", "0"]
    process = start(tmp_path / "s", *job, "--dir", "s", script="tune.py")
    while not any((tmp_path / f"s/{number}/summary.json").is_file() for number in range(4)):
        assert process.poll() is None, process.communicate()[0]
    process.kill()
    process.communicate()
    settings = {p.parent.name: from_yaml(p).algorithm.learning_rate for p in Path("s").glob("[0-9]*/config.yaml")}
    ended = call("tune.py", "--resume", "s")
    assert ended.returncode == 0, ended.stderr
    table = rows("s")
    assert [row["state"] for row in table] == ["complete"] * 4
    found = {row["trial"]: float(row["algorithm.learning_rate"]) for row in table}
    assert all(found[name] == pytest.approx(rate) for name, rate in settings.items()), "what was begun is gone on with"


def test_rungs_are_those_of_a_trial_that_was_never_stopped() -> None:
    """A kill may leave an evaluation without its checkpoint, which is then made again, and metrics may be damaged."""

    def record(number: int) -> dict[str, Any]:
        values = {"eval_return_mean": float(number), "per_seed": {"eval_return_mean": [float(number)]}}
        return {"kind": "evaluation", "round": number, "env_steps": number, **values}

    study = tune.optuna.create_study(direction="maximize")
    trial = study.ask()
    trial.report(2.0, 1)
    pruned = tune._Pruned(trial, planned=[2, 4, 6], halving=Halving(3, 3, 3), directory=Path())
    assert [pruned(record(number)) for number in (4, 6)] == [False, False]
    assert study.trials[0].intermediate_values == {1: 2.0, 2: 4.0, 3: 6.0}


# Targets and fresh seeds ----------------------------------------------------------------------------------------------


def rows_of(*points: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"simulated_seconds": x, "cost_usd": x, "eval_return_mean": y} for x, y in points]


def test_scores_put_the_faster_trial_ahead() -> None:
    goal = Goal("seconds", 10.0)
    slow, fast = rows_of((5, 0), (15, 20)), rows_of((1, 0), (3, 20))
    below, lower = rows_of((1, 9), (2, 8)), rows_of((1, 3), (2, 8.5))
    scores = [score(rows, goal) for rows in (fast, slow, below, lower)]
    assert scores == sorted(scores, reverse=True) and scores[2] == 9.0
    assert shown(scores[0], goal) == "return 10 in 2.00 s" and shown(scores[1], goal) == "return 10 in 10.0 s"
    assert shown(scores[2], goal) == "return 9.00"
    assert score(slow, Goal("return")) == 20.0 and math.isnan(score([], goal))
    assert shown(score(fast, Goal("dollars", 10.0)), Goal("dollars", 10.0)) == "return 10 in $2.00"


def test_a_search_for_seconds_is_judged_on_fresh_seeds() -> None:
    arguments = [*SMALL, "--space", space(RATES), "--trials", "3", "--for", "seconds", "--target", "12"]
    ended = call("tune.py", *arguments, "--fresh-seeds", "2", "--dir", "s")
    assert ended.returncode == 0, ended.stderr
    assert "on 2 fresh seeds: seconds to a return of 12 " in ended.stdout
    best = search_store.open_search(Path("s"))[3].best_trial.number
    judged = [from_yaml(path) for path in sorted(Path(f"s/judged/{best}").glob("*/config.yaml"))]
    assert all((config.seed, config.num_seeds) == (1000, 2) for config in judged) and len(judged) == 2 - (best == 0)
    assert "trial,state,score," in Path("s/trials.csv").read_text()
    again = call("tune.py", "--resume", "s")
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-5:] == ended.stdout.splitlines()[-5:], "nothing is trained again"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--for", "seconds"], "target=None does not go with measure=seconds"),
        (["--target", "3"], "target=3.0 does not go with measure=return"),
        (["--for", "fun"], "argument --for"),
    ],
)
def test_targets_that_do_not_fit(options: list[str], told: str) -> None:
    assert told in refusal("tune.py", *SMALL, "--space", space(RATES), *options)


# Pictures -------------------------------------------------------------------------------------------------------------


def test_pictures_of_a_search() -> None:
    trials = [Trial(0, [1.0, 2.0], True), Trial(1, [0.5], False), Trial(2, [], False), Trial(3, [2.0, 5.0], True)]
    last, course = history_figure(trials).axes
    drawn = {c.get_label(): c.get_offsets().tolist() for c in last.collections}
    assert drawn == {"to its end": [[0, 2], [3, 5]], "stopped early": [[1, 0.5]]}
    (best,) = last.lines
    assert best.get_xydata().tolist() == [[0, 2], [3, 5]] and len(course.lines) == 3
    (axes,) = importance_figure({"a": 0.25, "b": 0.75}, 9).axes
    assert [bar.get_width() for bar in axes.patches] == [0.25, 0.75]
    assert [text.get_text() for text in axes.texts] == ["25 %", "75 %"]
