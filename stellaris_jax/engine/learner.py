"""Learner functions: the gradient of one minibatch on the policy version that its learner has fetched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses import Algorithm
from stellaris_jax.agent.losses.common import DRIFT, LossInputs, Metrics, Samples, Versions, drift, mean
from stellaris_jax.agent.losses.off_policy import ReplayInputs
from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.agent.networks.policy_network import DISTRIBUTION, VALUE
from stellaris_jax.agent.recipe import Recipe
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import code_location
from stellaris_jax.config.schema import shown
from stellaris_jax.engine import device_rows, versions
from stellaris_jax.engine.aggregator import rows
from stellaris_jax.engine.frames import Frames
from stellaris_jax.engine.keys import DRAWS
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.timeline.plan import Invocation, Peers

Objective = Callable[[dict[str, Any]], tuple[jax.Array, Metrics]]
"""Loss and metrics of a minibatch, from a tree of parameters."""


class DataLoader(NamedTuple):
    """Fragments and their minibatches.

    Attributes:
      fragments: samples `[F * M, ...]`, F buffers of M = T x N samples; or those of a replay buffer, which has more.
      order: minibatches as rows of their fragment, or of a replay buffer, int32 `[F, G, B]`; -1 marks an empty place.
      version: versions of the behaviour policies, int32 `[F]`.
      stored: fragments stored so far, int32; `None` without a replay buffer.
      keys: keys of what losses draw, one for each fragment `[F]`; `None` unless they draw.
      frames: frames that the observations of a replay buffer refer to; `None` if they are stored whole.
    """

    fragments: Samples
    order: jax.Array
    version: jax.Array
    stored: jax.Array | None = None
    keys: jax.Array | None = None
    frames: Frames | None = None

    def samples(self, buffer: Any) -> Samples:
        """Samples of the fragment in a buffer; of a replay buffer those of its minibatches, one after the other."""

        def part(x: Any) -> Any:
            if self.stored is not None:
                return x[self.order[buffer].reshape(-1)]
            rows = _rows(self, x)
            return jax.lax.dynamic_slice_in_dim(x, buffer * rows, rows)

        chosen: Samples = jax.tree.map(part, self.fragments)
        return chosen if self.frames is None else self.frames.filled(chosen)

    def places(self, buffer: int) -> np.ndarray:
        """Minibatches of a fragment as rows of `samples(buffer)`, int32 `[G, B]`; -1 marks an empty place."""
        order = np.asarray(self.order[buffer])
        if self.stored is not None:
            return np.where(order < 0, -1, np.arange(order.size, dtype=np.int32).reshape(order.shape))
        return order


class Cache(NamedTuple):
    """Cache from which learner functions fetch.

    Attributes:
      ring: the last versions, `[H, P]`.
      newest_version: number of the newest version.
      loader: minibatches.
      kl_coefficient: weight of the KL penalty.
      targets: target networks made of the parameters; `None` unless the algorithm has them.
    """

    ring: jax.Array
    newest_version: jax.Array
    loader: DataLoader
    kl_coefficient: jax.Array
    targets: versions.Targets | None


class Fetched(NamedTuple):
    """Inputs that one learner function has fetched.

    Attributes:
      params: the policy, `[P]`.
      batch: the minibatch, with the target network's policies if a loss on fresh data has one.
      others: policies that other learners in flight held, `[K, P]`.
      peers: rows of `others` that count; `None` if the truncation does not use them.
      versions: versions of the policy and of the behaviour policy.
      kl_coefficient: weight of the KL penalty.
      target: the target network, `[P]`, if a loss on a replay buffer has one.
      key: key of what the loss draws; `None` unless it draws.
    """

    params: jax.Array
    batch: Samples
    others: jax.Array
    peers: Peers | None
    versions: Versions
    kl_coefficient: jax.Array
    target: jax.Array | None = None
    key: jax.Array | None = None


def store(
    loader: DataLoader,
    buffer: jax.Array,
    samples: Samples,
    order: jax.Array,
    version: jax.Array,
    axis: str | None = None,
) -> DataLoader:
    """Store a fragment in a buffer, or as the newest one of a replay buffer.

    Args:
      loader: the data loader.
      buffer: index of the buffer.
      samples: samples of the fragment, at most `[M, ...]`.
      order: its minibatches, `[G, B]`, as indices of its samples; with a replay buffer, as rows of that.
      version: version of its behaviour policy.
      axis: mesh axis of devices that share a replay buffer; `None` if each has all of it.

    Returns:
      The data loader with the fragment.
    """
    count = loader.stored

    def put(stored: Any, part: Any) -> Any:
        if count is None:
            return device_rows.put(stored, part, buffer * _rows(loader, stored), None)
        batches = device_rows.total(stored.action, axis) // len(samples.action)
        return device_rows.put(stored, part, count % batches * len(samples.action), axis)

    carry = loader.fragments.carry
    fragments = put(loader.fragments._replace(carry=None), samples._replace(carry=None))
    if carry is not None:
        fragments = fragments._replace(carry=put(carry, samples.carry))
    order = jax.lax.dynamic_update_index_in_dim(loader.order, order, buffer, 0)
    after = loader._replace(fragments=fragments, order=order, version=loader.version.at[buffer].set(version))
    return after if count is None else after._replace(stored=count + 1)


def with_key(loader: DataLoader, buffer: jax.Array, key: jax.Array) -> DataLoader:
    """Data loader in which losses on the fragment in a buffer, the newest one, draw with a key made of the run's."""
    if loader.keys is None or loader.stored is None:
        return loader
    key = jax.random.fold_in(jax.random.fold_in(key, DRAWS), loader.stored)
    return loader._replace(keys=jax.lax.dynamic_update_index_in_dim(loader.keys, key, buffer, 0))


