"""Parts of agents: policies without a critic, estimators of advantages, optimizers, metrics and own sample fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from registries import forgetting
from training import TINY, steps, tiny

from stellaris_jax import ConfigError, Trainer, load_config, register
from stellaris_jax.agent.advantages import GAE, Estimate, Group, NStep, VTrace
from stellaris_jax.agent.losses import Algorithm, PolyakTarget
from stellaris_jax.agent.losses.common import AdvantageInputs, LossInputs, Metrics, total
from stellaris_jax.agent.networks import ActorCritic

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
    """So gradients are of sequences, and no advantage is made before them."""
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
def test_a_loss_may_have_targets_of_its_own_beside_advantages_of_groups() -> None:
    metrics = {"policy_loss": "of the policy", "value_loss": "of the critic", "entropy": "in nats"}

    def loss(self: Any, inputs: LossInputs) -> tuple[jax.Array, Metrics]:
        batch = inputs.batch
        assert batch.advantage is not None and batch.target is None and inputs.value is not None
        terms = {"policy_loss": -batch.advantage * inputs.log_prob, "entropy": jnp.zeros_like(inputs.log_prob)}
        return total({**terms, "value_loss": jnp.square(inputs.value - batch.own["returns"])}, inputs)

    returns_to_go(needs=("value",), metrics=metrics, loss=loss)
    record = Trainer(tiny(*PLAIN, "algorithm.advantage=group", "algorithm.advantage_options.size=4", steps(2))).run()[
        -1
    ]
    assert record["value_loss"] > 0.0


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("polyk", "target must be one of none, version, polyak, reference, not 'polyk'"),
        (None, "target must be one of"),
        (("polyak",), "target must be one of"),
        ("polyak", "target=polyak needs the option target_rate, of the type float"),
        ("version", "target=version needs the option target_interval, of the type int"),
        (property(lambda self: 1 / 0), "target failed: ZeroDivisionError"),
        (property(lambda self: "polyk"), "target must be one of"),
    ],
)
def test_target_networks_that_cannot_be(target: Any, told: str) -> None:
    returns_to_go(target=target)
    with pytest.raises(ConfigError) as caught:
        load_config([*TINY, *PLAIN])
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.usefixtures("kinds")
def test_a_replay_buffer_needs_its_options() -> None:
    returns_to_go(data="replay")
    with pytest.raises(ConfigError, match="data is replay, so the class must inherit from OffPolicy"):
        load_config([*TINY, *PLAIN])


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
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_a_policy_that_learns_with_another_distribution_than_it_acts_with_is_refused(memory: str) -> None:
    class Liar(ActorCritic):
        def evaluate(self, tree: Any, obs: Any, past: Any = None) -> Mapping[str, Any]:
            outputs = dict(super().evaluate(tree, obs, past))
            return outputs | {"distribution": outputs["distribution"] * jnp.array([3.0, 1.0])}

    register.policy("test/liar")(Liar)
    register.policy("test/honest")(type("Honest", (ActorCritic,), {}))
    settings_of = [f"network.memory={memory}", "algorithm.minibatches=4"]
    Trainer(tiny("network.policy=test/honest", *settings_of))
    with pytest.raises(ConfigError, match="acts and evaluates with different distributions"):
        Trainer(tiny("network.policy=test/liar", *settings_of))


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


def test_a_subclass_may_have_another_default_of_an_option() -> None:
    class Faster(PolyakTarget):
        target_rate = 0.5

    assert Faster({}).target_rate == 0.5 and Faster({"target_rate": 0.1}).target_rate == 0.1
    assert PolyakTarget({}).target_rate == 0.005
