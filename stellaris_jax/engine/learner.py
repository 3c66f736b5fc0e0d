"""Learner functions: the gradient of one minibatch on the policy version its learner had fetched."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses import Algorithm, TargetNetwork
from stellaris_jax.agent.losses.common import LossInputs, LossMetrics, Samples, Versions, mean
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.engine import versions
from stellaris_jax.engine.aggregator import rows
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.timeline.plan import Invocation, Peers


class DataLoader(NamedTuple):
    """Fragments and the minibatches they are cut into.

    fragments: samples `[F * M, ...]`, F buffers of M = T x N samples. order: int32 `[F, G, B]`, indices below M, or -1
    for nothing where fragments have `valid` samples only. version: int32 `[F]`, of the policies that acted.
    """

    fragments: Samples
    order: jax.Array
    version: jax.Array


class Cache(NamedTuple):
    """What learner functions fetch.

    Attributes:
      ring: the last versions, `[H, P]`.
      newest_version: number of the newest version.
      loader: minibatches.
      kl_coefficient: weight of the KL penalty.
    """

    ring: jax.Array
    newest_version: jax.Array
    loader: DataLoader
    kl_coefficient: jax.Array


class Fetched(NamedTuple):
    """What one learner function has fetched. params: the policy `[P]`. batch: its minibatch, with the target network's
    policies if there is one. others: policies `[K, P]` that other learners in flight held. peers: which of these rows
    count, `None` where nothing asks for them. versions: of the policy and of its data. kl_coefficient: weight of the
    KL penalty.
    """

    params: jax.Array
    batch: Samples
    others: jax.Array
    peers: Peers | None
    versions: Versions
    kl_coefficient: jax.Array


def store(loader: DataLoader, buffer: jax.Array, samples: Samples, order: jax.Array, version: jax.Array) -> DataLoader:
    """Put a fragment, at most `[M, ...]`, of a version, and its minibatch order `[G, B]` into a buffer."""

    def put(whole: Any, part: Any) -> Any:
        start = buffer * _rows(loader, whole)
        return jax.tree.map(partial(jax.lax.dynamic_update_slice_in_dim, start_index=start, axis=0), whole, part)

    carry = loader.fragments.carry
    fragments = put(loader.fragments._replace(carry=None), samples._replace(carry=None))
    if carry is not None:
        fragments = fragments._replace(carry=put(carry, samples.carry))
    order = jax.lax.dynamic_update_index_in_dim(loader.order, order, buffer, 0)
    return DataLoader(fragments, order, loader.version.at[buffer].set(version))


def minibatch(loader: DataLoader, buffer: jax.Array, index: jax.Array) -> Samples:
    """The samples `[B, ...]` a pointer (buffer, index) stands for."""

    def take(whole: Any, chosen: jax.Array) -> Any:
        rows = chosen + buffer * _rows(loader, whole)
        return jax.tree.map(lambda x: jnp.take(x, rows, axis=0, mode="clip"), whole)

    order, carry = loader.order[buffer, index], loader.fragments.carry
    chosen = jnp.maximum(order, 0)
    batch: Samples = take(loader.fragments._replace(carry=None), chosen)
    if carry is not None:
        # Of sequences the first steps come first, and their rows count environments.
        sequences = len(order) * _rows(loader, carry) // _rows(loader, loader.fragments)
        batch = batch._replace(carry=take(carry, chosen[:sequences]))
    return batch if batch.valid is None else batch._replace(valid=batch.valid & (order >= 0))


def _rows(loader: DataLoader, whole: Any) -> int:
    """How many rows of all of them a buffer has."""
    rows: int = jax.tree.leaves(whole)[0].shape[0] // loader.order.shape[0]
    return rows


def peer_log_ratio(network: ActorCritic, others: jax.Array, peers: Peers, batch: Samples) -> jax.Array:
    """min_i log(pi_i / mu) `[B]` over those of `others` `[K, P]` that other learners in flight held; +inf without any
    (Eq. 2).

    Each distinct version costs one forward pass of the policy.
    """

    def body(i: jax.Array, smallest: jax.Array) -> jax.Array:
        tree = network.unravel(versions.fetch(others, peers.slots[i]))
        log_prob = network.distribution.log_prob(network.policy(tree, batch.obs, batch.past), batch.action)
        return jnp.minimum(smallest, log_prob - batch.log_prob)

    return jax.lax.fori_loop(0, peers.number, body, jnp.full_like(batch.log_prob, jnp.inf))


def gradient(
    network: ActorCritic,
    spec: ProgramSpec,
    hyper: Hyper,
    cache: Cache,
    invocation: Invocation,
) -> tuple[jax.Array, LossMetrics]:
    """One learner invocation: gradient `[P]` and metrics.

    Args:
      network, spec, hyper: whose loss it is the gradient of.
      cache: what it fetches.
      invocation: scalars (see `stellaris_jax.timeline.plan`).
    """
    ring, _, loader, kl_coefficient = cache
    batch = minibatch(loader, invocation.buffer, invocation.minibatch)
    if isinstance(spec.algorithm, TargetNetwork):
        batch = with_target(network, versions.fetch(ring, invocation.target_slot), batch)
    params = versions.fetch(ring, invocation.slot)
    known = versions_of(cache, invocation)
    if invocation.kl_coefficient is not None:
        kl_coefficient = invocation.kl_coefficient
    fetched = Fetched(params, batch, ring, invocation.peers, known, kl_coefficient)
    return gradient_of(network, spec, hyper, fetched)


def gradient_of(
    network: ActorCritic, spec: ProgramSpec, hyper: Hyper, fetched: Fetched
) -> tuple[jax.Array, LossMetrics]:
    """The gradient `[P]` of what has been fetched, and metrics."""
    kind, batch, peers = spec.algorithm, cleared(fetched.batch, spec.sequences), fetched.peers
    inputs = LossInputs(
        batch,
        network.distribution,
        hyper,
        fetched.kl_coefficient,
        spec.steps,
        None if peers is None else peer_log_ratio(network, fetched.others, peers, batch),
        spec.truncation,
        spec.masks,
        fetched.versions,
    )
    grads, metrics = jax.grad(partial(loss, network, kind, inputs), has_aux=True)(network.unravel(fetched.params))
    return network.ravel(grads), metrics


def cleared(batch: Samples, sequences: bool) -> Samples:
    """A minibatch whose invalid rows hold nothing that a gradient could become non-finite by.

    A mean leaves them out, but its gradient is 0 times theirs, and 0 times infinity is not a number. In sequences,
    where later rows may follow from them, only what is not finite is cleared.
    """
    valid = batch.valid
    if valid is None:
        return batch

    def clear(x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        kept = rows(valid, x)
        return jnp.where(kept | jnp.isfinite(x) if sequences else kept, x, 0.0)

    whole = batch._replace(carry=None)
    return jax.tree.map(clear, whole)._replace(carry=batch.carry)  # type: ignore[no-any-return]


def versions_of(cache: Cache, invocations: Invocation) -> Versions:
    """The versions that gradients are of, and that their data were collected by; for each of the invocations."""
    fetched = cache.newest_version - versions.behind(cache.ring, cache.newest_version, invocations.slot)
    return Versions(fetched, cache.loader.version[invocations.buffer])


def drift(network: ActorCritic, cache: Cache, params: jax.Array, invocation: Invocation) -> jax.Array:
    """Mean KL(pi_fetched || pi) over a gradient's minibatch, a scalar, to the policy of these parameters `[P]`."""
    batch = minibatch(cache.loader, invocation.buffer, invocation.minibatch)
    fetched = versions.fetch(cache.ring, invocation.slot)
    before, after = (network.policy(network.unravel(own), batch.obs, batch.past) for own in (fetched, params))
    return mean(network.distribution.kl(before, after), batch.valid)


def with_target(network: ActorCritic, target: jax.Array, batch: Samples) -> Samples:
    """The minibatch with the policy of the target network `[P]`."""
    return batch._replace(target_policy=network.policy(network.unravel(target), batch.obs, batch.past))


def loss(
    network: ActorCritic, kind: Algorithm, inputs: LossInputs, tree: dict[str, Any]
) -> tuple[jax.Array, LossMetrics]:
    """The algorithm's loss at the parameters `tree`: of `inputs`, with what the network makes of their minibatch."""
    parameters, value = network.policy_and_value(tree, inputs.batch.obs, inputs.batch.past)
    return kind.bound(inputs.hyper.options).loss(inputs._replace(parameters=parameters, value=value))