def minibatch(loader: DataLoader, buffer: jax.Array, index: jax.Array, axis: str | None = None) -> Samples:
    """Samples `[B, ...]` of the minibatch at a pointer (buffer, index); `axis` as in `store`."""

    def take(stored: Any, chosen: jax.Array) -> Any:
        rows = chosen if loader.stored is not None else chosen + buffer * _rows(loader, stored)
        return device_rows.take(stored, rows, axis)

    order, carry = loader.order[buffer, index], loader.fragments.carry
    chosen = jnp.maximum(order, 0)
    batch: Samples = take(loader.fragments._replace(carry=None), chosen)
    if loader.frames is not None:
        batch = loader.frames.filled(batch, axis)
    if carry is not None:
        # A minibatch of sequences starts with the sequences' first steps, whose rows are numbers of environments.
        sequences = len(order) * _rows(loader, carry) // _rows(loader, loader.fragments)
        batch = batch._replace(carry=take(carry, chosen[:sequences]))
    return batch if batch.valid is None else batch._replace(valid=batch.valid & (order >= 0))


def _rows(loader: DataLoader, stored: Any) -> int:
    """Number of rows of each buffer."""
    rows: int = jax.tree.leaves(stored)[0].shape[0] // loader.order.shape[0]
    return rows


def peer_log_ratio(network: PolicyNetwork, others: jax.Array, peers: Peers, batch: Samples) -> jax.Array:
    """Smallest log-ratio min_i log(pi_i / mu) `[B]` over the policies of other learners in flight (Eq. 2).

    Each distinct version costs one forward pass of the policy. Accelerators pass all K at once, because a loop whose
    length is a value waits for the host at every turn.

    Args:
      network: the policy's network.
      others: policies `[K, P]`.
      peers: rows of `others` that count.
      batch: the minibatch.

    Returns:
      Log-ratios `[B]`; +inf without any peers.
    """

    def log_ratio(i: jax.Array) -> jax.Array:
        tree = network.unravel(versions.fetch(others, peers.slots[i]))
        log_prob = network.distribution.log_prob(network.policy(tree, batch.obs, batch.past), batch.action)
        return log_prob - batch.log_prob

    def body(i: jax.Array, smallest: jax.Array) -> jax.Array:
        return jnp.minimum(smallest, log_ratio(i))

    if jax.default_backend() == "cpu":
        return jax.lax.fori_loop(0, peers.number, body, jnp.full_like(batch.log_prob, jnp.inf))
    ratios = jax.vmap(log_ratio)(places := jnp.arange(len(peers.slots)))
    return jnp.min(jnp.where((places < peers.number)[:, None], ratios, jnp.inf), axis=0)


