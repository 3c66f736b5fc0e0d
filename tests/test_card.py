"""Figures of an accelerator: jobs in turn, kept from run to run. Processes are made up, but for one small one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import card, cards, main
from stellaris_jax.base.errors import ConfigError, RunError

TINY = ["env.num_envs=4", "algorithm.rollout_length=8", "network.hidden=[8]", "algorithm.minibatches=4"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What processes were asked for."""
    asked: list[tuple[list[str], dict[str, str]]] = []

    def figures(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
        asked.append((command, environment))
        if "hopper" in command:
            raise RunError("out of memory")
        rate = {"steps_per_second": 10.0 * len(asked), "gradients_per_second": 1.0}
        return {"job": command[3], **rate, "compile_seconds": 2.0, "device_memory_mb": None}

    monkeypatch.setattr(cards, "figures", figures)
    return asked


def test_jobs_run_in_turn_and_once(calls: list[tuple[list[str], dict[str, str]]], tmp_path: Path) -> None:
    ways, kept, told = cards.variants([tmp_path], ["cartpole"], ["breakout"]), tmp_path / "kept.jsonl", []
    arguments = (["cartpole", "breakout", "hopper"], ways)
    runs = cards.measure(*arguments, 2, kept, None, 0, told.append)
    turns = [(run["job"], run["way"]) for run in runs]
    once = [("cartpole", cards.HERE), ("cartpole", cards.LOOPED), ("breakout", cards.HERE), ("breakout", tmp_path.name)]
    assert turns == 2 * once and len(told) == 10
    assert card.LOOPS in calls[1][1]["XLA_FLAGS"] and "XLA_FLAGS" not in calls[0][1]
    assert calls[3][1]["PYTHONPATH"].startswith(str(tmp_path)) and calls[3][1]["PYTHONSAFEPATH"] == "1"
    before = len(calls)
    assert cards.measure(*arguments, 2, kept, None, 0, told.append) == runs
    assert [command[3] for command, _ in calls[before:]] == ["hopper", "hopper"]
    rows = cards.rows(runs)
    assert rows[0]["steps/s"] == "35" and rows[0]["runs"] == "2" and len(rows) == 4


def test_all_compile_at_once_beforehand(calls: list[tuple[list[str], dict[str, str]]], tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    assert cards.measure(["cartpole", "breakout"], cards.variants([], [], []), 0, kept, None, 2, print) == []
    assert len(calls) == 2 and not kept.exists()


def test_references_are_named_where_they_are(calls: list[tuple[list[str], dict[str, str]]], tmp_path: Path) -> None:
    (tmp_path / "cartpole.npy").touch()
    jobs = ["agreement, cartpole", "agreement, pendulum"]
    cards.measure(jobs, cards.variants([], [], []), 1, tmp_path / "kept", tmp_path, 0, print)
    assert [("--reference" in command) for command, _ in calls] == [True, False]


@pytest.mark.parametrize("line", ["{", "3", "{}", "[]"])
def test_another_file(line: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text(json.dumps({"job": "a", "way": "b", "repeat": 0}) + "\n" + line + "\n")
    with pytest.raises(ConfigError, match="line 2 is not a run; delete it, or name another file"):
        cards.read(kept)


def test_the_command(
    calls: list[tuple[list[str], dict[str, str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main.main(["card", "--jobs", "cartpole", "--repeats", "1", "--kept", str(tmp_path / "kept.jsonl")])
    assert "cartpole  here     1       10" in capsys.readouterr().out


def test_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "LEAST", 0.0)
    found = card.measure("cartpole", [*TINY, "engine.chunk_rounds=1"])
    assert found["chunks"] == 3 and found["steps_per_second"] > found["gradients_per_second"] > 0
    assert found["device_memory_mb"] is None


def test_agreement_sees_differences(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(card.COMPARED, "cartpole", [*card.COMPARED["cartpole"], *TINY])
    file = tmp_path / "cartpole.npy"
    assert card.agreement("cartpole", None, str(file)) == {"repeats": True}
    same = card.agreement("cartpole", str(file), None)
    assert same == {"repeats": True, "default": 0.0, "highest": 0.0}
    np.save(file, 2 * np.load(file))
    assert card.agreement("cartpole", str(file), None)["default"] == pytest.approx(0.5)


def test_costs_of_a_kernel_and_a_loop() -> None:
    found = card.costs(size=8)["microseconds"]
    assert found["call"] > 0 and {*found["graphs"]} == {"kernel", "turn, counted", "turn, value"}
