"""Command `plan`: its figures are those of hand computation and of training, and its errors are those of training."""

from __future__ import annotations

import csv
import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import REPOSITORY, call, refusal
from rich.console import Console

from stellaris_jax import ConfigError, load_config
from stellaris_jax.base.statistics import mean_ci95
from stellaris_jax.config.tree import Config
from stellaris_jax.envs import registry
from stellaris_jax.execute import run
from stellaris_jax.many import forecast as forecasts
from stellaris_jax.many.forecast import asked, combinations, forecast, left_out
from stellaris_jax.report.forecast import Row, print_forecasts
from stellaris_jax.timeline import Gradient, Group, Timeline, Usage
from stellaris_jax.timeline.forecast import Forecast, Window

SMALL = ["env.num_envs=8", "algorithm.rollout_length=16", "network.hidden=[4]", "total_steps=1280"]
"""Ten rounds of 128 env steps."""
TWO = ["delays=constant", *SMALL, "algorithm.epochs=1", "algorithm.minibatches=2", "platform.cache=0",
       "platform.shared_memory=0", "platform.rpc=0"]  # fmt: skip
"""Two gradients a round: 3.6 s of actors, 0.3 s for a gradient, 0.05 s for an aggregation."""
PLENTY = Window(5, 1)


def figures(*overrides: str, window: Window = PLENTY) -> dict[str, float]:
    """Means of the only combination of settings."""
    (one,) = combinations(overrides)
    return {name: value for name, (value, _) in forecast(one, window).figures.items()}


# Figures ---------------------------------------------------------------------------------------------------------

CASES = {
    # Each gradient is computed on the newest version, so the second one is a version ahead of the data.
    "allreduce system.learners=1": {
        "round_seconds": 3.6 + 2 * 0.35,
        "learner_utilisation": 0.6 / 4.3,
        "actor_utilisation": 3.6 / 4.3,
        "staleness_mean": 0.0,
        "staleness_max": 0,
        "data_lag_mean": 0.5,
        "data_lag_max": 1,
        "learner_waste": 0.0,
        "steps_rolled_per_learned": 1.0,
    },
    # Both gradients are computed on the data's version; the second one waits for the first one's aggregation.
    "async system.learners=2": {
        "round_seconds": 3.6 + 0.3 + 2 * 0.05,
        "learner_utilisation": 0.6 / (2 * 4.0),
        "actor_utilisation": 3.6 / 4.0,
        "staleness_mean": 0.5,
        "staleness_max": 1,
        "data_lag_mean": 0.0,
        "data_lag_max": 0,
        "learner_waste": 0.0,
        "steps_rolled_per_learned": 1.0,
    },
    # The same, but the second gradient is dropped.
    "async system.learners=2 system.admission=bounded system.admission_options.bound=0": {
        "round_seconds": 3.6 + 0.3 + 0.05,
        "staleness_mean": 0.0,
        "staleness_max": 0,
        "learner_waste": 0.5,
        "actor_waste": 0.0,
        "steps_rolled_per_learned": 2.0,
    },
}


@pytest.mark.parametrize("system", CASES)
def test_figures_of_constant_delays(system: str) -> None:
    found = figures(*TWO, *f"system={system}".split())
    assert {name: found[name] for name in CASES[system]} == pytest.approx(CASES[system])


@pytest.mark.parametrize("billing", ["serverless", "serverful"])
@pytest.mark.parametrize("dropped", [False, True])
def test_dollars(billing: str, dropped: bool) -> None:
    """Dollars of a round: 3.06 an hour for a VM of four learners, two of them, and 4.896 for the actors'."""
    admission = ["system.admission=bounded", "system.admission_options.bound=0"] if dropped else []
    found = figures(*TWO, "system=async", "system.learners=2", f"system.learner_billing={billing}", *admission)
    aggregations = 1 if dropped else 2
    seconds = 3.6 + 0.3 + 0.05 * aggregations
    learners = 3.06 / 4 * (0.6 + 0.05 * aggregations) if billing == "serverless" else 2 * 3.06 * seconds
    dollars = (learners + 4.896 * seconds) / 3600
    assert found["usd_per_million_steps"] == pytest.approx(dollars * 1e6 / (64 if dropped else 128))
    assert found["run_usd"] == pytest.approx(10 * dollars) and found["run_seconds"] == pytest.approx(10 * seconds)


