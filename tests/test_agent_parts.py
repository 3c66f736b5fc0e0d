"""Parts of agents: policies without a critic, estimators of advantages, optimizers, metrics and own sample fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from registries import forgetting
from training import TINY, steps, tiny

from stellaris_jax import ConfigError, Trainer, load_config, register
from stellaris_jax.agent.advantages import GAE, Estimate, Group, NStep, VTrace
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses import Algorithm
from stellaris_jax.agent.losses.common import AdvantageInputs, LossInputs, Metrics, total
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.agent.optimizers import SGD, Optimizer, optimizer_of
from stellaris_jax.config.tree import Config

pytestmark = pytest.mark.usefixtures("shared_programs")
T, N = 7, 4
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture
def kinds() -> Iterator[None]:
    """Registries that forget what a test enters."""
    with forgetting("policy", "algorithm", "optimizer", "advantage"):
        yield


def drawn(seed: int, valid: bool = False, critic: bool = True) -> AdvantageInputs:
    """Random steps whose episodes end now and then."""
    random = np.random.default_rng(seed)
    reward, value, after = (jnp.float32(random.normal(size=(T, N))) for _ in range(3))
    terminated, truncated = (jnp.asarray(random.random((T, N)) < 0.2) for _ in range(2))
    mask = jnp.asarray(random.random((T, N)) < 0.8) if valid else None
    values = (value, after) if critic else (None, None)
    return AdvantageInputs(reward, *values, terminated, truncated, mask, None, gamma=0.9, gae_lambda=0.8)


# Estimators ----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(seeds, st.integers(1, 10), st.booleans())
def test_n_step_targets_are_sums_written_out(seed: int, n: int, valid: bool) -> None:
    data = drawn(seed, valid)
    advantage, target = NStep({"n": n}).estimate(data)
    reward, after, terminated = (np.asarray(x, float) for x in (data.reward, data.next_value, data.terminated))
    ends = np.asarray(data.ends)
    for t in range(T):
        for env in range(N):
            expected, factor = 0.0, 1.0
            for k in range(t, min(t + n, T)):
                expected += factor * reward[k, env]
                factor *= 0.9
                if k == t + n - 1 or k == T - 1 or ends[k, env]:
                    expected += factor * after[k, env] * (1.0 - terminated[k, env])
                    break
            assert float(target[t, env]) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(advantage, target - data.value, atol=1e-6)


def test_n_steps_beyond_the_fragment_are_gae_with_lambda_of_one() -> None:
    data = drawn(0)._replace(gae_lambda=1.0)
    inside = ~data.ends & (jnp.arange(T)[:, None] < T - 1)
    data = data._replace(next_value=jnp.where(inside, jnp.roll(data.value, -1, axis=0), data.next_value))
    long, full = NStep({"n": 100}).estimate(data), GAE().estimate(data)
    np.testing.assert_allclose(long.target, full.target, atol=1e-5)


@settings(deadline=None)
@given(seeds, st.booleans(), st.booleans())
def test_group_advantages_are_those_of_episodes_one_by_one(seed: int, valid: bool, scaled: bool) -> None:
    data = drawn(seed, valid, critic=False)
    found = np.asarray(Group({"size": 2, "scaled": scaled}).estimate(data).advantage)
    reward, counts = np.asarray(data.reward, float), np.ones((T, N), bool) if data.valid is None else data.valid
    ends = np.asarray(data.terminated | data.truncated)
    for first in range(0, N, 2):
        episodes = []  # (environment, its valid steps), cut at ends and at invalid steps
        for env in range(first, first + 2):
            steps_: list[int] = []
            for t in range(T):
                if counts[t, env]:
                    steps_.append(t)
                if steps_ and (ends[t, env] or not counts[t, env] or t == T - 1):
                    episodes.append((env, steps_, bool(counts[t, env])))
                    steps_ = []
        returns = [sum(reward[t, env] for t in steps_) for env, steps_, whole in episodes if whole]
        mean = sum(returns) / max(len(returns), 1)
        spread = math.sqrt(sum((x - mean) ** 2 for x in returns) / max(len(returns), 1) + 1e-8) if scaled else 1.0
        for env, steps_, whole in episodes:
            if whole:
                expected = (sum(reward[t, env] for t in steps_) - mean) / spread
                np.testing.assert_allclose(found[steps_, env], expected, rtol=1e-3, atol=2e-3)


def test_vtrace_on_policy_is_gae() -> None:
    data = drawn(3)
    ours, theirs = VTrace().estimate(data._replace(log_ratio=jnp.zeros((T, N)))), GAE().estimate(data)
    np.testing.assert_allclose(ours.target, theirs.target, atol=1e-5)


@pytest.mark.parametrize("overrides", [["algorithm.advantage=nstep"], ["algorithm.advantage=vtrace"]])
def test_ppo_learns_with_other_estimators(overrides: list[str]) -> None:
    trainer = Trainer(tiny("algorithm.minibatches=4", steps(3), *overrides))
    records = trainer.run()
    assert math.isfinite(records[-1]["value_loss"]) and records[-1]["nonfinite_gradients"] == 0


def test_learners_compute_vtrace_with_their_own_policy() -> None:
    """Without staleness the first gradient is that of GAE without standardising across the batch."""
    config = tiny("algorithm.advantage=vtrace", steps(1))
    assert Trainer(config).spec.sequences and Trainer(config).spec.recipe.made == ()


# Policies without a critic -------------------------------------------------------------------------------------------


def without_critic() -> type[ActorCritic]:
    """Registered policy that has no values."""

    @register.policy("test/actor")
    class Actor(ActorCritic):
        outputs = ("distribution",)

        def evaluate(self, tree: dict[str, Any], obs: jax.Array, past: Any = None) -> Mapping[str, jax.Array]:
            return {"distribution": self.policy(tree, obs, past)}

    return Actor


@pytest.mark.usefixtures("kinds")
def test_a_policy_without_a_critic_learns_from_groups() -> None:
    without_critic()
    config = tiny("network.policy=test/actor", "algorithm.advantage=group", steps(3))
    trainer = Trainer(config)
    record = trainer.run()[-1]
    assert "value_loss" not in record and math.isfinite(record["policy_loss"])
    samples = trainer.state.loader.fragments
    assert samples.value is None and samples.target is None and samples.advantage is not None


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([], "algorithm.name=ppo with gae needs the output value, which network.policy=test/actor does not compute"),
        (["algorithm.advantage=nstep"], "algorithm.advantage=nstep needs the output value"),
        (["algorithm=impala"], "algorithm.name=impala needs the output value"),
    ],
)
def test_what_needs_a_critic_says_so(overrides: list[str], told: str) -> None:
    without_critic()
    with pytest.raises(ConfigError) as raised:
        load_config([*TINY, "network.policy=test/actor", *overrides])
    assert told in str(raised.value) and "accepted: actor_critic" in str(raised.value)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["algorithm=impala", "algorithm.advantage=gae"],
            "algorithm.advantage=gae is not possible with algorithm.name",
        ),
        (["algorithm.advantage=none"], "needs advantages, which algorithm.advantage=none does not give"),
        (["algorithm.advantage=group", "algorithm.advantage_options.size=3"], "size=3 must divide env.num_envs=8"),
        (["algorithm.optimizer=sgd", "system.aggregation=fractional"], "system.aggregation=fractional is not possible"),
        (["algorithm.optimizer=sgd", "system.corrections=[less_momentum]"], "algorithm.optimizer=sgd does not use"),
        (["algorithm.optimizer=adan"], "algorithm.optimizer must be one of adam, sgd, rmsprop"),
        (["network.policy=actor"], "network.policy must be one of actor_critic"),
        (["algorithm.advantage_options.n=2"], "algorithm.advantage_options.n belongs to algorithm.advantage=nstep"),
    ],
)
def test_combinations_that_cannot_be_are_refused(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config([*TINY, *overrides])
    assert told in str(raised.value) and "\n" not in str(raised.value)


# Optimizers ----------------------------------------------------------------------------------------------------------


def test_gradient_descent_takes_the_step_of_equation_4() -> None:
    hyper = Hyper.of(Config().replace({"algorithm.max_grad_norm": 0, "algorithm.optimizer": "sgd"}))
    optimizer = optimizer_of(SGD(), hyper, None)  # type: ignore[arg-type]
    gradient = jnp.array([1.0, -2.0])
    updates, _ = optimizer.update(gradient, optimizer.init(gradient), gradient)
    np.testing.assert_allclose(updates, -hyper.learning_rate * gradient)


@pytest.mark.parametrize("overrides", [[], ["system.aggregation=fractional"], ["system.corrections=[less_momentum]"]])
def test_parts_of_a_policy_have_learning_rates_of_their_own(overrides: list[str]) -> None:
    """The critic's parameters do not move at a tiny rate, and the actor's move as far as without it."""
    plain, own = (
        Trainer(tiny(steps(3), *overrides, *rates)) for rates in ([], ["algorithm.learning_rates.critic=1e-20"])
    )
    start = plain.network.unravel(np.asarray(plain.state.params[0]))
    plain.run()
    own.run()
    before, after = (trainer.network.unravel(trainer.state.params[0]) for trainer in (plain, own))
    for name in before:
        leaves = zip(*map(jax.tree.leaves, (start[name], after[name])), strict=True)
        changed = [not np.allclose(x, y, rtol=0.0, atol=1e-9) for x, y in leaves]
        assert any(changed) == (name != "critic"), name
    assert Trainer(tiny(steps(1), "algorithm.learning_rates.critic=3e-3")).spec.parts == ("critic",)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("algorithm.learning_rates.critics=1e-3", "algorithm.learning_rates.critics belongs to no part of the policy"),
        ("algorithm.learning_rates.critic=0", "algorithm.learning_rates.critic must be greater than 0, not 0"),
        ("algorithm.learning_rates.critic=fast", "algorithm.learning_rates.critic must be greater than 0, not 'fast'"),
    ],
)
def test_learning_rates_of_parts_are_checked(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Trainer(tiny(override))


@pytest.mark.usefixtures("kinds")
def test_an_optimizer_of_matrices_sees_them() -> None:
    shapes: list[Any] = []

    @register.optimizer("test/matrices")
    class Matrices(Optimizer):
        elementwise = False

        def transformation(self, hyper: Hyper) -> optax.GradientTransformation:
            def update(gradient: Any, state: Any, params: Any = None) -> Any:
                shapes.append(jax.tree.map(jnp.shape, gradient))
                return jax.tree.map(lambda g: -0.01 * jnp.sign(g), gradient), state

            return optax.GradientTransformation(lambda params: (), update)  # type: ignore[arg-type]

    trainer = Trainer(tiny("algorithm.optimizer=test/matrices", steps(2)))
    before = np.asarray(trainer.state.params)
    trainer.run()
    assert shapes[0]["actor"]["Dense_0"]["kernel"] == (4, 8)
    assert not np.array_equal(before, trainer.state.params)


# Algorithms ----------------------------------------------------------------------------------------------------------


def returns_to_go(**attributes: Any) -> type[Algorithm]:
    """Registered policy gradient of returns-to-go, a field of its own."""

    class ReturnsToGo(Algorithm):
        advantage = "none"
        truncations = ("none",)
        metrics = {"policy_loss": "loss of the policy", "entropy": "in nats"}  # noqa: RUF012

        def fields(self, steps: AdvantageInputs) -> dict[str, jax.Array]:
            sums = [steps.reward[-1]]
            for t in range(len(steps.reward) - 2, -1, -1):
                sums.append(steps.reward[t] + jnp.where(steps.ends[t], 0.0, steps.gamma * sums[-1]))
            return {"returns": jnp.stack(sums[::-1]), "number": jnp.ones(steps.reward.shape, jnp.int32)}

        def loss(self, inputs: LossInputs) -> tuple[jax.Array, Metrics]:
            assert inputs.batch.own["number"].dtype == jnp.int32
            terms = {"policy_loss": -inputs.batch.own["returns"] * inputs.log_prob}
            return total({**terms, "entropy": inputs.distribution.entropy(inputs.parameters)}, inputs)

    for name, value in attributes.items():
        setattr(ReturnsToGo, name, value)
    return register.algorithm("test/returns")(ReturnsToGo)


PLAIN = ["algorithm.name=test/returns", "system.truncation=none", "algorithm.kl_coefficient=0"]


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["system.actors=independent", "system.actor_shards=2", "env.normalize_reward=false"],
        ["network.memory=gru", "algorithm.minibatches=4"],
    ],
    ids=["pipelined", "independent", "memory"],
)
def test_an_algorithm_learns_from_fields_of_its_own(overrides: list[str]) -> None:
    returns_to_go()
    trainer = Trainer(tiny(*PLAIN, steps(3), *overrides))
    record = trainer.run()[-1]
    assert math.isfinite(record["policy_loss"]) and "kl" not in record and "clip_fraction" not in record
    samples = trainer.state.loader.fragments
    assert samples.advantage is None and samples.target is None
    assert np.asarray(samples.own["returns"]).any()


@pytest.mark.usefixtures("kinds")
def test_metrics_that_are_not_declared_are_told() -> None:
    returns_to_go(metrics={"policy_loss": "loss of the policy"})
    with pytest.raises(ConfigError, match=r"ReturnsToGo\.loss .* returns the metrics entropy, policy_loss, not those"):
        Trainer(tiny(*PLAIN, steps(1))).run()


# What plug-ins return ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"evaluate": lambda *_: {"value": jnp.zeros(2)}}, "evaluates value, not the outputs that it declares"),
        (
            {"evaluate": lambda *_: {"distribution": jnp.zeros((2, 2)), "value": jnp.zeros((2, 1))}},
            r"evaluates value as float32\[2, 1\] for 2 rows, not \[2\]",
        ),
        ({"act": lambda *_: (jnp.zeros((2, 9)), None)}, r"acts with float32\[2, 9\]"),
        ({"evaluate": lambda *_: 1 / 0}, "cannot be traced by JAX"),
    ],
    ids=["names", "shape", "act", "raises"],
)
def test_what_a_policy_returns_is_checked(changed: dict[str, Any], told: str) -> None:
    register.policy("test/wrong")(type("Wrong", (ActorCritic,), changed))
    with pytest.raises(ConfigError, match=rf"network\.policy=test/wrong .*{told}"):
        Trainer(tiny("network.policy=test/wrong", steps(1)))


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize(
    ("estimate", "told"),
    [
        (lambda self, steps: Estimate(steps.reward[0], steps.value), "estimates advantage as float32"),
        (lambda self, steps: Estimate(steps.reward, None), "estimates target as None"),
        (lambda self, steps: steps.nothing, "cannot be traced by JAX"),
    ],
    ids=["shape", "target", "raises"],
)
def test_what_an_estimator_returns_is_checked(estimate: Any, told: str) -> None:
    register.advantage("test/wrong")(type("Wrong", (GAE,), {"estimate": estimate, "__module__": "somebody"}))
    with pytest.raises(ConfigError, match=rf"algorithm\.advantage=test/wrong .*{told}"):
        Trainer(tiny("algorithm.advantage=test/wrong", steps(1)))


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (lambda self, steps: {"returns": steps.reward.mean()}, "makes returns as float32"),
        (lambda self, steps: [steps.reward], "returns list from fields"),
    ],
    ids=["shape", "list"],
)
def test_own_fields_are_checked(fields: Any, told: str) -> None:
    returns_to_go(fields=fields)
    with pytest.raises(ConfigError, match=rf"algorithm\.name=test/returns .*{told}"):
        Trainer(tiny(*PLAIN, steps(1)))


@pytest.mark.usefixtures("kinds")
def test_masks_that_the_loss_does_not_apply_are_refused() -> None:
    returns_to_go(masked=False)
    with pytest.raises(ConfigError, match=r"masks=\[m2po\] changes nothing under algorithm\.name=test/returns"):
        tiny(*PLAIN, "algorithm.masks=[m2po]")


@pytest.mark.usefixtures("kinds")
def test_a_penalty_that_the_loss_does_not_have_is_refused() -> None:
    returns_to_go()
    with pytest.raises(ConfigError, match=r"kl_coefficient=0\.1 changes nothing under algorithm\.name=test/returns"):
        tiny(*PLAIN, "algorithm.kl_coefficient=0.1")


# Optimizers of parts of the policy -----------------------------------------------------------------------------------


def updated(*overrides: str) -> dict[str, Any]:
    """Parameters after two rounds, as a tree of parts."""
    trainer = Trainer(tiny(steps(2), *overrides, "network.shared=false", "algorithm.kl_coefficient=0"))
    trainer.run()
    tree = trainer.network.unravel(trainer.state.params[0])
    return {name: np.concatenate([np.ravel(x) for x in jax.tree.leaves(part)]) for name, part in tree.items()}


@pytest.mark.parametrize("aggregation", ["factored", "sequential"])
def test_parts_have_the_steps_of_their_own_optimizers(aggregation: str) -> None:
    """Actor and critic share nothing here but the norm of the gradient: each is as under its optimizer alone."""
    common = [f"system.aggregation={aggregation}", "algorithm.max_grad_norm=0", "algorithm.learning_rate=1e-2"]
    common += ["system.actors=barrier", "algorithm.value_coefficient=0.5"]
    first = [*common, "algorithm.epochs=1", "algorithm.minibatches=1", "system.learners=1", "total_steps=128"]
    both = updated(*first, "algorithm.optimizers={critic: {name: sgd, momentum: 0.5}}")
    adam = updated(*first)
    sgd = updated(*first, "algorithm.optimizer=sgd", "algorithm.optimizer_options.momentum=0.5")
    np.testing.assert_array_equal(both["actor"], adam["actor"])
    assert (both["critic"] != adam["critic"]).any() and (sgd["actor"] != adam["actor"]).any()
    np.testing.assert_array_equal(both["critic"], sgd["critic"])


def test_an_optimizer_of_all_parts_is_the_optimizer() -> None:
    parts = "algorithm.optimizers={critic: adam, actor: adam}"
    for name, part in updated(parts).items():
        np.testing.assert_array_equal(part, updated()[name])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.optimizers={critic: sdg}"],
            "algorithm.optimizers.critic=sdg is not registered; did you mean sgd?",
        ),
        (["algorithm.optimizers={critic: 3}"], "algorithm.optimizers.critic=3 must be a name, or a mapping with"),
        (
            ["algorithm.optimizers={critic: {name: sgd, mass: 1}}"],
            "critic.mass is no option of sgd; accepted: momentum.",
        ),
        (["algorithm.optimizers={critic: {name: sgd, momentum: 2}}"], "algorithm.optimizers.critic.momentum must be"),
        (["algorithm.optimizers={crtic: sgd}"], "algorithm.optimizers.crtic belongs to no part of the policy"),
        (
            ["algorithm.optimizers={critic: sgd}", "system.aggregation=fractional"],
            "system.aggregation=fractional is not possible with algorithm.optimizers.critic",
        ),
    ],
)
def test_optimizers_of_parts_that_cannot_be(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Trainer(tiny(*overrides))
    assert message in str(caught.value)
