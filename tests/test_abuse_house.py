"""Faulty plug-ins and environments: one sentence says what to change, and no round is lost."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
import gym_lab  # noqa: F401  (its environments are registered)
from commands import ended_by, python, start, wait_for_checkpoints

import stellaris_jax
from stellaris_jax import ConfigError, Rule, Scaling, check_env, knob, load_config, register, train
from stellaris_jax.base.errors import RunError
from stellaris_jax.config.optioned import Optioned
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.envs.suites.gymnasium import make
from stellaris_jax.report.sweep import report
from stellaris_jax.timeline import Timeline
from stellaris_jax.timeline.scaling.limits import Limits

SMALL = ["total_steps=256", "env.num_envs=8", "algorithm.rollout_length=8", "algorithm.epochs=1",
         "algorithm.minibatches=4", "network.hidden=[4]", "system.learners=4", "evaluation.episodes=2",
         "evaluation.points=1", "run.progress=false"]  # fmt: skip


@pytest.mark.parametrize("text", ["raise SystemExit(0)", "import sys; sys.exit('not today')"])
def test_a_plugin_does_not_end_the_command_without_a_word(text: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"script\.py cannot be used: SystemExit"):
        load_config([f"plugins=[{path}]"])


HEAD = "import stellaris_jax as sj\n@sj.register.rule('odd')\nclass Odd(sj.Rule):\n    "


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("share = sj.knob(3, 'x')", "the option share of Odd needs a type, share: T = knob"),
        ("share: object = sj.knob(3, 'x')", "the option share of Odd needs a type"),
        ("share: 'Unknown' = sj.knob(3, 'x')", "the option share of Odd needs a type"),
        ("state: int = sj.knob(3, 'x')", "the option state of Odd hides Optioned.state"),
        ("FIXED: int = sj.knob(3, 'x')", "the option FIXED of Odd hides Optioned.FIXED"),
        ("round: int = sj.knob(3, 'x')", "the option round of Odd hides Rule.round"),
    ],
)
def test_knobs_that_cannot_be_options(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plugin.py"
    path.write_text(HEAD + line)
    with pytest.raises(ConfigError, match=message):
        load_config([f"plugins=[{path}]"])


def test_options_may_have_other_defaults_than_those_of_a_base() -> None:
    class Weaker(Rule):
        root: int = knob(7, "another root")

    assert Weaker().root == 7


def test_state_is_a_copy() -> None:
    """A checkpoint's is that of its round, while the next rounds are planned already."""

    class Counting(Optioned):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[list[int]] = []

    rule = Counting()
    rule.seen.append([1])
    saved = rule.state()
    rule.seen[0].append(2)
    rule.seen.append([3])
    assert saved == {"seen": [[1]]}
    rule.restore(saved)
    rule.seen[0].append(4)
    assert saved == {"seen": [[1]]}


@pytest.mark.parametrize("value", [{1, 2}, {0: 1}, lambda: 1, [b"x"]])
def test_state_that_a_file_would_not_bring_back(value: Any) -> None:
    rule = Rule()
    vars(rule)["kept"] = value
    with pytest.raises(ConfigError, match=r"Rule.kept is no JSON data .* override state\(\) and restore\(\)"):
        rule.state()


ANSWERS: dict[str, tuple[str, str, list[Any], str]] = {
    "admission": ("may_start", "system.admission=mine", [False], r"system\.admission=mine let no learner start"),
    "weight": (
        "weight", "system.weights=mine", [float("nan"), -1.0, float("inf"), "1", None],
        r"Odd\.weight must be a finite number of at least 0",
    ),
    "rule": ("take", "system.rule=mine", [0, None, -1], r"Odd\.take must be at least 1"),
    "delay": (
        "durations", "delays.learner.kind=mine",
        [lambda n: n * np.nan, lambda n: -n - 1, lambda n: n[:3], lambda n: 1.0, lambda n: n[:, None], lambda n: None],
        "Odd, a delay model, has drawn",
    ),
}  # fmt: skip
"""A method of each kind of plug-in, the key that chooses it, wrong answers and the error."""


def added(monkeypatch: pytest.MonkeyPatch, kind: str, method: str, answer: Any) -> None:
    """Register a plug-in `mine`, whose method has one answer, as long as a test lasts."""
    list(register[kind])  # ours are there
    body = {method: lambda self, given, *_: answer(given) if callable(answer) else answer, "noise": "uniform"}
    entries = vars(register[kind])["_entries"]
    monkeypatch.setitem(entries, "mine", type("Odd", (getattr(stellaris_jax, kind.capitalize()),), body))


