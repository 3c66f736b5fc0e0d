"""Dynamic sampling: groups of equal returns never become part of a batch, in simulated runs that repeat to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from stellaris_jax import load_config
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.execute import stretches
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.runs.checkpoint import Checkpoints

pytestmark = pytest.mark.usefixtures("shared_programs")

GROUPS = 4
SMALL = ("env=tokens/sort", "env.kwargs.length=2", "algorithm.rollout_length=3", f"env.num_envs={8 * GROUPS}",
         "network.options.layers=1", "network.options.width=16", "algorithm.minibatches=1", "algorithm.epochs=1",
         "warm_start.updates=120", f"total_steps={6 * 8 * GROUPS * 3}", "system=sync", "system.learners=1",
         "system.actors=independent", f"system.actor_shards={GROUPS}", "system.data_admission=ready_first",
         "delays.by=episodes", "evaluation.points=0")  # fmt: skip


def trainer_of(*overrides: str) -> Trainer:
    return Trainer(load_config([*SMALL, *overrides]))


def params(trainer: Trainer) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(trainer.state.params)])


def test_batches_have_no_group_of_equal_returns() -> None:
    plain = trainer_of().run()
    assert any(record["equal_groups"] > 0.0 for record in plain), "the task has such groups"
    assert "fragments_equal_share" not in plain[0]
    sampled = trainer_of("system.dynamic_sampling=10")
    records = sampled.run()
    assert all(record["equal_groups"] == 0.0 for record in records)
    assert sum(record["fragments_equal_share"] for record in records) > 0.0
    assert records[-1]["fragments_dropped"] > 0
    assert records[-1]["learned_steps"] == 6 * 8 * GROUPS * 3


def test_groups_that_share_a_shard_are_dropped_together() -> None:
    """A fragment with one group that teaches is kept, and all of its other groups."""
    records = trainer_of("system.dynamic_sampling=10", "system.actor_shards=2").run()
    assert any(0.0 < record["equal_groups"] < 1.0 for record in records)


def test_what_is_dropped_is_what_the_returns_say(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[np.ndarray, bool]] = []

    def spy(returns: np.ndarray, group: int) -> bool:
        assert group == 8
        seen.append((returns, all(value == returns[0] for value in returns)))
        return seen[-1][1]

    monkeypatch.setattr(stretches, "are_equal", spy)
    trainer = trainer_of("system.dynamic_sampling=10", "system.sync_steps=1")
    records = trainer.run()
    assert {float(value) for returns, _ in seen for value in returns} <= {0.0, 1.0}, "episodes are right or wrong"
    assert 0 < records[-1]["fragments_dropped"] <= sum(equal for _, equal in seen)
    assert all(record["equal_groups"] == 0.0 for record in records)


def test_runs_continue_to_the_bit(tmp_path: Path) -> None:
    settings = ("system.dynamic_sampling=10", "system.data_admission_options.eta=3")
    whole, first, second = (trainer_of(*settings) for _ in range(3))
    records = whole.run()
    first.run(2)
    checkpoints = Checkpoints(tmp_path, keep=1)
    first.save(checkpoints)
    checkpoints.wait()
    second.restore(checkpoints)
    checkpoints.close()
    resumed = second.run()
    names = ("simulated_seconds", "fragments_dropped", "fragments_equal_share", "grad_norm")
    assert [[row[name] for name in names] for row in resumed] == [[row[name] for name in names] for row in records[2:]]
    np.testing.assert_array_equal(params(second), params(whole))
    states = [json.loads(json.dumps(trainer.schedule.timelines[0].state())) for trainer in (whole, second)]
    assert states[0]["free"] == states[1]["free"] if "free" in states[0] else states[0] == states[1]


def test_a_policy_that_has_nothing_left_to_learn_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches' worth of fragments are dropped for each batch; then they are kept, whatever their returns."""
    monkeypatch.setattr(stretches, "are_equal", lambda returns, group: True)
    trainer = trainer_of("system.dynamic_sampling=2")
    records = trainer.run()
    assert [record["fragments_dropped"] for record in records] == [2 * GROUPS * (index + 1) for index in range(6)]
    assert records[-1]["learned_steps"] == 6 * 8 * GROUPS * 3


def test_a_shard_is_a_group_by_default() -> None:
    for envs, group in ((64, 8), (64, 4)):
        settings = [f"env.num_envs={envs}", f"env.kwargs.group={group}", "system.actor_shards=0"]
        overrides = [*SMALL, *settings, f"total_steps={6 * envs * 3}"]
        assert load_config([*overrides, "system.dynamic_sampling=1"]).actor_shards == envs // group
        assert load_config(overrides).actor_shards == 8


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["delays.by=steps"], "needs delays.by=episodes, not steps"),
        (["algorithm=ppo", "algorithm.advantage=nstep"], "algorithm.advantage=nstep does not have"),
        (["system.data_admission=fixed"], "system.data_admission=fixed"),
        (["env.clip_reward=true"], "env.clip_reward=true"),
        (["system.actor_shards=8"], "whole groups of 8 environments .* not 4"),
        (
            ["system.actors=barrier", "system.actor_shards=0", "delays.by=steps", "system.data_admission=fifo"],
            "system.dynamic_sampling",
        ),
    ],
)
def test_runs_that_cannot_sample_dynamically_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config([*SMALL, "system.dynamic_sampling=10", *overrides])
