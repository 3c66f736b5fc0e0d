"""This program beside others: medians and ratios, targets reached or not, and peers that are missing or fail."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import beside, main, own
from benchmarks.beside import OURS, PEERS, Peer, Program, compare, on_tokens, programs, summarise
from benchmarks.peers import contract, plain_grpo
from benchmarks.peers.contract import GOALS, NOT_REACHED, Stopwatch, goal_of, process_age
from benchmarks.process import ROOT
from stellaris_jax.base.errors import ConfigError, RunError

JOB, GOAL = "cartpole_small", "cartpole"
TINY = [
    *("env.num_envs=2", "algorithm.rollout_length=4", "algorithm.minibatches=2", "network.hidden=[4]"),
    *("total_steps=16", "engine.chunk_rounds=1", "evaluation.episodes=2", "env.kwargs.max_steps_in_episode=5"),
]


def figures_of(speed: float, seconds: float | None = None) -> dict[str, Any]:
    """A run's figures."""
    figures = dict.fromkeys(("steps", "seconds", "compile_seconds", "cores", "peak_memory_mb", "return_mean"), 1.0)
    return figures | {"steps_per_second": speed} | dict.fromkeys(NOT_REACHED, seconds)


def fake(folder: Path, name: str, body: str) -> Program:
    """A program of a few lines, which knows its job and seed."""
    file = folder / f"{name}.py"
    file.write_text(f"import json, sys\njob, seed = sys.argv[1], int(sys.argv[3])\n{body}\n")
    return Program([sys.executable, str(file)], own.JOBS)


def steady(folder: Path, name: str, speeds: list[float], seconds: list[float | None] | None = None) -> Program:
    """A program that answers with these figures, seed by seed."""
    runs = [figures_of(speed, second) for speed, second in zip(speeds, seconds or [None] * len(speeds), strict=True)]
    return fake(folder, name, f"print('a word before')\nprint(json.dumps(json.loads({json.dumps(runs)!r})[seed]))")


def test_medians_and_ratios_of_pairs(tmp_path: Path) -> None:
    notes: list[str] = []
    contestants = {
        OURS: steady(tmp_path, "ours", [100, 400, 300]),
        "quick": steady(tmp_path, "quick", [200, 100, 100]),
        "slow": steady(tmp_path, "slow", [50, 200, 50]),
        "elsewhere": Program([sys.executable, "nowhere.py"], ["another job"]),
    }
    rows = compare([JOB], contestants, 3, notes.append)
    assert [row["program"] for row in rows] == [OURS, "quick", "slow"]
    ours, quick, slow = rows
    assert (ours["steps_per_second"], quick["steps_per_second"], slow["steps_per_second"]) == (300, 100, 50)
    assert quick["ratios"] == [0.5, 4, 3] and quick["ratio"] == 3
    assert slow["ratios"] == [2, 2, 6] and slow["ratio"] == 2
    assert ours["ratios"] == [0.5, 2, 3] and ours["ratio"] == 2
    assert [note.split(":")[0] for note in notes[:3]] == [f"{JOB} {name} seed 0" for name in (OURS, "quick", "slow")]


def test_every_program_keeps_what_it_compiles_where_time_to_a_return_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only ours did once, so that the others compiled anew for every seed."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    place = "__import__('os').environ.get('JAX_COMPILATION_CACHE_DIR', '').rpartition('/')[2]"
    body = f"print(json.dumps(json.loads({json.dumps(figures_of(1, 1.0))!r}) | {{'place': {place}}}))"
    contestants = {name: fake(tmp_path, name, body) for name in (OURS, "other")}
    for job, places in ((GOAL, [OURS, "other"]), (JOB, ["", ""])):
        rows = compare([job], contestants, 1, lambda _: None)
        assert [row["runs"][0]["place"] for row in rows] == places


def test_targets_reached_and_not() -> None:
    runs = {
        OURS: [figures_of(1, seconds) for seconds in (10.0, 30.0, None)],
        "a": [figures_of(1, seconds) for seconds in (20.0, None, None)],
        "b": [figures_of(1, seconds) for seconds in (None, None, 5.0)],
    }
    ours, a, b = summarise(GOAL, runs)
    assert [row["reached"] for row in (ours, a, b)] == [2, 1, 1]
    assert ours["command_seconds_to_return"] == 30 and a["command_seconds_to_return"] is None
    assert a["ratios"] == [2, None, None] and b["ratios"] == [None, None, 0]
    assert ours["ratios"] == [2, None, 0] and ours["ratio"] == 2
    cells = beside.rows("return", [ours, a])
    assert cells[0]["reached"] == "2 of 3" and cells[0]["s of the command"] == "30.0"
    assert cells[1]["s of the command"] == "" and cells[1]["steps"] == ""


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("sys.exit('no such thing')", "failed (1): no such thing"),
        ("raise ValueError('odd')", "failed (1): ValueError: odd"),
        ("sys.exit(3)", "failed (3): it says nothing"),
        ("print('{not json')", "does not end with a JSON object, but with '{not json'."),
        ("print(4)", "does not end with a JSON object, but with '4'."),
        ("pass", "does not end with a JSON object, but with nothing."),
        ("print(json.dumps({'cores': 1}))", "says nothing of steps_per_second, compile_seconds, peak_memory_mb"),
        ("print('error: not me', file=sys.stderr); sys.exit(2)", "not me"),
    ],
)
def test_peers_that_fail_are_left_out_in_one_sentence(body: str, sentence: str, tmp_path: Path) -> None:
    notes: list[str] = []
    contestants = {OURS: steady(tmp_path, "ours", [1.0, 1.0]), "bad": fake(tmp_path, "bad", body)}
    (row,) = compare([JOB], contestants, 2, notes.append)
    assert row["program"] == OURS and row["ratio"] is None
    (note,) = [note for note in notes if "left out" in note]
    assert note.startswith(f"{JOB}: bad is left out: ") and sentence in note and "\n" not in note
    with pytest.raises((RunError, ConfigError)):
        compare([JOB], {OURS: contestants["bad"]}, 1, notes.append)


