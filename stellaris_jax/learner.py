"""Learner functions: the gradient of one minibatch on the policy version its learner had fetched."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax import versions
from stellaris_jax.config import AlgorithmConfig, SystemConfig
from stellaris_jax.losses import ALGORITHMS
from stellaris_jax.losses.common import LossMetrics, Samples
from stellaris_jax.networks import ActorCritic


class DataLoader(NamedTuple):
    """Fragments and the minibatches they are cut into.

    fragments: samples `[F * M, ...]`, F buffers of M = T x N samples. order: int32 `[F, G, B]`, indices below M.
    """

    fragments: Samples
    order: jax.Array


def store(loader: DataLoader, buffer: jax.Array, samples: Samples, order: jax.Array) -> DataLoader:
    """Put a fragment `[M, ...]` and its minibatch order `[G, B]` into a buffer."""
    size = samples.advantage.shape[0]
    put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=buffer * size, axis=0)
    fragments = jax.tree.map(put, loader.fragments, samples)
    return DataLoader(fragments, jax.lax.dynamic_update_index_in_dim(loader.order, order, buffer, 0))


def minibatch(loader: DataLoader, buffer: jax.Array, index: jax.Array) -> Samples:
    """The samples `[B, ...]` a pointer (buffer, index) stands for."""
    size = loader.fragments.advantage.shape[0] // loader.order.shape[0]
    rows = loader.order[buffer, index] + buffer * size
    return jax.tree.map(lambda x: jnp.take(x, rows, axis=0, mode="clip"), loader.fragments)


def peer_log_ratio(network: ActorCritic, ring: jax.Array, peers: jax.Array, batch: Samples) -> jax.Array:
    """min_i log(pi_i / mu) `[B]` over the versions other learners in flight held; +inf without any (Eq. 2).

    `peers` is int32 `[1 + K]`: a count, then ring slots. Each distinct version costs one forward pass of the policy.
    """

    def body(i: jax.Array, smallest: jax.Array) -> jax.Array:
        tree = network.unravel(versions.fetch(ring, peers[1 + i]))
        log_prob = network.distribution.log_prob(network.policy(tree, batch.obs), batch.action)
        return jnp.minimum(smallest, log_prob - batch.log_prob)

    return jax.lax.fori_loop(0, peers[0], body, jnp.full_like(batch.log_prob, jnp.inf))


def gradient(
    network: ActorCritic,
    algorithm: AlgorithmConfig,
    system: SystemConfig,
    ring: jax.Array,
    target: jax.Array | None,
    loader: DataLoader,
    kl_coefficient: jax.Array,
    slot: jax.Array,
    peers: jax.Array,
) -> tuple[jax.Array, LossMetrics]:
    """One learner invocation: gradient `[P]` and metrics.

    `slot` is int32 `[3]`: fragment buffer, minibatch, ring slot of the fetched version; `peers` as above. `target` is
    the target network `[P]` in force when the gradient is aggregated; `None` for algorithms without one.
    """
    batch = minibatch(loader, slot[0], slot[1])
    others = peer_log_ratio(network, ring, peers, batch) if peers.shape[0] > 1 else None
    if target is not None:
        batch = batch._replace(target_policy=network.policy(network.unravel(target), batch.obs))

    def loss(tree: dict) -> tuple[jax.Array, LossMetrics]:
        return ALGORITHMS[algorithm.name].loss(
            network.distribution,
            *network.policy_and_value(tree, batch.obs),
            batch,
            others,
            kl_coefficient,
            algorithm,
            system.truncation,
            system.rho,
        )

    grads, metrics = jax.grad(loss, has_aux=True)(network.unravel(versions.fetch(ring, slot[2])))
    return network.ravel(grads), metrics
