"""Work of each device: it falls with their number, for collection and critic as for gradients."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest

from stellaris_jax.engine.state import EngineInputs
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.simulated import planner_of
from stellaris_jax.execute.trainer import Trainer

JOB = (
    "env=gymnax/pendulum", "system=allreduce", "system.learners=8", "system.truncation=none", "env.num_envs=16",
    "algorithm.rollout_length=8", "algorithm.epochs=1", "algorithm.minibatches=8", "network.hidden=[32]",
    "total_steps=128_000", "evaluation.points=0", "engine.chunk_rounds=2",
)  # fmt: skip


def multiplications(jaxpr: Any, turns: list[float]) -> float:
    """Multiplications of a program's matrix products; loops of value length have so many turns, outer ones first."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, (out,) = equation.invars[0].aval, equation.outvars
            total += math.prod(out.aval.shape) * math.prod(left.shape[axis] for axis in contracted)
        elif equation.primitive.name == "while":
            total += turns[0] * multiplications(equation.params["body_jaxpr"].jaxpr, turns[1:])
        elif equation.primitive.name == "cond":
            total += max(multiplications(branch.jaxpr, turns) for branch in equation.params["branches"])
        else:
            length = equation.params["length"] if equation.primitive.name == "scan" else 1
            for part in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
                part = getattr(part, "jaxpr", part)
                total += length * multiplications(part, turns) if hasattr(part, "eqns") else 0.0
    return total


def work(devices: int, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> float:
    """Multiplications of each device in a round."""
    trainer = Trainer(load_config([*JOB, f"engine.devices={devices}", *overrides]))
    plan = planner_of(trainer.executor).next().plans[0]
    inputs = EngineInputs(trainer.engine.layout.shapes(), trainer.seed_states.hyper, plan, None, None)
    monkeypatch.setattr(jax.stages.Traced, "lower", lambda traced, **_: traced)
    traced: Any = trainer.engine.lower(inputs)
    return multiplications(traced.jaxpr.jaxpr, [1.0, float(np.mean([plan.waves(r) for r in range(2)]))])


@pytest.mark.parametrize("normalised", ["false", "true"])
def test_each_device_does_its_share(normalised: str, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = (f"env.normalize_observation={normalised}",)
    one, *others = (work(devices, monkeypatch, *overrides) for devices in (1, 2, 4))
    assert [one / other for other in others] == [2.0, 4.0]


def test_results_are_the_same() -> None:
    fewer = ("total_steps=512", "env.normalize_observation=true", "env.normalize_reward=true")
    one, four = (Trainer(load_config([*JOB, f"engine.devices={n}", *fewer])).run() for n in (1, 4))
    for ours, theirs in zip(one, four, strict=True):
        for name in ("value_loss", "entropy", "grad_norm", "update_norm"):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, err_msg=name)
