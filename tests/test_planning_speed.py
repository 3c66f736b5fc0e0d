"""Shortcuts of planning change nothing that rules and policies see; its benchmark names the parts that it measures."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scenarios import advance, simulate, used

from benchmarks import main
from benchmarks.plan import JOBS, PARTS, measure
from stellaris_jax.base.registry import register
from stellaris_jax.execute.loading import load_config
from stellaris_jax.timeline.rules import AllReduce, Async, Rule
from stellaris_jax.timeline.view import View

LEARNERS = 8


@contextmanager
def registered(rule: type[Rule], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The rule under a name of its own, for as long as the test takes."""
    with monkeypatch.context() as patches:
        patches.setitem(register.rule._entries, "mine", rule)
        yield "mine"


def test_a_learner_that_all_reduce_refuses_is_asked_about_once_per_version(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = simulate("allreduce", gradients=LEARNERS * 8)
    decisions: list[tuple[int, int, bool]] = []
    may_start = timeline.coordinator.rule.may_start

    def watched(learner: int, view: View) -> bool:
        decisions.append((learner, view.clock, may_start(learner, view)))
        return decisions[-1][-1]

    monkeypatch.setattr(timeline.coordinator.rule, "may_start", watched)
    advance(timeline, 3)
    refused = [(learner, clock) for learner, clock, started in decisions if not started]
    assert refused and len(set(refused)) == len(refused)


def test_whoever_overrides_may_start_of_all_reduce_is_asked_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal may end at the next delivery, independently of its base rule."""

    class Impatient(AllReduce):
        def may_start(self, learner: int, view: View) -> bool:
            return super().may_start(learner, view) and len(view.running) < 2

    with registered(Impatient, monkeypatch) as name:
        records = advance(simulate(name, gradients=LEARNERS * 4), 2)
    assert {len(group.gradients) for record in records for group in record.groups} == {LEARNERS}


def test_the_staleness_that_a_rule_was_told_is_its_own() -> None:
    timeline = simulate("softsync", c=4)
    rule, given, copies = timeline.coordinator.rule, [], []

    def ready(staleness: Sequence[int], view: View) -> bool:
        given.append(staleness)
        copies.append(list(staleness))
        return len(staleness) >= 4

    rule.ready = ready  # type: ignore[method-assign]
    advance(timeline, 3)
    assert [list(staleness) for staleness in given] == copies and len({id(staleness) for staleness in given}) > 1


def test_a_hook_that_is_no_method_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(Async):
        def __init__(self, options: Any = None):
            super().__init__(options)
            self.may_start = lambda learner, view: learner % 2 == 1  # type: ignore[method-assign]

        FIXED = ("may_start",)

    with registered(Odd, monkeypatch) as name:
        assert {gradient.learner % 2 for gradient in used(advance(simulate(name), 2))} == {1}


@pytest.mark.parametrize("job", JOBS)
def test_jobs_of_the_benchmark_are_configurations(job: str) -> None:
    load_config(JOBS[job])


def test_the_benchmark_tells_where_the_time_of_planning_goes() -> None:
    figures = measure("system=stellaris", 0.0)
    spent = figures["microseconds"]
    assert list(spent) == [*PARTS, "plan"] and min(spent.values()) > 0.0
    assert sum(spent.values()) == pytest.approx(1e6 / figures["gradients_per_second"])


def test_the_benchmark_writes_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.csv"
    main.main(["plan", "--jobs", "system=central", "--repeats", "1", "--seconds", "1", "--csv", str(file)])
    (row,) = csv.DictReader(file.open(encoding="utf-8"))
    assert row["job"] == "system=central" and float(row["gradients/s"]) > 0
    assert row["gradients/s"] in capsys.readouterr().out
