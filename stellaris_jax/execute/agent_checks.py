"""Checks of a plug-in's policy, estimator and algorithm: what they return, by `jax.eval_shape` before compilation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import AdvantageInputs
from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.agent.networks.policy_network import DISTRIBUTION, VALUE
from stellaris_jax.agent.networks.recurrent import Past
from stellaris_jax.agent.optimizers import Optimizer, optimizer_of
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import code_location
from stellaris_jax.config.options import part_optimizers
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.rollout import viewed
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.execute.plugin_checks import ROWS, check_like, shapes_of, traced

MOST_DIFFERENT = 0.02
"""Largest difference of what a policy acts and learns with, as a share of its size; lower precision has less."""
OWN = "stellaris_jax."
"""Begin of the names of modules whose parts need no check."""


def check_agent(network: PolicyNetwork, config: Config, spec: ProgramSpec) -> None:
    """Check the parts of an agent that plug-ins bring.

    Raises:
      ConfigError: a part returns what training cannot use; reports the first one.
    """
    for name in spec.parts:
        if name not in network.template:
            parts = ", ".join(sorted(network.template))
            key = "learning_rates" if name in config.algorithm.learning_rates else "optimizers"
            raise ConfigError(f"algorithm.{key}.{name} belongs to no part of the policy; accepted: {parts}.")
    if not type(network).__module__.startswith(OWN):
        _check_policy(network, config)
    if not type(spec.advantage).__module__.startswith(OWN):
        _check_advantage(config, spec)
    if network.recurrent != spec.recurrent:
        what = f"network.policy={config.network.policy}"
        raise ConfigError(f"{what} says recurrent={network.recurrent}; its class must say the same.")
    hyper = Hyper.of(config)
    every = [(f"algorithm.optimizer={config.algorithm.optimizer}", spec.optimizer, hyper)]
    for part, (name, _) in part_optimizers(config).items():
        own = hyper._replace(optimizer=hyper.part_optimizers[part])
        every.append((f"algorithm.optimizers.{part}={name}", dict(spec.part_optimizers)[part], own))
    for what, optimizer, numbers in every:
        if not type(optimizer).__module__.startswith(OWN):
            _check_optimizer(network, what, optimizer, numbers, spec.aggregation)
    if not type(spec.algorithm).__module__.startswith(OWN):
        _check_fields(config, spec)


def _check_policy(network: PolicyNetwork, config: Config) -> None:
    kind, what = type(network), f"network.policy={config.network.policy}"
    space, distribution = network.observation_space, network.distribution

    def trial(key: jax.Array) -> Any:
        tree = network.unravel(network.init(key))
        obs = jnp.zeros((ROWS, *space.shape), viewed(space, config.env))
        carry = network.initial_carry(ROWS)
        past = Past(carry, jnp.zeros(ROWS, bool)) if network.recurrent else None
        outputs, (parameters, after) = network.evaluate(tree, obs, past), network.act(tree, obs, carry)
        if parameters.shape != (ROWS, distribution.size):
            return dict(outputs), parameters, parameters, (), (carry, after)
        action = distribution.perturb(parameters, distribution.noise(key, (ROWS,)))
        of_one = (distribution.log_prob(parameters, action), distribution.entropy(parameters))
        return dict(outputs), parameters, action, (*of_one, distribution.kl(parameters, parameters)), (carry, after)

    outputs, parameters, action, numbers, carries = traced(what, kind.evaluate, trial, jax.random.key(0))
    rows = {DISTRIBUTION: (ROWS, distribution.size), VALUE: (ROWS,)}
    place = f"{what} ({code_location(kind)})"
    if {*outputs} != {*kind.outputs}:
        names = ", ".join(sorted(outputs))
        raise ConfigError(f"{place} evaluates {names}, not the outputs that it declares: {', '.join(kind.outputs)}.")
    for name, shape in rows.items():
        if name in outputs and outputs[name].shape != shape:
            raise ConfigError(
                f"{place} evaluates {name} as {shapes_of(outputs[name])} for {ROWS} rows, not {[*shape]}."
            )
    actions = (ROWS, *network.action_space.shape)
    if parameters.shape != rows[DISTRIBUTION] or action.shape != actions:
        raise ConfigError(
            f"{place} acts with {shapes_of(parameters)} and samples {shapes_of(action)} for {ROWS} rows, not "
            f"{[*rows[DISTRIBUTION]]} and {[*actions]}."
        )
    for name, number in zip(("log_prob", "entropy", "kl"), numbers, strict=False):
        if number.shape != (ROWS,):
            raise ConfigError(f"{place} has a distribution whose {name} is {shapes_of(number)} for {ROWS} rows.")
    check_like(place, "a carry", carries[1], carries[0])
    if not network.episodic:
        _check_agreement(network, config, place)


def _check_agreement(network: PolicyNetwork, config: Config, place: str) -> None:
    """Check that a policy acts and learns with the same distribution, on random parameters and observations."""
    space = network.observation_space

    def difference(key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, 3)
        flat = network.init(keys[0])
        tree = network.unravel(flat + 0.1 * jax.random.normal(keys[1], flat.shape))
        shape, dtype = (ROWS, *space.shape), viewed(space, config.env)
        obs = jax.random.normal(keys[2], shape) if "float" in dtype else jax.random.bernoulli(keys[2], shape=shape)
        obs, carry = obs.astype(dtype), network.initial_carry(ROWS)
        past = Past(carry, jnp.zeros(ROWS, bool)) if network.recurrent else None
        learns, acts = network.evaluate(tree, obs, past)[DISTRIBUTION], network.act(tree, obs, carry)[0]
        return jnp.max(jnp.abs(learns - acts) / (1.0 + jnp.abs(acts)))

    found = float(jax.jit(difference)(jax.random.key(0)))
    if found > MOST_DIFFERENT:
        raise ConfigError(
            f"{place} acts and evaluates with different distributions: for the same observations their parameters "
            f"differ by {found:.2g} of their size, and learners would take that for staleness."
        )


def _steps(spec: ProgramSpec, hyper: Hyper) -> AdvantageInputs:
    """Steps `[ROWS, N]` for a trial."""
    zeros = jnp.zeros((ROWS, spec.envs))
    value, log_ratio = zeros if spec.critic else None, zeros if spec.advantage.by_learners else None
    valid = zeros > 0 if spec.has_invalid else None
    return AdvantageInputs(zeros, value, value, zeros > 0, zeros > 0, valid, log_ratio, hyper.gamma, hyper.gae_lambda)


def _check_advantage(config: Config, spec: ProgramSpec) -> None:
    kind = type(spec.advantage)
    what = f"algorithm.advantage={config.algorithm.advantage}"

    def trial(hyper: Hyper) -> Any:
        estimate = spec.advantage.bound(hyper.advantage).estimate(_steps(spec, hyper))
        return {"advantage": estimate.advantage, "target": estimate.target}

    for name, made in traced(what, kind.estimate, trial, Hyper.of(config)).items():
        given = name in kind.gives
        if (made is not None) != given or (given and made.shape != (ROWS, spec.envs)):
            wanted = [ROWS, spec.envs] if given else "None, as it declares in `gives`"
            place = f"{what} ({code_location(kind.estimate)})"
            found = "None" if made is None else shapes_of(made)
            raise ConfigError(f"{place} estimates {name} as {found}, not {wanted}.")


def _check_fields(config: Config, spec: ProgramSpec) -> None:
    kind, what = type(spec.algorithm), f"algorithm.name={config.algorithm.name}"

    def trial(hyper: Hyper) -> Any:
        return spec.algorithm.bound(hyper.options).fields(_steps(spec, hyper))

    made = traced(what, kind.fields, trial, Hyper.of(config))
    place = f"{what} ({code_location(kind.fields)})"
    if not isinstance(made, dict):
        raise ConfigError(f"{place} returns {type(made).__name__} from fields, not a dictionary of arrays by name.")
    for name, field in made.items():
        if getattr(field, "shape", ())[:2] != (ROWS, spec.envs):
            raise ConfigError(f"{place} makes {name} as {shapes_of(field)}, not [{ROWS}, {spec.envs}, ...].")


def _check_optimizer(network: PolicyNetwork, what: str, checked: Optimizer, hyper: Hyper, aggregation: str) -> None:
    kind = type(checked)
    method = kind.fractional if aggregation == "fractional" else kind.transformation

    def trial(hyper: Hyper) -> Any:
        optimizer: Any = optimizer_of(checked, hyper._replace(rate_factors={}), network, aggregation)
        trust = {"trust": jnp.float32(1.0)} if aggregation == "fractional" else {}
        params = network.init(jax.random.key(0))
        before = optimizer.init(params)
        return params, before, optimizer.update(params, before, params, **trust)

    params, before, updated = traced(what, method, trial, hyper)
    place = f"{what} ({code_location(method)})"
    if not isinstance(updated, tuple) or len(updated) != 2:
        raise ConfigError(f"{place} returns {shapes_of(updated)} from update, not a step and a state.")
    check_like(place, "a step", updated[0], params)
    check_like(place, "a state", updated[1], before)
