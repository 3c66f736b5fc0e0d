"""The numbers of the literal system: what actors collect, what a learner computes, what the parameter function does.

Policies are pytrees, the loss is written anew, gradients are taken one at a time. `Eq.` and `§` refer to the Stellaris
paper (SC'24).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from reference_events import Aggregation, Delivery
from settings import numbers_and_options

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.keys import FragmentKeys
from stellaris_jax.engine.prepare import prepare
from stellaris_jax.engine.rollout import ActorState, Fragment, Normalizers, RolloutInputs, rollout
from stellaris_jax.engine.spec import ProgramSpec

Tree = Any

TIE = 1e-5
"""Ratios this close, relative to their size, are equal: the same policy evaluated by two programs differs by rounding,
and which way depends on the processor."""


class Functions:
    """The pure functions of a configuration, compiled once and used by any number of `Training`s."""

    def __init__(self, config: Config, env: Any, network: Any):
        self.config, self.env, self.network = config, env, network
        algorithm = config.algorithm
        self.options = vars(numbers_and_options(algorithm))
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(algorithm.max_grad_norm),
            optax.adam(algorithm.learning_rate, eps=algorithm.adam_eps),
        )
        self.step = jax.jit(self.optimizer.update)
        self.collect = jax.jit(self._collect)
        self.ratio = jax.jit(self._ratio)
        self.gradient = jax.jit(jax.grad(self._loss, has_aux=True))

    def _collect(self, params: Tree, normalizers: Normalizers, actor: ActorState, key: jax.Array) -> Any:
        env, algorithm = self.config.env, self.config.algorithm
        flat = self.network.ravel(params)
        start_key, actor_key = jax.random.split(key)
        keys = FragmentKeys(start_key, jax.random.split(actor_key, env.num_envs))
        carry = actor.carry
        inputs = RolloutInputs(flat, normalizers, actor, keys, algorithm.gamma)
        actor, trajectory = rollout(self.env, self.network, env, algorithm.rollout_length, inputs)
        fragment, recipe = Fragment(trajectory, flat, normalizers, 0, carry), ProgramSpec.of(self.config).recipe
        samples, normalizers, _ = prepare(self.network, Hyper.of(self.config), env, fragment, normalizers, recipe)
        return actor, samples, normalizers

    def _evaluated(self, params: Tree, batch: Tree) -> tuple[jax.Array, jax.Array]:
        """Parameters of the policy `[B, D]` and values `[B]`; with memory one step of the sequences after the other."""
        if batch.first is None:
            return self.network.policy(params, batch.obs), self.network.value(params, batch.obs)
        carry, steps, found = batch.carry, self.config.algorithm.rollout_length, []
        for obs, first in zip(*(x.reshape(steps, -1, *x.shape[1:]) for x in (batch.obs, batch.first)), strict=True):
            carry = jax.tree.map(lambda x, first=first: jnp.where(first[:, None], 0.0, x), carry)
            value, _ = self.network.value_step(params, obs, carry)
            policy, carry = self.network.act(params, obs, carry)
            found.append((policy, value))
        policies, values = zip(*found, strict=True)
        return jnp.concatenate(policies), jnp.concatenate(values)

    def _policy(self, params: Tree, batch: Tree) -> jax.Array:
        return self._evaluated(params, batch)[0]

    def _log_prob(self, distribution: jax.Array, action: jax.Array) -> jax.Array:
        if jnp.issubdtype(action.dtype, jnp.integer):
            log_p = distribution - jax.scipy.special.logsumexp(distribution, axis=-1, keepdims=True)
            return jnp.take_along_axis(log_p, action[:, None], axis=-1)[:, 0]
        mean, log_std = jnp.split(distribution, 2, axis=-1)
        return jax.scipy.stats.norm.logpdf(action, mean, jnp.exp(log_std)).sum(-1)

    def _entropy_and_kl(self, new: jax.Array, old: jax.Array, discrete: bool) -> tuple[jax.Array, jax.Array]:
        """Entropy of pi and KL(mu || pi), `[B]` each."""
        if discrete:
            p, mu = jax.nn.softmax(new), jax.nn.softmax(old)
            return -jnp.sum(p * jnp.log(p), -1), jnp.sum(mu * (jnp.log(mu) - jnp.log(p)), -1)
        (mean, log_std), (old_mean, old_log_std) = jnp.split(new, 2, -1), jnp.split(old, 2, -1)
        variance, old_variance = jnp.exp(2 * log_std), jnp.exp(2 * old_log_std)
        kl = 0.5 * jnp.log(variance / old_variance) + (old_variance + (old_mean - mean) ** 2) / (2 * variance) - 0.5
        return jnp.sum(0.5 * jnp.log(2 * jnp.pi * jnp.e * variance), -1), jnp.sum(kl, -1)

    def _ratio(self, params: Tree, batch: Tree) -> jax.Array:
        """pi / mu, `[B]`."""
        return jnp.exp(self._log_prob(self._policy(params, batch), batch.action) - batch.log_prob)

    def _loss(
        self, params: Tree, batch: Tree, smallest: jax.Array, kl_coefficient: float, target: Tree
    ) -> tuple[jax.Array, Any]:
        """The loss to be minimised, and the mean KL; `smallest` is min_i pi_i / mu over the peers, +inf without any."""
        c = self.config.algorithm
        value = self._evaluated(params, batch)[1]
        parts = {"ppo": self._ppo, "impala": self._impala, "impact": self._impact}[c.name]
        gain, error, anchor = parts(params, value, batch, smallest, target)
        discrete = jnp.issubdtype(batch.action.dtype, jnp.integer)
        entropy, kl = self._entropy_and_kl(self._policy(params, batch), anchor, discrete)
        loss = -gain + c.value_coefficient * 0.5 * error - c.entropy_coefficient * entropy
        loss += kl_coefficient * kl
        return self._mean(loss, batch), self._mean(kl, batch)

    def _mean(self, x: jax.Array, batch: Tree) -> jax.Array:
        """Mean over the samples that are valid, 0 without any."""
        if batch.valid is None:
            return jnp.mean(x)
        return jnp.sum(jnp.where(batch.valid, x, 0.0)) / jnp.maximum(jnp.sum(batch.valid), 1)

    # What each algorithm wants more of, the square of its critic's error, and the policy its KL is measured from.

    def _ppo(self, params: Tree, value: jax.Array, batch: Tree, smallest: jax.Array, target: Tree) -> Any:
        o = self.options
        ratio, weight = self._truncated(self._ratio(params, batch), smallest)
        error = (value - batch.target) ** 2
        if o["value_clip"] > 0:
            moved = jnp.clip(value, batch.value - o["value_clip"], batch.value + o["value_clip"])
            error = jnp.maximum(error, (moved - batch.target) ** 2)
        return weight * self._clipped(ratio, batch.advantage), error, batch.distribution

    def _impala(self, params: Tree, value: jax.Array, batch: Tree, smallest: jax.Array, target: Tree) -> Any:
        own = jax.lax.stop_gradient(self._ratio(params, batch))
        goal, advantage = self._vtrace(own, value, batch)
        ratio, weight = self._truncated(own, smallest)
        log_pi = self._log_prob(self._policy(params, batch), batch.action)
        factor = jnp.minimum(weight * ratio, self.options["rho_bar"])
        return factor * advantage * log_pi, (value - goal) ** 2, batch.distribution

    def _impact(self, params: Tree, value: jax.Array, batch: Tree, smallest: jax.Array, target: Tree) -> Any:
        """Luo et al. 2020; pi_t is the policy of the target network."""
        o = self.options
        of_target = self._ratio(target, batch)
        goal, advantage = self._vtrace(of_target, value, batch)
        advantage = jnp.minimum(of_target, o["rho_bar"]) * advantage
        ratio, weight = self._truncated(self._ratio(params, batch), smallest)
        gain = weight * self._clipped(jnp.minimum(1 / of_target, o["impact_ratio"]) * ratio, advantage)
        return gain, (value - goal) ** 2, self._policy(target, batch)

    def _truncated(self, ratio: jax.Array, smallest: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Eq. 2: the ratio, and a factor on what is made of it."""
        rho, mode = self.config.system.rho, self.config.system.truncation
        own = jax.lax.stop_gradient(ratio)
        eq2 = jnp.minimum(jnp.minimum(own, smallest), rho)
        weight = jnp.ones_like(own)
        if mode == "weight":
            weight = eq2 / own
        elif mode == "surrogate":  # the gradient flows where the minimum is the learner's own ratio
            ratio = jnp.where(own - eq2 > TIE * own, eq2, ratio)
        elif mode == "artifact":
            cap = jnp.maximum(jnp.minimum(own, smallest), rho)
            tied = abs(own - cap) <= TIE * own
            ratio = jnp.where(tied, 0.5 * (ratio + cap), jnp.where(own < cap, ratio, cap))
        return ratio, weight

    def _clipped(self, ratio: jax.Array, advantage: jax.Array) -> jax.Array:
        inside = jnp.clip(ratio, 1 - self.options["clip"], 1 + self.options["clip"])
        return advantage * jnp.where(advantage >= 0, jnp.minimum(ratio, inside), jnp.maximum(ratio, inside))

    def _vtrace(self, ratio: jax.Array, value: jax.Array, batch: Tree) -> tuple[jax.Array, jax.Array]:
        """Targets vs and advantages r + gamma vs' - V (Espeholt et al. 2018), from the last step back; `[B]` each."""
        c, o, steps = self.config.algorithm, self.options, batch.steps
        in_time = [x.reshape(c.rollout_length, -1) for x in (ratio, jax.lax.stop_gradient(value), *steps)]
        goals, advantages = [], []
        later_value = later_goal = jnp.zeros_like(in_time[0][0])
        for t in reversed(range(c.rollout_length)):
            ratio, value, reward, at_collection, terminated, truncated = (x[t] for x in in_time)
            last = truncated | (t == c.rollout_length - 1)
            next_value = jnp.where(last, at_collection, later_value)
            surprise = jnp.where(last, 0.0, later_goal - later_value)
            next_value, surprise = (jnp.where(terminated, 0.0, x) for x in (next_value, surprise))
            error = reward + c.gamma * next_value - value
            carried = c.gamma * c.gae_lambda * surprise
            advantages.append(error + carried)
            goals.append(value + jnp.minimum(ratio, o["rho_bar"]) * error + jnp.minimum(ratio, o["c_bar"]) * carried)
            later_value, later_goal = value, goals[-1]
        return jnp.concatenate(goals[::-1]), jnp.concatenate(advantages[::-1])


