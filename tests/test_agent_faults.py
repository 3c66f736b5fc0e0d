"""What plug-ins of agents get wrong is told in a sentence: declarations, terms of losses, optimizers, own memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from registries import forgetting
from training import steps, tiny

from stellaris_jax import ActorCritic, Algorithm, ConfigError, Optimizer, Trainer, load_policy, register
from stellaris_jax.agent.losses.common import LossInputs, total
from stellaris_jax.agent.networks.distributions import Categorical
from stellaris_jax.execute.run import train

PLAIN = ["algorithm.name=test/own", "system.truncation=none", "algorithm.kl_coefficient=0", steps(1)]


@pytest.fixture(autouse=True)
def kinds() -> Iterator[None]:
    """Registries that forget what a test enters."""
    with forgetting("policy", "algorithm", "optimizer"):
        yield


def algorithm(**attributes: Any) -> None:
    """Registered policy gradient with other attributes."""

    def loss(self: Any, inputs: LossInputs) -> Any:
        return total({"policy_loss": -inputs.batch.advantage * inputs.log_prob}, inputs)

    body = {"metrics": {"policy_loss": "loss of the policy"}, "loss": loss, **attributes}
    register.algorithm("test/own")(type("Own", (Algorithm,), body))


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"advantage": "gea"}, r"Own\.advantage must be one of own, none, gae"),
        ({"truncations": "none"}, r"Own\.truncations must be a tuple of texts, not 'none'"),
        ({"needs": "value"}, r"Own\.needs must be a tuple of texts"),
        ({"needs": None}, r"Own\.needs must be a tuple of texts"),
        ({"metrics": None}, r"Own\.metrics must be descriptions by name"),
        ({"metrics": {"ratio": "pi / mu"}}, r"Own\.metrics cannot have 'ratio'"),
        ({"metrics": {"env_steps": "steps"}}, r"Own\.metrics cannot have 'env_steps'"),
        ({"metrics": {"kind": "kind"}}, r"Own\.metrics cannot have 'kind'"),
        ({"metrics": {"a loss": "loss"}}, r"Own\.metrics cannot have 'a loss'"),
    ],
)
def test_declarations_are_checked(attributes: dict[str, Any], told: str) -> None:
    algorithm(**attributes)
    with pytest.raises(ConfigError, match=told):
        tiny(*PLAIN)


def terms(make: Any) -> Any:
    return lambda self, inputs: total({"policy_loss": make(inputs)}, inputs)


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (
            terms(lambda inputs: jnp.float32(0.0)),
            r"policy_loss has the shape \[\], not one number for each sample",
        ),
        (terms(lambda inputs: inputs.log_prob[:-1]), "term policy_loss has the shape"),
        (terms(lambda inputs: inputs.log_prob[:, None] * inputs.log_prob), "term policy_loss has the shape"),
        (
            lambda self, inputs: total({"policy_loss": inputs.log_prob}, inputs, jnp.zeros(3)),
            r"term advantage has the shape \[3\]",
        ),
        (lambda self, inputs: None, r"Own\.loss .* returns 'NoneType', not a loss and its metrics by name"),
        (lambda self, inputs: jnp.mean(inputs.log_prob), "not a loss and its metrics by name"),
        (
            lambda self, inputs: (jnp.mean(inputs.log_prob), {"policy_loss": inputs.log_prob}),
            r"Own\.loss .* returns policy_loss as .*, not as one number",
        ),
        (lambda self, inputs: (jnp.mean(inputs.log_prob), {"policy_loss": None}), "returns policy_loss as None"),
    ],
    ids=["scalar", "short", "square", "advantage", "none", "bare", "vector", "no number"],
)
def test_what_a_loss_returns_is_checked(loss: Any, told: str) -> None:
    algorithm(loss=loss)
    with pytest.raises(ConfigError, match=told):
        Trainer(tiny(*PLAIN)).run()


@pytest.mark.parametrize(
    ("transformation", "told"),
    [
        (lambda self, hyper: None, "cannot be traced by JAX"),
        (
            lambda self, hyper: optax.GradientTransformation(lambda params: (), lambda g, s, p=None: (g[:-1], s)),
            "returns a step of",
        ),
        (
            lambda self, hyper: optax.GradientTransformation(lambda params: (), lambda g, s, p=None: (g, g)),
            "returns a state of",
        ),
    ],
    ids=["none", "step", "state"],
)
def test_what_an_optimizer_returns_is_checked(transformation: Any, told: str) -> None:
    register.optimizer("test/own")(type("Own", (Optimizer,), {"transformation": transformation}))
    with pytest.raises(ConfigError, match=rf"algorithm\.optimizer=test/own .*{told}"):
        Trainer(tiny("algorithm.optimizer=test/own", steps(1)))


def test_a_fractional_optimizer_without_its_method_is_told() -> None:
    body = {"aggregations": ("fractional",), "transformation": lambda self, hyper: optax.sgd(1.0)}
    register.optimizer("test/own")(type("Own", (Optimizer,), body))
    with pytest.raises(ConfigError, match=r"algorithm\.optimizer=test/own .*cannot be traced"):
        Trainer(tiny("algorithm.optimizer=test/own", "system.aggregation=fractional", steps(1)))


@pytest.mark.parametrize("aggregation", ["factored", "sequential"])
def test_steps_that_are_not_finite_reach_no_parameters(aggregation: str) -> None:
    """The second step is not: it is left out, counted, and forgotten."""

    def transformation(self: Any, hyper: Any) -> optax.GradientTransformation:
        def update(gradient: jax.Array, count: jax.Array, params: Any = None) -> Any:
            return jnp.where(count == 1, jnp.nan, -0.01 * jnp.sign(gradient)), count + 1

        return optax.GradientTransformation(lambda params: jnp.int32(0), update)  # type: ignore[arg-type]

    register.optimizer("test/own")(type("Own", (Optimizer,), {"transformation": transformation}))
    own = ["algorithm.optimizer=test/own", f"system.aggregation={aggregation}", "system=allreduce"]
    trainer = Trainer(tiny(*own, "system.actors=barrier", steps(3)))
    before = np.asarray(trainer.state.params)
    record = trainer.run()[-1]
    after = np.asarray(trainer.state.params)
    assert np.isfinite(after).all() and not np.array_equal(before, after)
    assert record["nonfinite_gradients"] > 1  # after the first of them every step is the second again


# Memory of a policy's own --------------------------------------------------------------------------------------------


class Counting(ActorCritic):
    """Actor-critic that adds the mean of earlier observations to the present one."""

    recurrent = True

    def initial_carry(self, number: int) -> Any:
        return jnp.zeros((number, *self.observation_space.shape))

    def act(self, tree: Any, obs: jax.Array, carry: Any) -> Any:
        carry = 0.9 * carry + obs
        return self.policy_of(tree, carry), carry

    def policy_of(self, tree: Any, seen: jax.Array) -> jax.Array:
        return ActorCritic.policy(self, tree, seen)

    def seen(self, obs: jax.Array, past: Any) -> jax.Array:
        number = jax.tree.leaves(past.carry)[0].shape[0]

        def step(carry: Any, x: Any) -> Any:
            obs, first = x
            carry = 0.9 * jnp.where(first[:, None], 0.0, carry) + obs
            return carry, carry

        in_time = (obs.reshape(-1, number, obs.shape[-1]), past.first.reshape(-1, number))
        return jax.lax.scan(step, past.carry, in_time)[1].reshape(obs.shape)

    def policy(self, tree: Any, obs: jax.Array, past: Any = None) -> jax.Array:
        return self.policy_of(tree, self.seen(obs, past))

    def evaluate(self, tree: Any, obs: jax.Array, past: Any = None) -> Any:
        seen = self.seen(obs, past)
        return {"distribution": self.policy_of(tree, seen), "value": ActorCritic.value(self, tree, seen)}

    def value_step(self, tree: Any, obs: jax.Array, carry: Any) -> Any:
        carry = 0.9 * carry + obs
        return ActorCritic.value(self, tree, carry), carry


def test_memory_of_its_own_learns_from_sequences() -> None:
    """On policy, the learner's probabilities are those of the rollout."""

    def __init__(self: Any, *arguments: Any) -> None:
        ActorCritic.__init__(self, *arguments)
        self.recurrent = True

    register.policy("test/counting")(type("Own", (Counting,), {"__init__": __init__}))
    quiet = ["network.policy=test/counting", "system=allreduce", "algorithm.learning_rate=1e-30"]
    trainer = Trainer(tiny(*quiet, "system.actors=barrier", "algorithm.kl_coefficient=0", steps(2)))
    assert trainer.spec.recurrent and trainer.spec.sequences
    assert trainer.run()[-1]["tv"] < 1e-5
    with pytest.raises(ConfigError, match=r"minibatches=16 must divide env\.num_envs=8"):
        tiny("network.policy=test/counting", "algorithm.minibatches=16")


