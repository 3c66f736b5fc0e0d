"""The planner and the source beneath a trainer: what is planned is executed once, whatever happens in between."""

from __future__ import annotations

import json
import time
from threading import current_thread
from typing import Any

import jax
import numpy as np
import pytest
from training import assert_identical

from stellaris_jax import Trainer, load_config
from stellaris_jax.engine.seed_states import Running
from stellaris_jax.execute import planner as module
from stellaris_jax.execute.simulated import planner_of
from stellaris_jax.timeline import minibatch_order

JOB = (
    "env=gymnax/cartpole", "env.num_envs=8", "algorithm.rollout_length=8", "algorithm.epochs=1",
    "algorithm.minibatches=2", "network.hidden=[8]", "system=async", "system.learners=2", "system.versions=6",
    "total_steps=256", "engine.chunk_rounds=2", "evaluation.points=1",
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("shared_programs")


def trainer(*overrides: str) -> Trainer:
    return Trainer(load_config([*JOB, *overrides]))


def test_a_chunk_that_failed_is_the_next_one_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rounds have been simulated, and are not simulated again or left out."""
    whole, broken = trainer(), trainer()
    expected = whole.run()
    receive = broken.source.receive

    def fails(*_: Any) -> Any:
        raise RuntimeError("no data")

    monkeypatch.setattr(broken.source, "receive", fails)
    with pytest.raises(RuntimeError, match="no data"):
        broken.step()
    assert broken.round == 0 and broken.usages[0].gradients == 0
    monkeypatch.setattr(broken.source, "receive", receive)
    records = broken.run()
    assert [r["simulated_seconds"] for r in records] == [r["simulated_seconds"] for r in expected]
    assert json.dumps(broken.schedule.states) == json.dumps(whole.schedule.states)
    assert np.asarray(broken.state.params).tobytes() == np.asarray(whole.state.params).tobytes()


def test_a_measurement_that_fails_leaves_its_round_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkpoint may say that the round is over, since its record and its measurements are lost."""
    broken = trainer("scaling=nitro", "scaling.budget=1")

    def fails(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(broken.measurements, "take", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        broken.step()
    assert broken.round == 0 and broken.usages[0].gradients == 0


def test_planning_ahead_is_no_part_of_what_is_saved() -> None:
    """The timelines are ahead of the run by a chunk; what a checkpoint gets is where the run stands."""
    one = trainer()
    one.step()
    assert one.round == 2 and one.schedule.timelines[0].state() != one.schedule.states[0]
    saved = json.loads(json.dumps(one.metadata()))
    following = one.step()
    again = trainer()
    again.schedule.restore(saved)
    again.executor.restart()
    assert again.round == 2
    chunk = again.executor.planner.next()
    assert [row[0].usage.seconds for row in chunk.rounds] == [r["simulated_seconds"] for r in following]


def test_minibatches_drawn_by_threads_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    one = planner_of(trainer("num_seeds=2", "engine.members=together").executor)
    (alone,) = one.plan(0, 2).plans
    one.restart()
    drawn = []
    monkeypatch.setattr(module, "LARGE", 0)
    monkeypatch.setattr(module, "minibatch_order", lambda *key: drawn.append(current_thread()) or minibatch_order(*key))
    (together,) = one.plan(0, 2).plans
    assert len(drawn) == 4 and all(thread.name.startswith("minibatches") for thread in drawn)
    np.testing.assert_array_equal(alone.order, together.order)


def test_what_depends_on_a_round_is_not_planned_before_it() -> None:
    adaptive = trainer("scaling=hydrozoa")
    adaptive.step()
    assert adaptive.round == 1 and adaptive.schedule.timelines[0].state() == adaptive.schedule.states[0]


@pytest.mark.parametrize("lag", [1, 20, 40])
def test_all_chunks_have_one_shape(lag: int) -> None:
    """Actors that are many batches ahead roll them all at once when their version leaves the ring."""
    independent = ("system.actors=independent", "system.data_admission=fixed", "total_steps=1e6")
    job = trainer(*independent, "system=allreduce", f"system.data_admission_options.lag={lag}")
    planner = planner_of(job.executor)
    shapes = []
    for _ in range(lag + 4):
        shapes.append([leaf.shape for leaf in jax.tree.leaves([*planner.next().plans])])
        planner.executed()
    assert all(shape == shapes[0] for shape in shapes)


def test_a_rehearsal_changes_nothing() -> None:
    one = trainer()
    before = jax.tree.map(np.asarray, one.state.params)
    run, _ = one.source.timed_rollout(one.seed_states)
    run()
    run()
    assert one.round == 0
    np.testing.assert_array_equal(before, one.state.params)


def test_seconds_that_the_device_may_have_waited_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that comes after the chunk before it is over counts, and one that is there by then does not."""
    one = trainer()
    one.step()
    planner = planner_of(one.executor)
    before, plan_ahead = one.counters.planning_seconds, planner.plan_ahead

    def slowly(in_flight: list[int] | None) -> None:
        plan_ahead(in_flight)
        time.sleep(0.3)

    monkeypatch.setattr(planner, "plan_ahead", slowly)
    one.step()
    waited = one.counters.planning_seconds
    assert waited - before >= 0.3 and one.summary(None)["planning_seconds"] == waited
    monkeypatch.setattr(Running, "over", property(lambda running: False))
    one.step()
    assert one.counters.planning_seconds - waited < 0.3


# One chunk ahead ------------------------------------------------------------------------------------------------------

AHEAD = ("total_steps=1024", "evaluation.points=2", "num_seeds=2")
CLOCKS = ("wall_seconds", "steps_per_second")


def timeless(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key not in CLOCKS} for record in records]


@pytest.mark.parametrize("overrides", [(), ("engine.members=together",), ("system=stellaris", "system.learners=2")])
def test_a_chunk_that_is_begun_ahead_is_the_same(overrides: tuple[str, ...]) -> None:
    ahead, one_by_one = trainer(*AHEAD, *overrides), trainer(*AHEAD, *overrides)
    begun, records, expected = [], [], []
    while not ahead.finished:
        records += ahead.step(ahead=True)
        begun.append(ahead.under_way)
        if ahead.under_way:
            with pytest.raises(RuntimeError, match="finish that first"):
                ahead.evaluate()
    while not one_by_one.finished:
        expected += one_by_one.step()
    # Rounds 8 and 16, where chunks of two end, are evaluated.
    assert begun == [True, True, True, False] * 2
    assert json.dumps(timeless(records)) == json.dumps(timeless(expected))
    assert_identical(ahead, one_by_one)


@pytest.mark.parametrize("overrides", [("scaling.target=1000", "scaling.ends=true"), ("checkpoint.interval=2",)])
def test_nothing_is_begun_before_it_is_known(overrides: tuple[str, ...]) -> None:
    """How many actors a round has, or that its policies are wanted."""
    one = trainer(*AHEAD, *overrides)
    while not one.finished:
        one.step(ahead=True)
        assert not one.under_way


def test_a_run_to_a_round_ends_there() -> None:
    one = trainer(*AHEAD)
    assert len(one.run(4)) == 4 and not one.under_way and one.round == 4
    assert np.asarray(one.state.round).tolist() == [4, 4]
