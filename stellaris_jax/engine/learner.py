"""Learner functions: the gradient of one minibatch on the policy version its learner had fetched."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.losses.common import LossMetrics, Samples
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.config.tree import AlgorithmConfig, Config, SystemConfig
from stellaris_jax.engine import versions
from stellaris_jax.registry import register
from stellaris_jax.timeline.plan import Cut


class DataLoader(NamedTuple):
    """Fragments and the minibatches they are cut into.

    fragments: samples `[F * M, ...]`, F buffers of M = T x N samples. order: int32 `[F, G, B]`, indices below M, or -1
    for nothing where fragments have `valid` samples only.
    """

    fragments: Samples
    order: jax.Array


def cut_of(config: Config) -> Cut:
    """How a configuration's data loader cuts its fragments."""
    algorithm = config.algorithm
    length = algorithm.rollout_length if register.algorithm[algorithm.name].sequences else 1
    return Cut(algorithm.epochs, algorithm.minibatches, algorithm.rollout_length, config.env.num_envs, length)


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
    loader: DataLoader,
    kl_coefficient: jax.Array,
    slot: jax.Array,
    peers: jax.Array,
) -> tuple[jax.Array, LossMetrics]:
    """One learner invocation: gradient `[P]` and metrics.

    `slot` is int32 `[4]`: fragment buffer, minibatch, ring slots of the fetched version and of its target network
    (algorithms without one ignore it); `peers` as above.
    """
    batch = minibatch(loader, slot[0], slot[1])
    if register.algorithm[algorithm.name].target_network:
        batch = with_target(network, versions.fetch(ring, slot[3]), batch)
    others = peer_log_ratio(network, ring, peers, batch) if peers.shape[0] > 1 else None
    modes = (system.truncation, system.rho)
    objective = partial(loss, network, algorithm, batch, others, kl_coefficient, *modes)
    grads, metrics = jax.grad(objective, has_aux=True)(network.unravel(versions.fetch(ring, slot[2])))
    return network.ravel(grads), metrics


def with_target(network: ActorCritic, target: jax.Array, batch: Samples) -> Samples:
    """The minibatch with the policy of the target network `[P]`."""
    return batch._replace(target_policy=network.policy(network.unravel(target), batch.obs))


def loss(
    network: ActorCritic,
    algorithm: AlgorithmConfig,
    batch: Samples,
    others: jax.Array | None,
    kl_coefficient: jax.Array,
    truncation: str,
    rho: float,
    tree: dict,
) -> tuple[jax.Array, LossMetrics]:
    """The algorithm's loss of a minibatch at the parameters `tree`."""
    outputs = network.policy_and_value(tree, batch.obs)
    rest = (batch, others, kl_coefficient, algorithm, truncation, rho)
    return register.algorithm[algorithm.name].loss(network.distribution, *outputs, *rest)
