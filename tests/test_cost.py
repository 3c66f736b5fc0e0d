"""What `benchmark.py cost` makes of what it measures, and who it measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import cost
from stellaris_jax.base.errors import ConfigError

SPEEDS = {"live": [10.0, 30.0, 20.0], "compiled": [100.0, 100.0, 100.0], "ppo": [5.0, 10.0, 40.0], "appo": [20.0] * 3}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Nothing is measured; the commands that would have been run."""
    commands: list[list[str]] = []

    def figures(command: list[str]) -> dict[str, Any]:
        commands.append(command)
        algorithm = command[command.index("benchmarks.peers.rllib") + 1].partition("_")[0]
        speed = SPEEDS[algorithm][int(command[-1])]
        return {"steps_per_second": 2 * speed, "learned_per_second": speed}

    monkeypatch.setattr(cost, "figures", figures)
    monkeypatch.setattr(cost, "ours", lambda way, job, learners, rounds, seed: SPEEDS[way][seed])
    return commands


def test_medians_and_ratios_of_pairs(asked: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cost, "has", lambda python, modules: True)
    table = cost.cost(["hopper"], 2, 2, 3, tmp_path, lambda _: None)
    assert [row["way"] for row in table] == ["live", "compiled", "RLlib's PPO", "RLlib's APPO"]
    assert [row["steps_per_second"] for row in table] == [20.0, 100.0, 10.0, 20.0]
    assert [row["sampled"] for row in table] == [20.0, 100.0, 20.0, 40.0]
    assert [row["ratio"] for row in table] == [1.0, 0.2, 2.0, 1.0]
    assert {row["job"] for row in table} == {"hopper"}
    assert len(asked) == 6 and {command[0] for command in asked} == {str(tmp_path / "rllib" / "bin" / "python")}
    assert {command[-3] for command in asked} == {"ppo_hopper", "appo_hopper"}
    cells = {"job": "hopper", "way": "RLlib's PPO", "env steps/s": "10", "sampled": "20", "live / it": "2.00"}
    assert cost.rows(table)[2] == cells


def test_who_is_not_there_is_left_out_or_told_of(asked: list[list[str]], tmp_path: Path) -> None:
    assert [row["way"] for row in cost.cost(["cartpole"], 2, 2, 1, None, lambda _: None)] == ["live", "compiled"]
    with pytest.raises(ConfigError, match=r"has no environment of RLlib; `bash benchmarks/peers/install.sh .*` makes"):
        cost.cost(["cartpole"], 2, 2, 1, tmp_path, lambda _: None)
    assert not asked


def test_environments_of_jax_are_no_job_of_rllibs(
    asked: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cost, "has", lambda python, modules: True)
    assert [row["way"] for row in cost.cost(["gymnax"], 2, 2, 1, tmp_path, lambda _: None)] == ["live", "compiled"]
    speeds = cost.speeds(4, 2, 3)
    assert speeds["steps_per_second"] == {"live": 20.0, "compiled": 100.0} and speeds["ratio"] == 0.2
    assert not asked


@pytest.mark.slow
@pytest.mark.parametrize("job", ["cartpole", "hopper"])
def test_ours_are_measured(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("envpool" if job == "hopper" else "gymnasium")
    pytest.importorskip("ray")
    small = ("algorithm.rollout_length=8", "network.hidden=[8]")
    monkeypatch.setitem(cost.JOBS, job, (*cost.JOBS[job], *small))
    for way in cost.OURS:
        assert cost.ours(way, job, 2, 2, 0) > 0
