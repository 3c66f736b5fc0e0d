"""The transformer: an independent reference, generation with a cache, and weights that change within a completion."""

from __future__ import annotations

import pickle
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_tokens import transformer

from stellaris_jax import ConfigError, load_config
from stellaris_jax.agent.networks.policy_network import policy_network
from stellaris_jax.agent.networks.recurrent import Past
from stellaris_jax.agent.networks.transformer import Transformer
from stellaris_jax.config.sections import EnvConfig, NetworkConfig
from stellaris_jax.engine.keys import FragmentKeys
from stellaris_jax.engine.rollout import RolloutInputs, init_actor, init_normalizers, rollout
from stellaris_jax.envs.suites.tokens import make
from stellaris_jax.execute.job import check_and_prepare

SIZES = {"layers": 2, "heads": 2, "width": 16}


def network_of(name: str = "sort", precision: str = "float32", **options: Any) -> Transformer:
    env = make(name)
    config = NetworkConfig(policy="transformer", options={**SIZES, **options})
    made = policy_network(env.observation_space, env.action_space, config, precision)
    assert isinstance(made, Transformer)
    return made


def params_of(network: Transformer, seed: int = 0) -> jax.Array:
    """Parameters far from their small initial values, so that every part counts."""
    flat = network.init(jax.random.key(seed))
    return flat + 0.3 * jax.random.normal(jax.random.key(seed + 1), flat.shape) * (flat != 0)


def rolled(network: Transformer, params: jax.Array, name: str = "sort", number: int = 16, **changes: Any) -> Any:
    """A fragment of completions; returns (states after it, trajectory)."""
    env = make(name)
    keys = FragmentKeys.of(jax.random.key(5), jnp.int32(0), number)
    actor = init_actor(env, network, jax.random.split(jax.random.key(6), number))
    actor = actor._replace(alive=jnp.ones(number, bool))
    inputs = RolloutInputs(params, init_normalizers(env.observation_space), actor, keys, 1.0)._replace(**changes)
    return jax.jit(lambda inputs: rollout(env, network, EnvConfig(), env.task.longest, inputs))(inputs)


def evaluated(network: Transformer, params: jax.Array, trajectory: Any) -> np.ndarray:
    flat = trajectory.obs.reshape(-1, trajectory.obs.shape[-1])
    past = Past(None, trajectory.first[:-1].reshape(-1))
    parameters = jax.jit(network.policy)(network.unravel(params), flat, past)
    return np.asarray(parameters).reshape(trajectory.distribution.shape)


@pytest.mark.parametrize("name", ["sort", "addition", "maze"])
def test_equals_numpy(name: str) -> None:
    network = network_of(name)
    params = params_of(network)
    _, trajectory = rolled(network, params, name, 4)
    logits, tree = evaluated(network, params, trajectory), jax.device_get(network.unravel(params))
    for env in range(4):
        obs = np.asarray(trajectory.obs)[:, env]
        sequence = [*obs[0, :-1], *obs[1:, -1]]
        expected = transformer(tree, sequence, SIZES["layers"], SIZES["heads"])[network.prompt_length - 1 :]
        np.testing.assert_allclose(logits[:, env], expected, atol=2e-4)


@pytest.mark.parametrize("name", ["sort", "addition", "maze", "tail"])
def test_generation_equals_evaluation(name: str) -> None:
    """Log-probabilities of generated tokens agree to 1e-5 with those of one pass over the completion."""
    network = network_of(name)
    params = params_of(network)
    _, trajectory = rolled(network, params, name)
    assert trajectory.valid is not None and 0.05 < float(trajectory.valid.mean()) < 1.0
    log_prob = network.distribution.log_prob
    generated = log_prob(trajectory.distribution, trajectory.action)
    whole = log_prob(jnp.asarray(evaluated(network, params, trajectory)), trajectory.action)
    np.testing.assert_allclose(*(np.asarray(x)[trajectory.valid] for x in (generated, whole)), atol=1e-5)


def test_the_next_fragment_begins_anew() -> None:
    """Keys and values of earlier completions do not reach later ones."""
    network = network_of()
    params = params_of(network)
    after, _ = rolled(network, params)
    clean = after._replace(carry=network.initial_carry(16), alive=jnp.ones(16, bool))
    used = after._replace(alive=jnp.ones(16, bool))
    assert (np.asarray(used.carry.position) == 0).all()
    first, second = (rolled(network, params, actor=actor)[1] for actor in (clean, used))
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)


