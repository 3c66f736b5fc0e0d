"""Choices whose durations a short live run measures first."""

from __future__ import annotations

from pathlib import Path

import pytest

from stellaris_jax import ConfigError
from stellaris_jax.many.choose.measuring import ROUNDS, measure
from stellaris_jax.timeline import trace
from stellaris_jax.timeline.joblog import durations

TINY = ["env=gymnax/cartpole", "env.num_envs=4", "algorithm.rollout_length=16", "algorithm.minibatches=2",
        "algorithm.epochs=1", "network.hidden=[4]", "system.learners=2", "live.pool=threads"]  # fmt: skip


def test_a_short_live_run_is_a_log_of_durations(tmp_path: Path) -> None:
    measure(tmp_path / "live", TINY)
    assert len(list(trace.read(tmp_path / "live" / trace.NAME).rounds)) == ROUNDS
    assert min(durations(tmp_path / "live", "learner")) > 0.0


def test_what_cannot_run_live_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engine"):
        measure(tmp_path / "live", [*TINY, "engine.devices=2"])
    assert not (tmp_path / "live").exists()