@pytest.mark.parametrize(
    ("kind", "answer"), [(kind, number) for kind, case in ANSWERS.items() for number in range(len(case[2]))]
)
def test_a_wrong_answer_of_a_plugin_is_one_sentence(kind: str, answer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    method, override, answers, message = ANSWERS[kind]
    added(monkeypatch, kind, method, answers[answer])
    with pytest.raises(RunError, match=message):
        Timeline.of(load_config([*SMALL, override]), 0).next_round()


def test_a_run_whose_gradients_are_all_thrown_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    added(monkeypatch, "admission", "keeps", False)
    with pytest.raises(RunError, match="all gradients of seed 0 were thrown away"):
        train(load_config([*SMALL, "system.admission=mine", f"run.dir={tmp_path / 'run'}"]))
    assert "thrown away" in json.loads((tmp_path / "run" / "summary.json").read_text())["failure"]


@pytest.mark.parametrize("chosen", [0, 10**9, None, 2.5, float("nan"), "4"])
def test_numbers_of_actors_that_are_none(chosen: Any) -> None:
    class Odd(Scaling):
        def choose(self, seen: Any) -> int:
            return chosen  # type: ignore[no-any-return]

    rule = Odd(load_config(["scaling.rule=max"]).scaling, Limits(8, 1, 1, (8,)))
    with pytest.raises(RunError, match="actors for the next round; it must be an integer from 1 to 8"):
        rule.observe(SimpleNamespace(reward=0.0, cost_usd=0.0))  # type: ignore[arg-type]


def test_a_plugin_that_has_been_moved(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text("")
    stored = tmp_path / "config.yaml"
    stored.write_text(to_yaml(load_config([f"plugins=[{plugin}]"])).replace("plugin.py", "elsewhere.py"))
    with pytest.raises(ConfigError, match="Put it back, or write into this file where it is now"):
        load_config([f"resume={tmp_path}"])


def test_a_point_of_a_sweep_that_repeats_another_is_no_seed(tmp_path: Path) -> None:
    """As under `system.learners=4,4`."""
    for place, seed, value in (("0", 0, 1.0), ("1", 0, 1.0), ("2", 1, 3.0)):
        run = tmp_path / place
        run.mkdir()
        (run / "config.yaml").write_text(to_yaml(load_config([f"seed={seed}"])))
        (run / "summary.json").write_text(json.dumps({"failure": None, "updates": 1}))
        record = {"kind": "evaluation", "round": 1, "env_steps": 1, "simulated_seconds": 1, "cost_usd": 1}
        record["per_seed"] = {"eval_return_mean": [value]}
        (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    report(tmp_path)
    (row,) = csv.DictReader((tmp_path / "table.csv").open())
    assert (row["seeds"], row["return_mean"]) == ("2", "2.0")


@pytest.mark.parametrize("fault", ["reward", "observation"])
def test_check_env_sees_what_is_not_finite(fault: str) -> None:
    with pytest.raises(ConfigError, match=f"{fault} that is not finite"):
        check_env(make("gym_lab:Faulty-v0", fault=fault))


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [("dies", RunError, "a process that steps it has ended by itself"), ("raises", OSError, "the cable is out")],
)
def test_processes_of_environments_that_fail_are_ended(fault: str, error: type[Exception], message: str) -> None:
    pool = make("gym_lab:Faulty-v0", fault=fault, vectorization_mode="async").open(2, 0)
    pool.recv()
    with pytest.raises(error, match=message):
        for _ in range(3):
            pool.send(np.zeros(2, np.int32))
            pool.recv()
    pool.close()
    assert not any(process.is_alive() for process in pool._vector.processes)


GROUP = """
import os, signal, sys
import numpy as np
import gym_lab
from stellaris_jax.envs.suites.gymnasium import make
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(signum, lambda *_: None)
pool = make("gym_lab:Faulty-v0", fault=sys.argv[1], vectorization_mode="async").open(2, 0)
pool.recv()
print(*[process.pid for process in pool._vector.processes])
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    os.killpg(0, signum)
try:
    for _ in range(5):
        pool.send(np.zeros(2, np.int32))
        assert (pool.recv().reward == 1).all()
    print("stepped")
except OSError as error:
    print(error)
"""
"""A process with a pool of processes, all of which a signal reaches; it ends without closing the pool."""


@pytest.mark.parametrize(("fault", "last"), [("none", "stepped"), ("raises", "the cable is out")])
def test_processes_of_environments_leave_signals_to_the_run(fault: str, last: str) -> None:
    done = python("-c", GROUP, fault, start_new_session=True)
    processes, *lines = done.stdout.splitlines()
    assert (done.returncode, lines) == (0, [last]), done.stderr
    for number in processes.split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)


def test_environments_stepped_here_leave_signals_as_they_are() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    make("gym_lab:Drift-v0").open(1, 0).close()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.slow
def test_a_run_whose_whole_group_is_signalled_is_saved(tmp_path: Path) -> None:
    overrides = ["env=gymnasium/gym_lab:Drift-v0", "+env.kwargs.vectorization_mode=async", "checkpoint.interval=1"]
    process = start(tmp_path / "run", *SMALL, *overrides, "total_steps=1e6", "run.dir=run", start_new_session=True)
    wait_for_checkpoints(process, tmp_path / "run", 2)
    os.killpg(process.pid, signal.SIGTERM)
    assert "is saved; continue with: python" in ended_by(signal.SIGTERM, process)