def test_a_python_that_is_gone(tmp_path: Path) -> None:
    notes: list[str] = []
    gone = Program(["/nowhere/python"], own.JOBS)
    compare([JOB], {OURS: steady(tmp_path, "ours", [1.0]), "gone": gone}, 1, notes.append)
    assert f"{JOB}: gone is left out: /nowhere/python cannot be started: No such file or directory." in notes


def test_environments_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    with pytest.raises(ConfigError, match=r"has no environment of a peer; `bash benchmarks/peers/install.sh "):
        programs(tmp_path, notes.append)
    assert not notes
    python = tmp_path / "rejax" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setitem(PEERS, "brax", Peer("rejax", ("json",), ("hopper_spring",)))
    found = programs(tmp_path, notes.append)
    assert list(found) == [OURS, "brax"] and found["brax"].command[0] == str(python)
    assert f"rejax is left out: {python} is not a Python with rejax, gymnax, brax." in notes


@pytest.mark.parametrize("peer", PEERS)
def test_runners_know_their_jobs(peer: str) -> None:
    runner = (ROOT / "benchmarks" / "peers" / f"{peer}.py").read_text()
    assert set(PEERS[peer].jobs) <= {*own.JOBS} and all(f'"{job}"' in runner for job in PEERS[peer].jobs)


def test_every_job_has_a_peer_and_every_goal_settings() -> None:
    assert {job for peer in PEERS.values() for job in peer.jobs} == {*own.JOBS} - {*own.TOKENS}
    assert {job for one in on_tokens(Path("nowhere")).values() for job in one.jobs} == {*own.TOKENS}
    assert {*GOALS} == {*own.RETURN} and not {*GOALS} & {*own.THROUGHPUT}


def test_the_plain_loop_scores_what_it_generates() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    params = jax.tree.map(lambda x: x + 0.2 * jax.random.normal(keys[1], x.shape), plain_grpo.init(keys[0]))
    prompts = plain_grpo.prompts_of(keys[2], 16, False)
    completions, log_probs = jax.jit(plain_grpo.generate)(params, prompts, keys[1])
    counted = np.asarray(plain_grpo.counted(completions))
    scored = jax.jit(plain_grpo.scored)(params, prompts, completions)
    assert 0 < counted.sum() < counted.size
    np.testing.assert_allclose(np.asarray(log_probs)[counted], np.asarray(scored)[counted], atol=1e-5)


def test_clocks() -> None:
    goal = goal_of(GOAL, 7.0)
    assert goal is not None and goal.target == 7 and goal_of(JOB, 7.0) is None and goal_of(GOAL, None) == GOALS[GOAL]
    before, watch = process_age(), Stopwatch(goal)
    watch.start()
    with watch.compiling():
        time.sleep(0.02)
    assert not watch.evaluated(10, 6.9) and watch.to_return == dict.fromkeys(NOT_REACHED)
    assert watch.evaluated(20, 7.0) and watch.evaluated(30, 0.0)
    watch.stop()
    figures = watch.figures(30, 0.0)
    assert figures["steps_to_return"] == 20 and figures["seconds_to_return"] >= figures["compile_seconds"] >= 0.02
    assert figures["command_seconds_to_return"] >= max(before, figures["seconds_to_return"]) - 0.02
    assert figures["steps_per_second"] == pytest.approx(30 / figures["seconds"])


@pytest.mark.parametrize("mistake", ["--seed=4294967296", "--seed=-1", "--target=nan"])
def test_mistakes_cost_no_run(
    mistake: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["own", GOAL, mistake])
    with pytest.raises(SystemExit) as stop:
        contract.main("ours", "1", own.JOBS, own.measure)
    assert stop.value.code == 2 and f"error: {mistake} must be" in capsys.readouterr().err


def test_own_throughput() -> None:
    figures = own.measure(JOB, 0, overrides=TINY)
    assert figures["steps"] == 16 and figures["compile_seconds"] > 0 and not set(NOT_REACHED) & set(figures)


@pytest.mark.parametrize("target", [0.0, 1e6])
def test_own_time_to_return(target: float) -> None:
    figures = own.measure(GOAL, 0, goal_of(GOAL, target), [*TINY, "total_steps=64"])
    if target:
        assert figures["steps"] == 64 and figures["seconds_to_return"] is None
    else:
        assert 0 < figures["seconds_to_return"] <= figures["seconds"] and figures["steps_to_return"] == 64


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    contestants = {OURS: steady(tmp_path, "ours", [6e5], [4.0]), "other": steady(tmp_path, "other", [3e5], [8.0])}
    monkeypatch.setattr(beside, "programs", lambda folder, note: contestants)
    file = tmp_path / "figures.json"
    main.main(["peers", "--jobs", JOB, GOAL, "--repeats", "1", "--json", str(file)])
    document = json.loads(file.read_text())
    assert list(document["result"]) == ["throughput", "return"] and document["versions"]["jax"]
    assert [row["ratio"] for row in document["result"]["return"]] == [2, 2]
    shown = capsys.readouterr().out
    assert "600,000" in shown and "1 of 1" in shown
