"""Programs for accelerators compute what those for CPUs do: their forms, traced and run on a CPU."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from stellaris_jax.engine import prepare
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.trainer import Trainer

COMMON = [
    "env=gymnax/cartpole",
    "env.num_envs=8",
    "algorithm.rollout_length=16",
    "algorithm.epochs=2",
    "algorithm.minibatches=4",
    "network.hidden=[16]",
    "total_steps=1e6",
    "evaluation.points=0",
    "engine.chunk_rounds=2",
]


def parameters(overrides: list[str]) -> np.ndarray:
    trainer = Trainer(load_config([*COMMON, *overrides]))
    trainer.step()
    return np.asarray(trainer.state.params)


@pytest.mark.parametrize(
    "overrides",
    [
        ["system=stellaris"],
        ["system=stellaris", "network.memory=gru"],
        ["system=stellaris", "engine.lanes=4", "algorithm.masks=[icepop]"],
        ["env=gymnax/spaceinvaders_minatar", "system=central"],
        [
            "system=async",
            "system.actors=independent",
            "system.actor_shards=4",
            "network.memory=lstm",
            "algorithm.loss_mean=constant",
        ],
    ],
    ids=["peers", "memory", "lanes", "images", "independent"],
)
def test_forms_agree(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = parameters(overrides)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    np.testing.assert_allclose(parameters(overrides), on_cpu, rtol=2e-4, atol=2e-6)


def test_critics_see_larger_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole fragment at once where a CPU would take it in parts."""
    widths: list[int] = []

    class Network:
        def value(self, tree: dict[str, object], obs: jax.Array) -> jax.Array:
            widths.append(obs.shape[0])
            return obs[..., 0]

    obs = np.ones((64, 256, 3), np.float32)
    for platform in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda platform=platform: platform)
        values = prepare.values(Network(), {}, jax.numpy.asarray(obs))  # type: ignore[arg-type]
        np.testing.assert_array_equal(values, obs[..., 0])
    assert len(widths) == 2