def gradient(
    network: PolicyNetwork,
    spec: ProgramSpec,
    hyper: Hyper,
    cache: Cache,
    invocation: Invocation,
) -> tuple[jax.Array, Metrics]:
    """Gradient `[P]` and metrics of one learner invocation.

    Args:
      network, spec, hyper: network, program spec and hyper-parameters of the loss.
      cache: cache from which the learner fetches.
      invocation: arguments of the invocation, scalars (see `stellaris_jax.timeline.plan`).
    """
    ring, _, loader, kl_coefficient, _ = cache
    batch, target, key = minibatch(loader, invocation.buffer, invocation.minibatch, spec.buffer_axis), None, None
    if spec.algorithm.target == "version":
        target = versions.fetch(ring, invocation.target_slot)
    if cache.targets is not None:
        target = cache.targets.fetch(invocation.slot)
    if target is not None and spec.buffer is None:
        batch, target = with_target(network, target, batch), None
    if loader.keys is not None:
        key = jax.random.fold_in(loader.keys[invocation.buffer], invocation.minibatch)
    params = versions.fetch(ring, invocation.slot)
    known = versions_of(cache, invocation, spec.buffer_axis)
    if batch.version is not None:
        known = known._replace(behaviour=batch.version)
    if invocation.kl_coefficient is not None:
        kl_coefficient = invocation.kl_coefficient
    fetched = Fetched(params, batch, ring, invocation.peers, known, kl_coefficient, target, key)
    return gradient_of(network, spec, hyper, fetched)


def gradient_of(network: PolicyNetwork, spec: ProgramSpec, hyper: Hyper, fetched: Fetched) -> tuple[jax.Array, Metrics]:
    """Gradient `[P]` and metrics for fetched inputs."""
    of = _on_buffer if spec.buffer is not None else _on_fresh
    fetched = fetched._replace(batch=clear_invalid(fetched.batch, spec.sequences))
    objective = of(network, spec, hyper, fetched)
    grads, metrics = jax.grad(objective, has_aux=True)(network.unravel(fetched.params))
    if {*metrics} != {*spec.metrics}:
        algorithm = type(spec.algorithm)
        given, declared = (", ".join(sorted({*names} - {*DRIFT})) for names in (metrics, spec.metrics))
        place = f"{algorithm.__name__}.loss ({code_location(algorithm.loss)})"
        raise ConfigError(f"{place} returns the metrics {given}, not those that it declares: {declared}.")
    return network.ravel(grads), metrics


def _on_fresh(network: PolicyNetwork, spec: ProgramSpec, hyper: Hyper, fetched: Fetched) -> Objective:
    """Loss and metrics on fresh data, as a function of the policy's tree."""
    batch, peers = fetched.batch, fetched.peers
    inputs = partial(
        LossInputs,
        batch,
        network.distribution,
        hyper,
        fetched.kl_coefficient,
        spec.steps,
        peer_log_ratio=None if peers is None else peer_log_ratio(network, fetched.others, peers, batch),
        truncation=spec.truncation,
        masks=spec.masks,
        loss_mean=spec.loss_mean,
        versions=fetched.versions,
    )
    return partial(loss, network, spec.recipe, batch, inputs)


def _on_buffer(network: PolicyNetwork, spec: ProgramSpec, hyper: Hyper, fetched: Fetched) -> Objective:
    """Loss and metrics on draws from a replay buffer, as a function of the policy's tree."""
    algorithm = spec.algorithm.bound(hyper.options)
    target = None if fetched.target is None else network.unravel(fetched.target)

    def objective(tree: dict[str, Any]) -> tuple[jax.Array, Metrics]:
        inputs = ReplayInputs(fetched.batch, network, tree, target, hyper, fetched.key, fetched.versions)
        returned = algorithm.loss(inputs)
        check_returned(spec.algorithm, returned)
        return returned

    return objective


