"""Figures of `benchmark.py live`, on timelines whose durations are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import live
from stellaris_jax.execute.job import as_executed
from stellaris_jax.timeline import Round, Timeline, trace
from stellaris_jax.timeline.joblog import durations
from stellaris_jax.timeline.trace import Header, Roll, RoundTrace

ROUNDS = 12


LOADING = 0.25
"""Seconds that the driver takes between the last actor and minibatches."""


def simulated(rule: str, learners: int, contention: float = 0.0, interference: float = 0.0) -> list[Round]:
    """Rounds with durations that are drawn, as if they had been lived through."""
    config = as_executed(live._config(rule, learners, 0, ROUNDS))
    shared = {"platform.contention": contention, "platform.interference": interference}
    values = {"executor": "simulated", "delays.loader.seconds": LOADING, **shared, **live.MEASURED}
    timeline = Timeline.of(config.replace(values), 0)
    return [timeline.next_round() for _ in range(ROUNDS)]


@pytest.fixture
def machine(tmp_path: Path) -> live.Machine:
    """The machine as the trace of one learner that waits has it."""
    rounds = simulated("all-reduce", 1)
    rolls = [[Roll(actor, one.start, one.complete - LOADING) for actor in range(2)] for one in rounds]
    lines = [RoundTrace(one, rolls=rolled) for one, rolled in zip(rounds, rolls, strict=True)]
    trace.write(tmp_path / trace.NAME, Header(0, 1), lines)
    return live.Machine(tmp_path)


def test_what_was_lived_through_is_foretold(machine: live.Machine) -> None:
    config = live._config("async", 1, 0, ROUNDS)
    real = live.Figures.of(as_executed(config), simulated("async", 1))
    foretold = live.Figures.of(as_executed(config), live.foretell(config, machine, 0))
    # Actors' durations are as long as their rounds' collecting here, which is the longer of two.
    assert foretold == pytest.approx(real, rel=0.02)


def test_loaders_are_foretold(machine: live.Machine) -> None:
    assert durations(machine.log, "loader") == pytest.approx([LOADING] * ROUNDS)
    slow = live.Figures.of(as_executed(live._config("async", 1, 0, ROUNDS)), simulated("async", 1))
    assert slow.seconds > LOADING


def test_what_slows_whom_down_is_found_again(machine: live.Machine) -> None:
    """The four draw other durations of the same distribution."""
    alone = live.fitted(machine, "interference", simulated("async", 1, interference=0.5), 1, ROUNDS)
    assert 0.35 < alone.interference < 0.65 and alone.contention == 0.0
    crowded = simulated("async", 4, contention=0.5, interference=0.5)
    found = live.fitted(alone, "contention", crowded, 4, ROUNDS)
    assert 0.35 < found.contention < 0.65 and found.interference == alone.interference


def test_the_table_has_errors_with_intervals() -> None:
    config = as_executed(live._config("stellaris", 2, 0, ROUNDS))
    real = [live.Figures.of(config, simulated("stellaris", 2))] * 3
    foretold = [one._replace(seconds=2 * one.seconds) for one in real]
    row = live._row("stellaris", 2, real, foretold)
    assert row["seconds"]["error"] == pytest.approx(1.0) and row["seconds"]["error_ci95"] == pytest.approx(0.0)
    assert row["staleness"]["error"] == 0.0
    (shown,) = live.rows({"rows": [row]})
    assert shown["seconds"].endswith("(+100%)") and shown["rule"] == "stellaris"


def test_speeds_are_medians_and_ratios_of_equal_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    measured = {"live": [10.0, 30.0, 20.0], "compiled": [100.0, 100.0, 50.0]}
    monkeypatch.setattr(live, "speed", lambda way, learners, rounds, seed: measured[way][seed])
    result = live.speeds(4, 2, 3)
    assert result["steps_per_second"] == {"live": 20.0, "compiled": 100.0}
    assert (result["learners"], result["ratio"]) == (4, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("way", live.WAYS)
def test_speeds_are_measured(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(live, "JOB", (*live.JOB, "algorithm.rollout_length=8", "network.hidden=[8]"))
    assert live.speed(way, 2, 2, 0) > 0