def segments(network: Transformer, before: jax.Array, after: jax.Array) -> Any:
    """Three tokens under one policy and the rest under another; returns the trajectories."""
    env, number = make("sort"), 16
    keys = FragmentKeys.of(jax.random.key(5), jnp.int32(0), number)
    actor = init_actor(env, network, jax.random.split(jax.random.key(6), number))
    actor = actor._replace(alive=jnp.ones(number, bool))
    normalizers, steps, parts = init_normalizers(env.observation_space), env.task.longest, []
    for params, first, length in ((before, 0, 3), (after, 3, steps - 3)):
        inputs = RolloutInputs(params, normalizers, actor, keys, 1.0, jnp.int32(first))
        actor, trajectory = rollout(env, network, EnvConfig(), length, inputs, steps)
        parts.append(trajectory)
    return parts


def test_weights_change_within_a_completion() -> None:
    """A recomputed cache gives what the new policy alone would say; a kept one does not."""
    for recompute in (True, False):
        network = network_of(recompute=recompute)
        old, new = params_of(network), params_of(network, 7)
        first, second = segments(network, old, new)
        ends = (part._replace(last_obs=None) for part in (first, second))
        both = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), *ends)
        both = both._replace(first=jnp.concatenate([first.first[:-1], second.first]))
        logits = evaluated(network, new, both)
        valid = np.array(both.valid)
        valid[:3] = False
        assert valid.any()
        error = np.abs(logits - np.asarray(both.distribution))[valid].max()
        assert error < 1e-4 if recompute else error > 1e-2


def test_a_cut_changes_nothing_under_the_same_weights() -> None:
    for recompute in (True, False):
        network = network_of(recompute=recompute)
        params = params_of(network)
        _, whole = rolled(network, params)
        parts = segments(network, params, params)
        action = jnp.concatenate([part.action for part in parts])
        valid = np.asarray(whole.valid)
        np.testing.assert_array_equal(np.asarray(action)[valid], np.asarray(whole.action)[valid])


@pytest.mark.parametrize(("precision", "most"), [("bfloat16", 0.2), ("int8", 0.5)])
def test_actors_of_lower_precision_differ_a_little(precision: str, most: float) -> None:
    network = network_of(precision=precision)
    params = params_of(network)
    _, trajectory = rolled(network, params)
    log_prob = network.distribution.log_prob
    exact = log_prob(jnp.asarray(evaluated(network, params, trajectory)), trajectory.action)
    error = np.abs(np.asarray(exact - log_prob(trajectory.distribution, trajectory.action)))[trajectory.valid]
    assert error.max() > 1e-4 and error.mean() < most
    again = pickle.loads(pickle.dumps(network))
    assert again.actor_precision == precision


def test_a_temperature_divides_logits() -> None:
    cold, warm = network_of(temperature=1.0), network_of(temperature=2.0)
    params = params_of(cold)
    _, trajectory = rolled(cold, params)
    np.testing.assert_allclose(evaluated(cold, params, trajectory), 2 * evaluated(warm, params, trajectory), rtol=1e-6)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env.name=gymnax/CartPole-v1", "evaluation.points=0"], "completes prompts of token tasks"),
        (["network.options.heads=3"], "must divide network.options.width"),
        (["network.policy=actor_critic", "algorithm=ppo"], "accepted: transformer"),
        (["algorithm.rollout_length=8"], "which are 7"),
        (
            ["env.kwargs.group=4", "env.num_envs=24", "system.actors=independent", "system.actor_shards=4"],
            "env.kwargs.group=4 must divide the environments",
        ),
        (["algorithm.advantage_options.size=4"], "algorithm.advantage_options.size=4 must be env.kwargs.group=8"),
        (["env.kwargs.length=1"], "must be from 2 to 64"),
        (["env.kwargs.lenght=6"], "did you mean length"),
        (["network.memory=gru"], "changes nothing under network.policy=transformer"),
    ],
)
def test_mistakes(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        check_and_prepare(load_config(["env=tokens/sort", *overrides]))
    assert "\n" not in str(caught.value)
