"""Parts of agents that cannot go together: estimators of an algorithm's own, masks without advantages, memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from registries import forgetting
from training import TINY, steps, tiny

from stellaris_jax import Algorithm, ConfigError, PolicyObjective, Trainer, load_config, register
from stellaris_jax.agent.losses.common import LossInputs, Metrics, total
from stellaris_jax.agent.networks import PolicyNetwork


@pytest.fixture(autouse=True)
def kinds() -> Iterator[None]:
    """Registries that forget what a test enters."""
    with forgetting("policy", "algorithm"):
        yield


def objective(estimator: str) -> None:
    """Registered objective whose own estimator is this one."""

    class Plain(PolicyObjective):
        advantage = estimator

        def objective(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
            return ratio * inputs.batch.advantage

    register.algorithm("test/plain")(Plain)


def ratio_only() -> None:
    """Registered algorithm that has no advantages."""

    class Ratio(Algorithm):
        advantage = "none"
        metrics = {"policy_loss": "loss of the policy"}  # noqa: RUF012

        def loss(self, inputs: LossInputs) -> tuple[jax.Array, Metrics]:
            return total({"policy_loss": -jnp.exp(inputs.log_prob - inputs.batch.log_prob)}, inputs)

    register.algorithm("test/ratio")(Ratio)


def test_an_own_estimator_of_learners_gets_sequences() -> None:
    objective("vtrace")
    trainer = Trainer(tiny("algorithm.name=test/plain", steps(1)))
    assert trainer.spec.sequences and trainer.spec.minibatch_layout.length == 16
    with pytest.raises(ConfigError, match=r"minibatches=16 must divide env\.num_envs=8"):
        tiny("algorithm.name=test/plain", "algorithm.minibatches=16")


def test_conditions_of_an_own_estimator_hold() -> None:
    objective("group")
    with pytest.raises(ConfigError, match=r"size=8 must divide env\.num_envs=12"):
        tiny("algorithm.name=test/plain", "env.num_envs=12")


@pytest.mark.parametrize("mask", ["dppo", "opsm", "m2po_clip"])
def test_masks_that_read_advantages_need_some(mask: str) -> None:
    ratio_only()
    with pytest.raises(ConfigError, match="needs advantages, which this algorithm has not"):
        Trainer(
            tiny("algorithm.name=test/ratio", f"algorithm.masks=[{mask}]", "algorithm.kl_coefficient=0", steps(1))
        ).run()


def test_masks_of_ratios_alone_do_not() -> None:
    ratio_only()
    trainer = Trainer(
        tiny("algorithm.name=test/ratio", "algorithm.masks=[icepop,m2po]", "algorithm.kl_coefficient=0", steps(2))
    )
    assert trainer.run()[-1]["nonfinite_gradients"] == 0


def test_memory_that_a_policy_does_not_have_is_refused() -> None:
    class Forgetful(PolicyNetwork):
        def evaluate(self, *_: Any) -> Any: ...

    register.policy("test/forgetful")(Forgetful)
    with pytest.raises(ConfigError, match=r"network\.memory=gru changes nothing under network\.policy=test/forgetful"):
        load_config([*TINY, "network.policy=test/forgetful", "network.memory=gru"])
