"""Forward passes of truncation, and how many a table of log-probabilities would save."""

from __future__ import annotations

from collections import defaultdict

import pytest

from benchmarks.engine import policy_passes
from stellaris_jax import Trainer, load_config

JOB = (
    "env=gymnax/cartpole", "env.num_envs=8", "algorithm.rollout_length=8", "algorithm.epochs=8",
    "algorithm.minibatches=2", "network.hidden=[4]", "system=stellaris", "system.rule_options.decay=1",
    "engine.chunk_rounds=4", "total_steps=1e6", "num_seeds=2", "engine.members=apart",
)  # fmt: skip


@pytest.mark.usefixtures("shared_programs")
def test_passes_are_those_of_the_plan() -> None:
    """Counted here of the arrays that the engine executes, there of the timeline."""
    trainer = Trainer(load_config([*JOB]))
    counted = policy_passes(trainer)
    whole, gradients = trainer.spec.minibatch_layout.minibatches, 0
    direct = table = 0
    for plan in trainer.executor.planner.next().plans:
        peers, used = plan.invocations.peers, plan.weights[:, 0, 0] > 0
        gradients += int(used.sum())
        for begin, end in plan.bounds:
            passes: dict[int, int] = defaultdict(int)
            for wave in range(begin, end):
                for slot in peers.slots[wave, 0, 0, : peers.number[wave, 0, 0]]:
                    passes[int(slot)] += 1
            direct += sum(passes.values())
            table += sum(min(times, whole) for times in passes.values())
    assert counted == {"direct": direct / gradients, "table": table / gradients}
    assert 0 < counted["table"] < counted["direct"]
