"""Learner functions: the gradient of one minibatch on the policy version its learner had fetched."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses import Algorithm, TargetNetwork
from stellaris_jax.agent.losses.common import LossInputs, LossMetrics, Samples
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.engine import versions
from stellaris_jax.engine.static import Static
from stellaris_jax.timeline.plan import Invocation, Peers


class DataLoader(NamedTuple):
    """Fragments and the minibatches they are cut into.

    fragments: samples `[F * M, ...]`, F buffers of M = T x N samples. order: int32 `[F, G, B]`, indices below M, or -1
    for nothing where fragments have `valid` samples only.
    """

    fragments: Samples
    order: jax.Array


def store(loader: DataLoader, buffer: jax.Array, samples: Samples, order: jax.Array) -> DataLoader:
    """Put a fragment, at most `[M, ...]`, and its minibatch order `[G, B]` into a buffer."""
    size = loader.fragments.advantage.shape[0] // loader.order.shape[0]
    put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=buffer * size, axis=0)
    fragments = jax.tree.map(put, loader.fragments, samples)
    return DataLoader(fragments, jax.lax.dynamic_update_index_in_dim(loader.order, order, buffer, 0))


def minibatch(loader: DataLoader, buffer: jax.Array, index: jax.Array) -> Samples:
    """The samples `[B, ...]` a pointer (buffer, index) stands for."""
    size = loader.fragments.advantage.shape[0] // loader.order.shape[0]
    order = loader.order[buffer, index]
    rows = jnp.maximum(order, 0) + buffer * size
    batch = jax.tree.map(lambda x: jnp.take(x, rows, axis=0, mode="clip"), loader.fragments)
    return batch if batch.valid is None else batch._replace(valid=batch.valid & (order >= 0))


def peer_log_ratio(network: ActorCritic, ring: jax.Array, peers: Peers, batch: Samples) -> jax.Array:
    """min_i log(pi_i / mu) `[B]` over the versions other learners in flight held; +inf without any (Eq. 2).

    Each distinct version costs one forward pass of the policy.
    """

    def body(i: jax.Array, smallest: jax.Array) -> jax.Array:
        tree = network.unravel(versions.fetch(ring, peers.slots[i]))
        log_prob = network.distribution.log_prob(network.policy(tree, batch.obs), batch.action)
        return jnp.minimum(smallest, log_prob - batch.log_prob)

    return jax.lax.fori_loop(0, peers.number, body, jnp.full_like(batch.log_prob, jnp.inf))


def gradient(
    network: ActorCritic,
    static: Static,
    hyper: Hyper,
    ring: jax.Array,
    loader: DataLoader,
    kl_coefficient: jax.Array,
    invocation: Invocation,
) -> tuple[jax.Array, LossMetrics]:
    """One learner invocation: gradient `[P]` and metrics.

    Args:
      network, static, hyper: whose loss it is the gradient of.
      ring: the versions `[H, P]`.
      loader: the data.
      kl_coefficient: weight of the KL penalty.
      invocation: scalars (see `stellaris_jax.timeline.plan`).
    """
    kind = static.algorithm
    batch = minibatch(loader, invocation.buffer, invocation.minibatch)
    if isinstance(kind, TargetNetwork):
        batch = with_target(network, versions.fetch(ring, invocation.target_slot), batch)
    peers = None if invocation.peers is None else peer_log_ratio(network, ring, invocation.peers, batch)
    inputs = LossInputs(batch, network.distribution, hyper, kl_coefficient, static.steps, peers, static.truncation)
    tree = network.unravel(versions.fetch(ring, invocation.slot))
    grads, metrics = jax.grad(partial(loss, network, kind, inputs), has_aux=True)(tree)
    return network.ravel(grads), metrics


def with_target(network: ActorCritic, target: jax.Array, batch: Samples) -> Samples:
    """The minibatch with the policy of the target network `[P]`."""
    return batch._replace(target_policy=network.policy(network.unravel(target), batch.obs))


def loss(
    network: ActorCritic, kind: Algorithm, inputs: LossInputs, tree: dict[str, Any]
) -> tuple[jax.Array, LossMetrics]:
    """The algorithm's loss at the parameters `tree`: of `inputs`, with what the network makes of their minibatch."""
    parameters, value = network.policy_and_value(tree, inputs.batch.obs)
    return kind.bound(inputs.hyper.options).loss(inputs._replace(parameters=parameters, value=value))
