"""Probes: measurements for scaling rules on the device after a round, at the newest policy, on the round's data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import LossInputs, Samples
from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.base.registry import register
from stellaris_jax.config.tree import Config
from stellaris_jax.engine import learner, versions
from stellaris_jax.engine.curvature import extreme_eigenvalues, hessian_vector_product
from stellaris_jax.engine.keys import probe_key
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.state import EngineState
from stellaris_jax.timeline.scaling import scaling_of

Probe = Callable[[Hyper, EngineState, jax.Array, jax.Array], jax.Array]
"""Probe: (hyper, state, fragment buffer, minibatches of an epoch `[S]`) -> measurements `[S, ...]`."""


@dataclass(frozen=True)
class ProbeInputs:
    """Inputs of a probe's measurement of one seed.

    Attributes:
      network, config, spec: network, configuration and program spec of the run.
      hyper, state: hyper-parameters and state after the round.
      buffer: buffer of the round's fragment.
      minibatches: minibatches of an epoch over it.
    """

    network: PolicyNetwork
    config: Config
    spec: ProgramSpec
    hyper: Hyper
    state: EngineState
    buffer: jax.Array
    minibatches: jax.Array

    def minibatch(self, index: jax.Array) -> Samples:
        """Minibatch of the fragment, with the target network's policy if there is one."""
        spec, state = self.spec, self.state
        batch = learner.minibatch(state.loader, self.buffer, index)
        if spec.algorithm.target == "none":
            return batch
        if state.targets is not None:
            return learner.with_target(self.network, state.targets.newest, batch)
        slot = spec.shape.ring.slot(spec.shape.target(state.version))
        target = versions.lookup(state.ring, state.version, state.params, slot)
        return learner.with_target(self.network, target, batch)

    def loss(self, hyper: Hyper, kl_coefficient: jax.Array, batch: Samples, params: jax.Array) -> jax.Array:
        """Loss of a minibatch at the parameters `[P]`, without truncation and masks."""
        network, spec = self.network, self.spec
        inputs = partial(LossInputs, batch, network.distribution, hyper, kl_coefficient, spec.steps)
        return learner.loss(network, spec.recipe, batch, inputs, network.unravel(params))[0]


def make_probe(network: PolicyNetwork, config: Config, spec: ProgramSpec, kind: str) -> Probe | None:
    """Compiled probe by its name; `None` for an empty name."""
    if not kind:
        return None

    def measure(hyper: Hyper, state: EngineState, buffer: jax.Array, minibatches: jax.Array) -> jax.Array:
        inputs = ProbeInputs(network, config, spec, hyper, state, buffer, minibatches)
        measured: jax.Array = register.probe[kind](inputs)
        return measured

    @jax.jit
    def probe(hyper: Hyper, state: EngineState, buffer: jax.Array, minibatches: jax.Array) -> jax.Array:
        if spec.seeds > 1:
            return jax.vmap(measure, in_axes=(0, 0, None, 0))(hyper, state, buffer, minibatches)
        hyper, state = jax.tree.map(lambda x: x[0], (hyper, state))
        return measure(hyper, state, buffer, minibatches[0])[None]

    return probe


@register.probe("curvature")
def curvature(inputs: ProbeInputs) -> jax.Array:
    """Smallest and largest eigenvalue `[2]` of a Hessian (Nitro, VLDB'25, §5).

    In mode `paper` it is the Hessian of the policy's surrogate objective, which is maximised. In mode `artifact` it is
    the Hessian of the whole loss, which is minimised. The data are the first `subsample` minibatches of the round's
    first epoch, a random part of it.
    """
    rule: Any = scaling_of(inputs.config)
    hyper, state, minibatches = inputs.hyper, inputs.state, inputs.minibatches
    penalty, paper = state.kl_coefficient, rule.mode == "paper"
    if paper:
        hyper, penalty = hyper._replace(value_coefficient=0.0, entropy_coefficient=0.0), jnp.zeros_like(penalty)
    count = jnp.minimum(minibatches, rule.subsample) if rule.subsample else minibatches

    def product(vector: jax.Array) -> jax.Array:
        def add(j: jax.Array, total: jax.Array) -> jax.Array:
            objective = partial(inputs.loss, hyper, penalty, inputs.minibatch(j))
            return total + hessian_vector_product(objective, state.params, vector)

        total = jax.lax.fori_loop(0, count, add, jnp.zeros_like(vector))
        return (-total if paper else total) / jnp.maximum(count, 1)

    key = probe_key(state.key, state.round)
    return jnp.stack(extreme_eigenvalues(product, key, state.params.shape[0], rule.lanczos))


@register.probe("noise")
def noise(inputs: ProbeInputs) -> jax.Array:
    """Squared gradient norms |G_small|^2, |G_big|^2 and their samples `[4]` (McCandlish et al. 2018, appendix A.1).

    The small batches are halves of the minibatches of the round's first epoch; their norms are averaged. The big batch
    is the whole epoch. (A minibatch of a single sequence has one half only.)
    """
    spec, state = inputs.spec, inputs.state
    columns = spec.envs // spec.minibatch_layout.minibatches if spec.sequences else 2

    def add(i: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        batch = inputs.minibatch(i // 2)
        assert batch.valid is not None, "rounds may be of any width, so samples are masked"
        valid = batch.valid & (jnp.arange(batch.valid.shape[0]) % columns % 2 == i % 2)
        batch = batch._replace(valid=valid)
        objective = partial(inputs.loss, inputs.hyper, state.kl_coefficient, batch)
        gradient = jax.grad(objective)(state.params)
        total, squares, samples, parts = sums
        size = jnp.sum(valid).astype(jnp.float32)
        return total + size * gradient, squares + jnp.sum(jnp.square(gradient)), samples + size, parts + (size > 0)

    zero = jnp.float32(0.0)
    start = (jnp.zeros_like(state.params), zero, zero, zero)
    total, squares, samples, parts = jax.lax.fori_loop(0, 2 * inputs.minibatches, add, start)
    parts, big = jnp.maximum(parts, 1.0), jnp.sum(jnp.square(total / jnp.maximum(samples, 1.0)))
    return jnp.stack([squares / parts, big, samples / parts, samples])
