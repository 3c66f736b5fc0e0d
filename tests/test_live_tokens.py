"""Live runs of token tasks: the engine repeats what actors generated, whatever share of a group each had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from live_runs import left, lived, params, replayed, shared_parts  # noqa: F401

from stellaris_jax import load_config
from stellaris_jax.timeline import trace

pytestmark = pytest.mark.usefixtures("shared_programs", "shared_parts")

SMALL = ("env=tokens/sort", "env.kwargs.length=3", "algorithm.rollout_length=4", "env.num_envs=32",
         "network.options.layers=1", "network.options.width=16", "algorithm.minibatches=4", "algorithm.epochs=1",
         "warm_start.updates=0", "total_steps=640", "executor=live", "system.learners=3",
         "evaluation.points=0")  # fmt: skip
CASES = {
    # Two of three actors have parts of one group of eight.
    "barrier": ("system=async", "system.actors=barrier", "live.actors=3"),
    "independent": ("system=async", "system.actors=independent", "system.actor_shards=4"),
    "within completions": ("system=async", "system.actors=independent", "system.actor_shards=2", "system.sync_steps=1",
                           "network.options.recompute=true"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_engine_repeats_a_live_run(case: str, tmp_path: Path) -> None:
    config = load_config([*SMALL, *CASES[case]])
    trainer = lived(config, deaths=0.2)
    directory = left(trainer, config, tmp_path)
    again = replayed(config, directory)
    assert len(list(trace.read(directory / trace.NAME).rounds)) == 5
    assert max(one.deviation for one in again.executor.deviations) < 1e-5
    np.testing.assert_allclose(params(again), params(trainer), atol=1e-5)
