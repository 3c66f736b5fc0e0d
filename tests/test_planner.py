"""The planner and the source beneath a trainer: what is planned is executed once, whatever happens in between."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
import pytest

from stellaris_jax import Trainer, load_config

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
    assert json.dumps(broken.timeline_states) == json.dumps(whole.timeline_states)
    assert np.asarray(broken.state.params).tobytes() == np.asarray(whole.state.params).tobytes()


def test_planning_ahead_is_no_part_of_what_is_saved() -> None:
    """The timelines are ahead of the run by a chunk; what a checkpoint gets is where the run stands."""
    one = trainer()
    one.step()
    assert one.round == 2 and one.timelines[0].state() != one.timeline_states[0]
    saved = json.loads(json.dumps(one.host_state()))
    following = one.step()
    again = trainer()
    again.planner.restore(saved)
    assert again.round == 2
    chunk = again.planner.next
    assert [row[0].usage.seconds for row in chunk.rounds] == [r["simulated_seconds"] for r in following]


def test_what_depends_on_a_round_is_not_planned_before_it() -> None:
    adaptive = trainer("scaling=hydrozoa")
    adaptive.step()
    assert adaptive.round == 1 and adaptive.timelines[0].state() == adaptive.timeline_states[0]


def test_a_rehearsal_changes_nothing() -> None:
    one = trainer()
    before = jax.tree.map(np.asarray, one.state.params)
    run, _ = one.source.rehearsal(one.members)
    run()
    run()
    assert one.round == 0
    np.testing.assert_array_equal(before, one.state.params)