def test_a_distribution_may_hold_arrays() -> None:
    class Scaled(Categorical):
        def __init__(self, n: int):
            super().__init__(n)
            self.scale = jnp.full(n, 2.0)

        def log_prob(self, parameters: jax.Array, action: jax.Array) -> jax.Array:
            return super().log_prob(parameters * self.scale / 2.0, action)

    made = cached_property(lambda self: Scaled(self.action_space.n))
    made.__set_name__(ActorCritic, "distribution")
    register.policy("test/scaled")(type("Own", (ActorCritic,), {"distribution": made}))
    assert np.isfinite(Trainer(tiny("network.policy=test/scaled", "system.actors=barrier", steps(1))).run()[-1]["kl"])


def test_outputs_of_one_observation(tmp_path: Any) -> None:
    train(tiny(steps(1), f"run.dir={tmp_path / 'run'}", "env.normalize_observation=false", "system.actors=barrier"))
    policy = load_policy(tmp_path / "run")
    one, batch = policy.outputs([0.0, 0.1, 0.0, 0.1]), policy.outputs(np.float32([[0.0, 0.1, 0.0, 0.1]]))
    assert one.distribution.shape == (2,) and one.value.shape == ()
    np.testing.assert_allclose(one.distribution, batch.distribution[0], atol=1e-6)
