"""Curvature and gradient noise, measured on the device for scaling rules, against explicit Hessians and gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training import EACH, T, scalable

from stellaris_jax import Trainer
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import LossInputs
from stellaris_jax.engine import learner


def _batches(trainer: Trainer, count: int) -> list[Any]:
    state = jax.tree.map(lambda x: x[0], trainer.state)
    return [learner.minibatch(state.loader, jnp.int32(0), jnp.int32(j)) for j in range(count)]


def extremes(trainer: Trainer, mode: str, batches: list[Any]) -> np.ndarray:
    """The smallest and the largest eigenvalue of the explicit Hessian of the mean over minibatches."""
    hyper, coefficient = Hyper.of(trainer.config), trainer.state.kl_coefficient[0]
    if mode == "paper":
        hyper, coefficient = hyper._replace(value_coefficient=0.0, entropy_coefficient=0.0), 0.0

    def objective(params: jax.Array) -> jax.Array:
        network, kind, tree = trainer.network, trainer.spec.recipe, trainer.network.unravel(params)
        rest = (network.distribution, hyper, coefficient, trainer.spec.steps)
        losses = [learner.loss(network, kind, batch, partial(LossInputs, batch, *rest), tree)[0] for batch in batches]
        return (-1.0 if mode == "paper" else 1.0) * sum(losses) / len(losses)

    spectrum = np.linalg.eigvalsh(np.float64(jax.jit(jax.hessian(objective))(trainer.state.params[0])))
    assert np.abs(spectrum).max() > 1e-3
    return spectrum[[0, -1]]


EXACT = ("scaling=nitro", "network.hidden=[3]", "network.shared=true", "scaling.options={lanczos: 200, subsample: 2}")


@pytest.mark.parametrize("mode", ["paper", "artifact"])
def test_curvature_is_that_of_the_explicit_hessian(mode: str) -> None:
    trainer = Trainer(scalable(*EXACT, f"scaling.options.mode={mode}", "scaling.actors=7", rounds=1))
    record = trainer.run()[0]
    expected = extremes(trainer, mode, _batches(trainer, 2))
    np.testing.assert_allclose(record["per_seed"]["probe"][0], expected, atol=1e-4 * np.abs(expected).max())


# At 8 it is the newest version, as if there were none.
@pytest.mark.parametrize("interval", [pytest.param(8, marks=pytest.mark.slow), 16])
def test_curvature_sees_the_target_network(interval: int) -> None:
    """After 3 rounds of 8 versions it is version 24, the newest, or 16, that of two rounds."""
    settings = ("algorithm=impact", "system=central", "system.learners=1")
    target = f"algorithm.options.target_interval={interval}"
    trainer = Trainer(
        scalable(*EXACT, *settings, target, "scaling.options.mode=artifact", "scaling.minimum=8", rounds=3)
    )
    trainer.run(2)
    second = np.asarray(trainer.state.params[0])
    (record,) = trainer.run()
    assert trainer.state.version[0] == 24
    kept = trainer.state.params[0] if interval == 8 else jnp.asarray(second)
    batches = [learner.with_target(trainer.network, kept, batch) for batch in _batches(trainer, 2)]
    expected = extremes(trainer, "artifact", batches)
    np.testing.assert_allclose(record["per_seed"]["probe"][0], expected, atol=1e-4 * np.abs(expected).max())


def test_noise_is_that_of_halves_and_of_the_whole() -> None:
    trainer = Trainer(scalable("scaling=kungfu", "scaling.actors=7", rounds=1))
    small, big, small_size, big_size = trainer.run()[0]["per_seed"]["probe"][0]
    coefficient = trainer.state.kl_coefficient[0]
    batches = _batches(trainer, 4)

    @jax.jit
    def gradient_of(batch: Any) -> jax.Array:
        def objective(params: jax.Array) -> jax.Array:
            network, kind = trainer.network, trainer.spec.recipe
            steps, hyper = trainer.spec.steps, Hyper.of(trainer.config)
            inputs = partial(LossInputs, batch, network.distribution, hyper, coefficient, steps)
            return learner.loss(network, kind, batch, inputs, network.unravel(params))[0]

        return jax.grad(objective)(trainer.state.params[0])

    def gradient(batch: Any, valid: Any) -> np.ndarray:
        return np.float64(gradient_of(batch._replace(valid=jnp.asarray(valid))))

    squares, total, samples = [], 0.0, 0
    for batch in batches:
        valid = np.asarray(batch.valid)
        assert valid.sum() == 56  # 7 x 2 x 16 samples in 4 minibatches
        total = total + valid.sum() * gradient(batch, valid)
        samples += valid.sum()
        for half in range(2):
            squares.append(np.sum(gradient(batch, valid & (np.arange(len(valid)) % 2 == half)) ** 2))
    assert samples == big_size == 7 * EACH * T and small_size == 28
    assert small == pytest.approx(np.mean(squares), rel=1e-3)
    assert big == pytest.approx(np.sum((total / samples) ** 2), rel=1e-3)
