"""What `benchmark.py live` computes, on timelines whose durations are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import live
from stellaris_jax.timeline import Round, Timeline, trace
from stellaris_jax.timeline.trace import Header, Roll, RoundTrace
from stellaris_jax.training.live import settled

ROUNDS = 12


def simulated(rule: str, learners: int, contention: float = 0.0) -> list[Round]:
    """Rounds with durations that are drawn, as if they had been lived through."""
    config = settled(live._config(rule, learners, 0, ROUNDS))
    values = {"executor": "simulated", "platform.contention": contention, **live.MEASURED}
    timeline = Timeline.of(config.replace(values), 0)
    return [timeline.next_round() for _ in range(ROUNDS)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The trace of one learner."""
    rounds = simulated("async", 1)
    rolls = [[Roll(actor, one.start, one.complete) for actor in range(2)] for one in rounds]
    lines = [RoundTrace(one, rolls=rolled) for one, rolled in zip(rounds, rolls, strict=True)]
    trace.write(tmp_path / trace.NAME, Header(0, 1), lines)
    return tmp_path


def test_what_was_lived_through_is_foretold(log: Path) -> None:
    config = live._config("async", 1, 0, ROUNDS)
    real = live.Figures.of(settled(config), simulated("async", 1))
    foretold = live.Figures.of(settled(config), live.foretell(config, log, 0.0, 0))
    # Actors' durations are as long as their rounds' collecting here, which is the longer of two.
    assert foretold == pytest.approx(real, rel=0.02)


def test_contention_is_found_again(log: Path) -> None:
    crowded = [simulated("async", 4, contention=0.5)]
    found = live.fitted(crowded, log, 4, ROUNDS)
    # The four draw other durations of the same distribution.
    assert 0.35 < found < 0.65


def test_the_table_has_errors_with_intervals(log: Path) -> None:
    config = settled(live._config("stellaris", 2, 0, ROUNDS))
    real = [live.Figures.of(config, simulated("stellaris", 2))] * 3
    foretold = [one._replace(seconds=2 * one.seconds) for one in real]
    row = live._row("stellaris", 2, real, foretold)
    assert row["seconds"]["error"] == pytest.approx(1.0) and row["seconds"]["error_ci95"] == pytest.approx(0.0)
    assert row["staleness"]["error"] == 0.0
    (shown,) = live.rows({"rows": [row]})
    assert shown["seconds"].endswith("(+100%)") and shown["rule"] == "stellaris"