class Training:
    """The numbers behind the events: what actors collect, what a learner computes, what the parameter function does.

    `cache` holds every policy ever published, as a pytree; with its version a learner fetches the target network, the
    last one before it, or itself, whose number `target_interval` divides. `start` has the seed's initial `params`
    (flat), `actor`, `normalizers` and `key`. `orders[fragment]` is the loader's `[G, B]` sample indices,
    `schedule[round]` the factor on the learning rate. Only finite gradients are used; the others are counted.
    """

    def __init__(
        self,
        functions: Functions,
        start: Any,
        orders: Sequence[np.ndarray],
        schedule: Sequence[float],
    ):
        self.functions, self.orders, self.schedule = functions, orders, schedule
        self.actor, self.normalizers, self.key = start.actor, start.normalizers, start.key
        params = jax.device_get(functions.network.unravel(start.params))
        self.cache: dict[int, Tree] = {0: params}
        self.optimizer = functions.optimizer.init(params)
        self.fragments: dict[int, Tree] = {}
        self.newest = -1
        self.rejected = 0
        self.kl_coefficient = functions.config.algorithm.kl_coefficient
        self.kl: list[float] = []

    def collect(self, fragment: int, version: int) -> None:
        self.end_round()
        self.newest = fragment
        self.actor, samples, self.normalizers = self.functions.collect(
            self.cache[version], self.normalizers, self.actor, jax.random.fold_in(self.key, fragment)
        )
        self.fragments[fragment] = jax.device_get(samples)

    def end_round(self) -> None:
        """Adapt the KL coefficient to the mean KL of the gradients used since the last fragment was started."""
        if self.kl and self.kl_coefficient > 0:
            target = self.functions.config.algorithm.kl_target
            mean = np.mean(self.kl)
            self.kl_coefficient *= 1.5 if mean > 2 * target else 0.5 if mean < target / 2 else 1.0
        self.kl = []

    def gradient(self, delivery: Delivery) -> Tree:
        rows = self.orders[delivery.fragment][delivery.minibatch]
        fragment = self.fragments[delivery.fragment]
        batch = jax.tree.map(lambda x: x[rows], fragment._replace(carry=None))
        if fragment.carry is not None:  # rows of first steps are numbers of environments
            begun = rows[: len(rows) // self.functions.config.algorithm.rollout_length]
            batch = batch._replace(carry=jax.tree.map(lambda x: x[begun], fragment.carry))
        smallest = np.full(len(rows), np.inf, np.float32)
        for version in delivery.peers:
            smallest = np.minimum(smallest, self.functions.ratio(self.cache[version], batch))
        target = self.cache[delivery.version - delivery.version % self.functions.options.get("target_interval", 1)]
        args = (batch, smallest, self.kl_coefficient, target)
        gradient, kl = jax.device_get(self.functions.gradient(self.cache[delivery.version], *args))
        if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient)):
            self.kl.append(float(kl))
            return gradient
        self.rejected += 1
        return None

    def update(self, clock: int, aggregation: Aggregation) -> None:
        """Eq. 4 under any optimizer: publishes version `clock + 1` into the cache."""
        params, size = self.cache[clock], len(aggregation.deliveries)
        gradients = [self.gradient(delivery) for delivery in aggregation.deliveries]
        used = [(w, g) for w, g in zip(aggregation.weights, gradients, strict=True) if g is not None]
        scale = self.schedule[self.newest]
        trust = sum(weight for weight, _ in used)
        mode = self.functions.config.system.aggregation
        if mode == "sequential":
            for weight, gradient in used:
                params = self.step(params, gradient, scale * weight)
        elif used:
            total = jax.tree.map(np.zeros_like, params)
            for weight, gradient in used:
                total = jax.tree.map(lambda t, g, w=weight: t + w * g, total, gradient)
            divisor, factor = (trust, trust / size) if mode == "factored" else (size, 1.0)
            params = self.step(params, jax.tree.map(lambda t: t / divisor, total), scale * factor)
        self.cache[clock + 1] = params

    def step(self, params: Tree, direction: Tree, factor: float) -> Tree:
        updates, self.optimizer = self.functions.step(direction, self.optimizer, params)
        updates = jax.device_get(updates)
        return jax.tree.map(lambda p, u: p + factor * u, params, updates)