def test_fewer_actors_roll_fewer_steps() -> None:
    """One of eight actors: an eighth of the steps, in one minibatch instead of two."""
    found = figures(
        *TWO, "system=allreduce", "system.learners=1", "scaling.actors=1", "system.actor_billing=serverless"
    )
    assert found["round_seconds"] == pytest.approx(3.6 + 0.35) and found["data_lag_max"] == 0
    dollars = (2 * 3.06 * 3.95 + 4.896 / 128 * 3.6) / 3600
    assert found["usd_per_million_steps"] == pytest.approx(dollars * 1e6 / 16)


def test_what_is_not_defined() -> None:
    """Without any delay no time passes, so that no share of it is defined."""
    instant = [f"delays.{kind}.seconds=0" for kind in ("learner", "actor", "aggregate")]
    (one,) = combinations([*TWO, "system=async", "system.learners=2", *instant])
    row = forecast(one, PLENTY)
    assert row.figures["round_seconds"] == (0.0, 0.0) and math.isnan(row.figures["learner_utilisation"][0])
    shown(row)


RUNS = {
    "JAX": ["env=gymnax/cartpole"],
    "overlap": ["env=gymnasium/CartPole-v1", "system=async"],
    "turns": ["env=gymnasium/CartPole-v1", "system=async", "env.overlap=false"],
    "bounded": ["env=gymnax/cartpole", "system=async", "system.admission=bounded", "system.admission_options.bound=5"],
}


