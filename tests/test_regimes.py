"""Timelines of regimes: closed forms of constant durations, the kept file, speed and fronts on planted figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.regimes import timelines as kept
from studies.regimes.cells import (
    AGGREGATION,
    CELLS,
    COLLECTING,
    CONSTANT,
    FAST,
    GRADIENTS,
    LEARNERS,
    RULES,
    WARM,
    Cell,
    Regime,
)
from studies.regimes.figures import COMPARED, SYNCHRONOUS, System, front, speedups
from studies.regimes.timelines import Timed, simulate, timelines

EVEN = Regime(1 / 16, CONSTANT, 0.0, WARM)


@pytest.mark.parametrize("learners", [1, 8, 64])
def test_all_reduce_waits_for_all(learners: int) -> None:
    """Rollout, then as many steps as there are gradients for each learner, and an aggregation after each."""
    found = simulate(Cell(EVEN, learners, "all-reduce", "barrier"))
    steps = GRADIENTS / learners
    expected = GRADIENTS / 16 + steps * (1.0 + AGGREGATION)
    assert found.seconds == pytest.approx([expected] * 5)
    assert found.busy == pytest.approx([GRADIENTS + 8 * GRADIENTS / 16] * 5)
    assert found.mean("updates") == steps and found.mean("staleness") == 0.0


@pytest.mark.parametrize("learners", [8, 64])
def test_one_fast_learner_has_all_of_the_hardware(learners: int) -> None:
    """Each gradient takes the share of one function among all, and none a parameter function; the pay is the same."""
    found = simulate(Cell(EVEN, learners, FAST, "barrier"))
    assert found.mean("seconds") == pytest.approx(GRADIENTS / 16 + GRADIENTS / learners)
    assert found.mean("busy") == pytest.approx(GRADIENTS + 8 * GRADIENTS / 16)


def test_independent_actors_hide_rollouts() -> None:
    """Where learning takes longer than collecting, a batch takes as long as learning."""
    found = simulate(Cell(EVEN, 4, "all-reduce", "independent"))
    assert found.mean("seconds") == pytest.approx(GRADIENTS / 4 * (1.0 + AGGREGATION), rel=1e-3)


def test_every_cell_has_a_configuration() -> None:
    for rule in RULES:
        for actors in COLLECTING:
            for learners in (1, 64):
                simulate(Cell(Regime(1.0, "Pareto", 0.05, "cold"), learners, rule, actors))


def test_cold_starts_and_failures_cost_time() -> None:
    cell = Cell(EVEN, 8, "all-reduce", "barrier")
    warm = simulate(cell).mean("seconds")
    slow = EVEN._replace(ratio=1.0)
    assert simulate(cell._replace(regime=EVEN._replace(failure=0.05))).mean("seconds") > warm
    idle = [simulate(cell._replace(regime=slow._replace(start=start))).mean("seconds") for start in ("warm", "cold")]
    assert idle[1] == pytest.approx(idle[0] + 10.0), "learners idle through every rollout"


def test_what_is_kept_is_not_simulated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [Cell(EVEN, learners, "async", "pipelined") for learners in (2, 4)]
    first = timelines(cells[:1], tmp_path, print)
    both = timelines(cells, tmp_path, print)
    assert both[cells[0]].seconds == pytest.approx(first[cells[0]].seconds, rel=1e-4)

    def never(cell: Cell) -> Timed:
        raise AssertionError(cell)

    monkeypatch.setattr(kept, "simulate", never)
    assert timelines(cells, tmp_path, print) == both


def test_speed_and_fronts() -> None:
    """One system is fast and stale, one slow and fresh, and the others are dominated by both."""
    quick = System("async", "independent")

    def made(cell: Cell) -> Timed:
        seconds, lag = {SYNCHRONOUS: (10.0, 1.0), quick: (5.0, 8.0)}.get(System(cell.rule, cell.actors), (11.0, 9.0))
        ones = (1.0,) * 5
        return Timed(cell, (seconds,) * 5, ones, ones, ones, (0.0,) * 5, (lag,) * 5, ones)

    timed = {cell: made(cell) for cell in CELLS if cell.regime == EVEN}
    assert front(timed, EVEN, 8) == {SYNCHRONOUS, quick}
    assert speedups(timed, EVEN, quick).tolist() == [[2.0] * 5] * len(LEARNERS)
    assert speedups(timed, EVEN, COMPARED["asynchronous learners"])[0, 0] == pytest.approx(10 / 11)