def clear_invalid(batch: Samples, sequences: bool) -> Samples:
    """Minibatch whose invalid rows cannot make the gradient non-finite.

    A mean leaves invalid rows out, but its gradient is 0 times theirs, and 0 times infinity is NaN. In sequences later
    rows may depend on invalid ones, so only non-finite values are cleared there.
    """
    valid = batch.valid
    if valid is None:
        return batch

    def clear(x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        is_valid = rows(valid, x)
        return jnp.where(is_valid | jnp.isfinite(x) if sequences else is_valid, x, 0.0)

    cleared: Samples = jax.tree.map(clear, batch._replace(carry=None))
    return cleared._replace(carry=batch.carry)


def versions_of(cache: Cache, invocations: Invocation, axis: str | None = None) -> Versions:
    """Versions of the learner's and the behaviour policy, for each invocation; the mean one of its valid samples.

    `axis` is as in `store`.
    """
    fetched = cache.newest_version - versions.behind(cache.ring, cache.newest_version, invocations.slot)
    loader = cache.loader
    if loader.fragments.version is None:
        return Versions(fetched, loader.version[invocations.buffer])
    chosen = loader.order[invocations.buffer, invocations.minibatch]
    rows = chosen
    if loader.stored is None:
        rows = invocations.buffer[..., None] * _rows(loader, loader.fragments) + chosen
    behaviour = device_rows.take(loader.fragments.version, rows, axis).astype(jnp.float32)
    if loader.fragments.valid is None:
        return Versions(fetched, jnp.mean(behaviour, axis=-1))
    # A minibatch without any valid samples has no lag.
    used = device_rows.take(loader.fragments.valid, rows, axis) & (chosen >= 0)
    total, count = jnp.sum(jnp.where(used, behaviour, 0.0), axis=-1), jnp.sum(used, axis=-1)
    return Versions(fetched, jnp.where(count > 0, total / jnp.maximum(count, 1), fetched))


def policy_kl(
    network: PolicyNetwork, spec: ProgramSpec, cache: Cache, params: jax.Array, invocation: Invocation
) -> jax.Array:
    """Mean KL(pi_fetched || pi) over a gradient's minibatch, a scalar, where pi has the parameters `params` `[P]`."""
    batch = minibatch(cache.loader, invocation.buffer, invocation.minibatch, spec.buffer_axis)
    fetched = versions.fetch(cache.ring, invocation.slot)
    before, after = (network.policy(network.unravel(flat), batch.obs, batch.past) for flat in (fetched, params))
    return mean(network.distribution.kl(before, after), batch.valid)


def with_target(network: PolicyNetwork, target: jax.Array, batch: Samples) -> Samples:
    """Minibatch with the policy of the target network `[P]`."""
    return batch._replace(target_policy=network.policy(network.unravel(target), batch.obs, batch.past))


def loss(
    network: PolicyNetwork,
    recipe: Recipe,
    batch: Samples,
    inputs: Callable[..., LossInputs],
    tree: dict[str, Any],
) -> tuple[jax.Array, Metrics]:
    """Loss of a minibatch, and its metrics.

    Args:
      network: the network.
      recipe: the algorithm, and what makes its data.
      batch: the minibatch.
      inputs: function from the network's outputs on the minibatch, fields of `LossInputs`, to the loss's inputs.
      tree: parameters of the network.
    """
    outputs = dict(network.evaluate(tree, batch.obs, batch.past))
    parameters, value = outputs.pop(DISTRIBUTION), outputs.pop(VALUE, None)
    complete = recipe.learned(inputs(parameters=parameters, value=value, outputs=outputs))
    returned = recipe.algorithm.bound(complete.hyper.options).loss(complete)
    check_returned(recipe.algorithm, returned)
    total, metrics = returned
    return total, {**metrics, **drift(complete)}


def check_returned(algorithm: Algorithm, returned: Any) -> None:
    """Raise ConfigError unless a loss has returned a scalar and scalars by name."""
    place = f"{type(algorithm).__name__}.loss ({code_location(type(algorithm).loss)})"
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
        raise ConfigError(f"{place} returns {shown(type(returned).__name__)}, not a loss and its metrics by name.")
    for name, number in {"the loss": returned[0], **returned[1]}.items():
        if not isinstance(number, jax.Array | float | int) or jnp.shape(number) != ():
            raise ConfigError(f"{place} returns {name} as {shown(number)}, not as one number.")