@pytest.mark.parametrize("kind", RUNS)
def test_training_has_these_figures(kind: str, tmp_path: Path) -> None:
    settings = [*SMALL, *RUNS[kind], "num_seeds=1", "seed=7", "algorithm.minibatches=8"]
    quiet = ["evaluation.episodes=0", "run.progress=false", "run.loggers=[]", f"run.dir={tmp_path / 'run'}"]
    summary = run.train(load_config([*settings, *quiet]))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "round"]
    found = figures(*settings, window=Window(200, 0))
    if kind != "bounded":  # whose rounds have different numbers of gradients
        assert found["data_lag_mean"] == pytest.approx(sum(row["data_lag"] for row in rows) / len(rows))
    assert found["learner_utilisation"] == pytest.approx(rows[-1]["learner_utilisation"])
    dropped = summary["dropped_gradients"]
    assert (dropped > 0) == (kind == "bounded")
    expected = {
        "staleness_mean": summary["staleness_mean"],
        "staleness_max": summary["staleness_max"],
        "run_seconds": summary["simulated_seconds"],
        "run_usd": summary["cost_usd"],
        "steps_rolled_per_learned": 1 / (1 - summary["dropped_share"]),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


class FakeTimeline:
    """Timeline of independent actors: each round a batch of two fragments of older versions, and a fragment dropped."""

    def __init__(self) -> None:
        self.usage, self.number = Usage(), 0

    def next_round(self, actors: int, gradients: int) -> SimpleNamespace:
        number, self.number = self.number, self.number + 1
        self.usage = Usage(seconds=10.0 * self.number, actor_invocations=3 * self.number, actor_busy=30.0 * self.number)
        gradient = Gradient(number, 0, 0, version=10 + number)
        fragments = [SimpleNamespace(versions=[number, number + 2]), SimpleNamespace(versions=[number + 4])]
        batch = SimpleNamespace(index=number, second=0.0, fragments=fragments)
        group = Group([gradient], [1.0], 10 + number, 0.0, False, None)
        return SimpleNamespace(index=number, behaviour_version=99, batches=[batch], dropped=[], groups=[group])


def test_batches_of_independent_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three fragments are rolled out for each batch of two; they lag by 10, 8 and 6 versions."""
    monkeypatch.setattr(Timeline, "of", lambda config, seed: FakeTimeline())
    two = {"system.actor_shards": 2, "platform.actors": 2}
    config = Config().replace({"system.actors": "independent", **two})
    found = Forecast.of(config, 0, Window(6, 2))
    assert found.data_lag_mean == 8.0 and found.data_lag_max == 10
    assert found.steps_rolled_per_learned == 1.5 and found.round_seconds == 10.0


# Rounds and seeds ------------------------------------------------------------------------------------------------


def test_the_first_rounds_are_left_out() -> None:
    """The first round starts cold containers; later rounds find them warm."""
    cold = [*TWO, "system=allreduce", "system.learners=1", "platform.prewarm=false", "platform.actor_cold_start=1"]
    assert figures(*cold, "platform.cold_start=2")["round_seconds"] == pytest.approx(4.3)
    assert figures(*cold, "platform.cold_start=2", window=Window(1, 0))["round_seconds"] == pytest.approx(4.3 + 3)


@pytest.mark.parametrize(
    ("given", "window"),
    [
        ((None, None), (200, 20)),
        ((50, None), (50, 5)),
        ((400, None), (400, 20)),
        ((50, 40), (50, 40)),
        ((1, 0), (1, 0)),
    ],
)
def test_windows(given: tuple[int | None, int | None], window: tuple[int, int]) -> None:
    assert Window.of(*given) == window
    assert Window.of(*given).within(1000) == window and Window.of(*given).within(1) == (1, 0)


def test_intervals_are_over_seeds() -> None:
    settings = [*SMALL, "system=async", "delays=exponential"]
    (three,) = combinations(settings)
    (named,) = combinations([*settings, "seed=5"])
    (many,) = combinations([*settings, "seed=5,9", "num_seeds=2"])
    assert [one.seeds for one in (three, named, many)] == [[0, 1, 2], [5], [5, 6, 9, 10]]
    each = [figures(*settings, f"seed={seed}")["round_seconds"] for seed in three.seeds]
    assert len(set(each)) == 3
    found = forecast(three, PLENTY).figures
    assert found["round_seconds"] == pytest.approx(mean_ci95(each)) and math.isnan(found["staleness_max"][1])
    assert math.isnan(forecast(named, PLENTY).figures["round_seconds"][1])


# Combinations ----------------------------------------------------------------------------------------------------


def test_every_combination_is_a_row() -> None:
    found = combinations(["system=stellaris,async", "delays=pareto,exponential", "run.dir=mine"])
    pairs = [(system, delays) for system in ("stellaris", "async") for delays in ("pareto", "exponential")]
    assert [one.settings for one in found] == [{"system": s, "delays": d} for s, d in pairs]
    (alone,) = combinations([])
    assert alone.settings == {"system": "stellaris"}
    learners = combinations(["system.learners=2,4", "system=async"])
    assert [one.settings for one in learners] == [{"learners": "2"}, {"learners": "4"}]


def shown(*rows: Row, width: int = 80) -> str:
    console = Console(width=width, force_terminal=True, no_color=True)
    with console.capture() as capture:
        print_forecasts(console, rows)
    lines = capture.get().splitlines()
    plain = [Console().render_str("").from_ansi(line).plain.rstrip() for line in lines]
    assert max(map(len, plain)) <= width
    return "\n".join(plain)


def test_the_table_fits_80_columns() -> None:
    rows = [
        forecast(one, Window(30, 3)) for one in combinations(["system=stellaris,async", "delays=pareto,exponential"])
    ]
    text = shown(*rows)
    assert text.startswith("Time and money: rounds 4 to 30, 3 seeds\n")
    lines = text.splitlines()
    assert sum(line.startswith("stellaris  exponential ") for line in lines) == 2, "each table is in one part"
    assert "±" in next(line for line in lines if line.startswith("async"))
    uneven = [rows[0], rows[1]._replace(window=Window(10, 1))]
    assert "4 to 30" in shown(*uneven) and "2 to 10" in shown(*uneven)
    shown(*rows, width=40)


def test_a_plan_says_what_it_is_of_and_what_it_leaves_out() -> None:
    same = combinations(["system=async", "env=gymnax/acrobot", "total_steps=65_536", "delays=pareto,constant"])
    assert asked(same) == "gymnax/Acrobot-v1, 65,536 env steps, platform=regular"
    row = forecast(same[0], Window(4, 1))
    assert list(left_out(same[:1], [row])) == []
    (truncated,) = combinations(["system=async", "system.truncation=weight", "platform.prewarm=false"])
    said = list(left_out([truncated], [row]))
    assert len(said) == 2 and "system.truncation" in said[0] and "--warmup 0" in said[1]
    assert len(list(left_out([truncated], [row._replace(window=Window(4, 0))]))) == 1
    console = Console(width=80)
    with console.capture() as capture:
        print_forecasts(console, [row], asked(same), said)
    text = " ".join(capture.get().split())
    assert text.startswith("gymnax/Acrobot-v1, 65,536") and text.endswith(said[1])


def test_the_command(tmp_path: Path) -> None:
    """All columns are in the files, the same in both."""
    begin = time.perf_counter()
    sheet, data = tmp_path / "plan.csv", tmp_path / "new" / "plan.json"
    done = call("plan.py", "-m", "system=async,allreduce", "--csv", sheet, "delays=pareto,constant", "--json", data)
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - begin < 30
    assert done.stderr == "simulating 4 combinations, up to 200 rounds a seed\n"
    assert done.stdout.splitlines()[-2:] == [str(sheet), str(data)]
    rows: list[dict[str, Any]] = json.loads(data.read_text())
    with sheet.open() as file:
        lines = list(csv.DictReader(file))
    assert [[row["system"], row["delays"]] for row in rows] == [
        ["async", "pareto"], ["async", "constant"], ["allreduce", "pareto"], ["allreduce", "constant"],
    ]  # fmt: skip
    for row, line in zip(rows, lines, strict=True):
        assert line == {name: "" if value is None else str(value) for name, value in row.items()}
        assert (row["seeds"], row["rounds"], row["warmup"]) == (3, 200, 20)
        assert (row["round_seconds_ci95"] > 0) == (row["delays"] == "pareto") and "staleness_max_ci95" not in row
        assert f"{row['run_usd']:.2f}" in done.stdout
    assert rows[2]["staleness_max"] == 0 < rows[0]["staleness_mean"] < rows[0]["staleness_max"]


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    assert (
        call("plan.py", *TWO, "system=async", "system.learners=2", "seed=3", "--json", tmp_path / "x").returncode == 0
    )
    (row,) = json.loads((tmp_path / "x").read_text())
    assert row["round_seconds_ci95"] is None and row["seeds"] == 1 and row["rounds"] == 10


# Errors ----------------------------------------------------------------------------------------------------------

AS_TRAIN = [
    ["system=asink"],
    ["algorithm.rollout=3"],
    ["system.learners=64"],
    ["env=gymnax/cartpool"],
    ["env=nothing/cartpole"],
    ["delays=constant", "delays.learner.kind=pareto", "delays.learner.seconds=0"],
    ["executor=lively"],
    ["scaling=adapt"],
]


@pytest.mark.parametrize("settings", AS_TRAIN, ids=" ".join)
def test_errors_of_training(settings: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(settings)
    assert refusal("plan.py", *settings) == f"error: {error.value}\n"


REFUSED = {
    "executor=live": "executor=live takes real time, which no plan foretells; plan accepts executor=simulated.",
    "executor=replay": "executor=replay takes real time, which no plan foretells; plan accepts executor=simulated.",
    "scaling=hydrozoa": "scaling.rule=hydrozoa changes the number of actors as training goes on, which no plan "
    "foretells; plan accepts scaling.rule of fixed, max",
    "system=areal delays.by=episodes": "delays.by=episodes makes durations follow episodes that only training plays, "
    "which no plan foretells; plan accepts delays.by=steps.",
    "resume=runs/one": "resume=runs/one is for training; plan accepts settings of a run, such as system=async.",
    "sweep.rey=local": "sweep.rey is not a config key",
    "--warmup=30 --rounds=30": "--warmup=30 must be less than --rounds=30.",
    "--rounds=0": "argument --rounds: must be an integer of at least 1, not '0'",
    "--csv=/dev/null": "--csv=/dev/null cannot be written.",
    "--csv=out --json=out": "--csv and --json are both out; name two files.",
    "--seeds=3": "unrecognized arguments: --seeds=3",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert REFUSED[line] in refusal("plan.py", *line.split())


def test_actors_that_roll_ahead() -> None:
    """Data of host environments are a round older, unless actors take turns with learners."""

    def prefetches(*overrides: str) -> bool:
        (one,) = combinations(overrides)
        return forecasts._prefetches(one.config)

    host = "env=gymnasium/CartPole-v1"
    assert prefetches(host, "env.overlap=true") and not prefetches(host)
    assert not prefetches("env=gymnax/cartpole")
    for name, other in {"plan_test/host": "gymnasium/CartPole-v1", "plan_test/jax": "gymnax/CartPole-v1"}.items():
        registry.register(name, lambda other=other: registry.make(other, {}))
        assert prefetches(f"env={name}", "env.overlap=true") == (name == "plan_test/host")


def test_a_log_is_compared_with_what_is_foretold() -> None:
    """For one combination; of several it is not clear which would be meant."""
    log = ["delays=trace", f"delays.log={REPOSITORY / 'examples' / 'cluster' / 'jobs.jsonl'}", "--rounds", 4]
    one, two = call("plan.py", *log), call("plan.py", *log, "system=async,ssp")
    assert "the simulation foretells" in one.stderr and "the simulation foretells" not in two.stderr
    assert one.returncode == two.returncode == 0


def test_plan_of_a_token_task_refuses_a_longest_completion_that_training_refuses() -> None:
    with pytest.raises(ConfigError, match=r"rollout_length=128 must be the tokens of the longest completion"):
        combinations(["env=tokens/tail", "env.kwargs.longest=32"])
    (only,) = combinations(["env=tokens/tail", "env.kwargs.longest=32", "algorithm.rollout_length=32"])
    assert only.config.env.name == "tokens/tail"
