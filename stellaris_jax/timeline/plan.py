"""Plan: a timeline's events as dense arrays, which the engine executes.

Between two updates of the policy all needed versions exist, so the gradients of one group can be computed
together. A group of H gradients is cut into ceil(H / L) *waves* of L = lanes x devices places; the last wave
of a group applies the optimizer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.base.registry import register
from stellaris_jax.config.buffer import ReplayBuffer
from stellaris_jax.config.options import estimator_of, is_recurrent
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.collection import (
    Bounds,
    Collection,
    CollectionSizes,
    Step,
    lay_out,
    power_of_two,
)
from stellaris_jax.timeline.records import Round
from stellaris_jax.timeline.replay import drawn_minibatches
from stellaris_jax.timeline.shapes import PlanShape

Indices = Any
"""Int32 array: NumPy's in a plan, JAX's in the engine."""


class Peers(NamedTuple):
    """Other versions that learners in flight held.

    Attributes:
      number: number of these versions, `[...]`.
      slots: their ring slots, `[..., K]`.
    """

    number: Indices
    slots: Indices


class Invocation(NamedTuple):
    """Arguments of learner functions; all fields have the same leading axes.

    Attributes:
      buffer: buffer of the fragment (first half of the pointer).
      minibatch: index of the minibatch in the fragment (second half of the pointer).
      slot: ring slot of the version that the gradient is computed on.
      target_slot: ring slot of the target network in force when that version was the newest.
      peers: other versions in flight; `None` if the truncation does not use them.
      kl_coefficient: weight of the KL penalty; `None` if the round's weight applies.
    """

    buffer: Indices
    minibatch: Indices
    slot: Indices
    target_slot: Indices
    peers: Peers | None
    kl_coefficient: Any = None


class Plan(NamedTuple):
    """Chunk of R rounds for S seeds; C = wave capacity, L = places of a wave, K = most peers, G x B = minibatches.

    Attributes:
      invocations: arguments of the waves' learner functions, `[C, S, L]`.
      weights: weight of each gradient (Eq. 4), float32 `[C, S, L]`; 0 marks an empty place.
      sizes: size H of the group that this wave completes, else 0, int32 `[C, S]`.
      bounds: first wave of each round, and the one after its last, int32 `[R, 2]`; with independent actors steps
        instead of waves.
      behaviour: ring slot of the version that actors use, int32 `[R, S]`.
      envs: number of environments that take part in the round (the first ones), int32 `[R, S]`.
      order: the data loader's minibatches, as indices into the fragment's samples, or into a replay buffer, int32
        `[R, S, G, B]`; -1: none.
      learning_rate: factor on the base learning rate, float32 `[R]`.
      collection: what independent actors roll, and batches; `None` for other actors, which roll a fragment a round.
      steps: parts of each step of independent actors; `None` for other actors.
      ends: whether the plan is executed to the end of its rounds, bool; false for a stretch after which others follow;
        `None` without stretches.
    """

    invocations: Invocation
    weights: np.ndarray
    sizes: np.ndarray
    bounds: np.ndarray
    behaviour: np.ndarray
    envs: np.ndarray
    order: np.ndarray
    learning_rate: np.ndarray
    collection: Collection | None = None
    steps: Bounds | None = None
    ends: Any = None

    def waves(self, round_: int) -> int:
        """Number of waves of gradients in a round."""
        first, end = self.bounds[round_]
        if self.steps is None:
            return int(end - first)
        gradients = self.steps.gradients[first:end]
        return int((gradients[:, 1] - gradients[:, 0]).sum())


class MinibatchLayout(NamedTuple):
    """Layout of a fragment `[T, N]` as minibatches of at most `batch` = T N / `minibatches` samples.

    Attributes:
      epochs: passes over the fragment.
      minibatches: minibatches of an epoch.
      steps: T.
      envs: N.
      length: T if a minibatch holds all steps of some environments, `[T, n]`, flattened; 1 if it holds single samples.
      buffer: sizes of the replay buffer from which minibatches are drawn instead; `None` without one.
    """

    epochs: int
    minibatches: int
    steps: int
    envs: int
    length: int = 1
    buffer: ReplayBuffer | None = None

    @classmethod
    def of(cls, config: Config) -> MinibatchLayout:
        """Layout of a configuration; imports the algorithm, which says whether it needs sequences."""
        settings = config.algorithm
        sequences = register.algorithm[settings.name].sequences or register.advantage[estimator_of(config)].by_learners
        sequences |= is_recurrent(config)
        steps, buffer = settings.rollout_length, ReplayBuffer.of(config)
        if buffer is not None:
            return cls(1, buffer.gradients, steps, config.env.num_envs, buffer=buffer)
        return cls(settings.epochs, settings.minibatches, steps, config.env.num_envs, steps if sequences else 1)

    @property
    def batch(self) -> int:
        """Samples of a minibatch."""
        if self.buffer is not None:
            return self.buffer.batch
        return self.steps * self.envs // self.minibatches

    def count(self, envs: int) -> int:
        """Minibatches of each epoch over a fragment of so many environments."""
        if self.buffer is not None:
            return self.minibatches if envs else 0
        return -(-self.steps * envs // self.batch)

    def gradients(self, fragment: int, envs: int) -> int:
        """Minibatches of a fragment of so many environments, over all epochs."""
        waits = self.buffer is not None and fragment < self.buffer.waiting
        return 0 if waits else self.epochs * self.count(envs)


class _Draws(threading.local):
    """Generator of each thread, which begins anew for each key: making one takes ten times as long."""

    def __init__(self) -> None:
        self._philox = np.random.Philox(key=0)
        self._begin = self._philox.state
        self._generator = np.random.Generator(self._philox)

    def generator(self, key: int) -> np.random.Generator:
        """Generator that draws what a new `Philox(key=key)` does; valid until the next call."""
        high, low = divmod(key, 2**64)
        self._begin["state"]["key"][:] = low, high
        self._philox.state = self._begin
        return self._generator


_draws = _Draws()


@lru_cache(maxsize=16)
def _counted(number: int, rows: int) -> np.ndarray:
    """Numbers 0, 1, ... in each row, int64 `[rows, number]`."""
    return np.tile(np.arange(number), (rows, 1))


def minibatch_order(
    seed: int, fragment: int, layout: MinibatchLayout, envs: int | None = None, width: int | None = None
) -> np.ndarray:
    """Minibatches of a fragment: a fresh permutation per epoch, cut into minibatches; or draws from a replay buffer.

    Args:
      seed: seed of the run.
      fragment: index of the fragment.
      layout: the layout.
      envs: environments that took part, the first of `width`; N by default.
      width: environments of the fragment, whose samples are rows `[T, width]`; N by default.

    Returns:
      Indices of samples, int32 `[epochs * count, B]`. If the samples do not fill the minibatches, they are spread
      evenly, and the remaining places hold -1.
    """
    envs = layout.envs if envs is None else envs
    width = layout.envs if width is None else width
    if envs == 0:
        return np.empty((0, layout.batch), np.int32)
    generator = _draws.generator((fragment << 64) | (seed << 1) | 1)
    if layout.buffer is not None:
        return drawn_minibatches(generator, layout.buffer, layout.steps * layout.envs, fragment)
    sequences, places, count = layout.steps * envs // layout.length, layout.batch // layout.length, layout.count(envs)
    # Permute 64-bit integers: NumPy swaps them twice as fast as shorter ones.
    order = _counted(sequences, layout.epochs).copy()
    for epoch in order:
        generator.shuffle(epoch)  # as `permuted` does, which keeps other threads from drawing meanwhile
    order = order.astype(np.int32)
    if width != envs and layout.length == 1:
        order += (width - envs) * (order // envs)  # sample t * envs + e is row t * width + e
    if sequences == count * places:
        first = order.reshape(layout.epochs, count, places)
    else:
        first = np.full((layout.epochs, count, places), -1, np.int32)
        for minibatch, part in enumerate(np.array_split(order, count, axis=1)):
            first[:, minibatch, : part.shape[1]] = part
    if layout.length > 1:
        rows = first[:, :, None] + width * np.arange(layout.length, dtype=np.int32)[:, None]
        first = np.where(first[:, :, None] < 0, -1, rows)
    return first.reshape(layout.epochs * count, layout.batch)


def empty_plan(shape: PlanShape, capacity: int | None = None) -> Plan:
    """Plan without any waves, with room for `capacity` of them, by default the shape's."""
    rounds, seeds, capacity = shape.rounds, shape.seeds, capacity or shape.capacity
    places = (capacity, seeds, shape.wave_size)
    buffer, minibatch, slot, target_slot, number = (np.zeros(places, np.int32) for _ in range(5))
    peers = Peers(number, np.zeros((*places, shape.peers), np.int32)) if shape.peers else None
    kl_coefficient = np.zeros(places, np.float32) if shape.kl_coefficient_per_gradient else None
    return Plan(
        invocations=Invocation(buffer, minibatch, slot, target_slot, peers, kl_coefficient),
        weights=np.zeros(places, np.float32),
        sizes=np.zeros((capacity, seeds), np.int32),
        bounds=np.zeros((rounds, 2), np.int32),
        behaviour=np.zeros((rounds, seeds), np.int32),
        envs=np.zeros((rounds, seeds), np.int32),
        order=np.full((rounds * (shape.collection is None), seeds, shape.gradients, shape.batch), -1, np.int32),
        learning_rate=np.zeros(rounds, np.float32),
    )


def build_plan(
    shape: PlanShape,
    records: Sequence[Sequence[Round]],
    orders: Iterable[Iterable[np.ndarray]],
    learning_rate: Sequence[float],
    envs: Sequence[Sequence[int]] | None = None,
) -> Plan:
    """Lay `records[r][s]` out as waves; seeds with fewer waves in a round get empty ones.

    Args:
      shape: sizes of the plan.
      records: at most R rounds of S seeds each. Rounds beyond them stay empty, so that the last, shorter chunk has
        the same shape.
      orders: minibatch order of fragment r of seed s, `[r][s]`; may be a lazy iterable.
      learning_rate: the schedule's factor, `[r]`.
      envs: number of environments that take part, `[r][s]`.

    Returns:
      The plan.
    """
    plan = empty_plan(shape)
    rounds = len(records)
    plan.learning_rate[:rounds] = learning_rate
    plan.behaviour[:rounds] = [[shape.ring.slot(record.behaviour_version) for record in row] for row in records]
    if envs is not None:
        plan.envs[:rounds] = envs
    for order, row in zip(plan.order, orders, strict=False):
        for minibatches, drawn in zip(order, row, strict=True):
            minibatches[: len(drawn)] = drawn
    _lay_out(plan, plan.bounds, shape, records)
    return plan


def build_collection_plan(
    shape: PlanShape,
    rounds: Sequence[Sequence[Sequence[Step]]],
    order: Callable[[int, int], np.ndarray],
    learning_rate: Sequence[float],
    sizes: CollectionSizes,
    ends: bool = True,
) -> tuple[Plan, CollectionSizes]:
    """Plan of independent actors' rounds, and the capacities of its collection.

    Args:
      shape: sizes of the plan.
      rounds: steps of each round and seed, `[r][s][k]` (`stellaris_jax.timeline.collection.Collector`).
      order: function from (seed's place, batch) to the batch's minibatches, int32 `[G, B]`.
      learning_rate: the schedule's factor, `[r]`.
      sizes: smallest capacities of the collection.
      ends: whether the last round ends with the plan.
    """
    collection, bounds, round_bounds, rows, sizes = lay_out(shape, rounds, order, sizes)
    # Steps of several seeds need not have as many waves, and then share fewer of them.
    waves = sum(max(sum(-(-len(g.gradients) // shape.wave_size) for g in step.groups) for step in row) for row in rows)
    plan = empty_plan(shape, shape.capacity if waves <= shape.capacity else power_of_two(waves))
    plan.learning_rate[: len(rounds)] = learning_rate
    _lay_out(plan, bounds.gradients, shape, rows)
    assert shape.collection is not None, "actors are not independent"
    ended = np.bool_(ends) if shape.collection.follows else None
    return plan._replace(bounds=round_bounds, collection=collection, steps=bounds, ends=ended), sizes


def _lay_out(plan: Plan, out: np.ndarray, shape: PlanShape, records: Sequence[Sequence[Round | Step]]) -> None:
    """Write the groups of rounds or steps `[r][s]` into the plan, and their bounds into `out`."""
    cells = [record for row in records for record in row]
    groups = [group for record in cells for group in record.groups]
    gradients = [gradient for group in groups for gradient in group.gradients]
    sizes = _numbers([len(group.gradients) for group in groups])
    waves = -(-sizes // shape.wave_size)
    done = np.concatenate([[0], waves.cumsum()])  # waves up to each group, if rounds and seeds followed one another
    counts = _numbers([len(record.groups) for record in cells])
    last = counts.cumsum()
    begins, ends = done[last - counts], done[last]  # for each round and seed
    bounds = np.concatenate([[0], (ends - begins).reshape(len(records), -1).max(axis=1).cumsum()])
    out[: len(records)] = np.stack([bounds[:-1], bounds[1:]], axis=1)
    seeds = np.tile(np.arange(shape.seeds), len(records)).repeat(counts)
    first = done[:-1] + (bounds[:-1].repeat(shape.seeds) - begins).repeat(counts)
    plan.sizes[first + waves - 1, seeds] = sizes

    index, lanes = np.divmod(_within(sizes), shape.wave_size)
    places = ((first.repeat(sizes) + index) * shape.seeds + seeds.repeat(sizes)) * shape.wave_size + lanes
    version = _numbers([gradient.version for gradient in gradients])
    buffer, minibatch, slot, target_slot, peers, kl_coefficient = plan.invocations
    _flat(buffer)[places] = shape.fragments.slot(_numbers([gradient.fragment for gradient in gradients]))
    _flat(minibatch)[places] = [gradient.minibatch for gradient in gradients]
    _flat(slot)[places] = shape.ring.slot(version)
    _flat(target_slot)[places] = shape.ring.slot(shape.target(version))
    _flat(plan.weights)[places] = [weight for group in groups for weight in group.weights]
    if kl_coefficient is not None:
        _flat(kl_coefficient)[places] = [gradient.kl_coefficient for gradient in gradients]
    if peers is not None:
        number = _numbers([len(gradient.peers) for gradient in gradients])
        held = _numbers([version for gradient in gradients for version in gradient.peers])
        _flat(peers.number)[places] = number
        _flat(peers.slots)[places.repeat(number) * shape.peers + _within(number)] = shape.ring.slot(held)


def _numbers(values: Sequence[int]) -> np.ndarray:
    return np.fromiter(values, np.int64, len(values))


def _flat(column: np.ndarray) -> np.ndarray:
    """View of an array with a single axis."""
    return column.reshape(-1)


def _within(sizes: np.ndarray) -> np.ndarray:
    """Numbers 0, ..., n - 1 for each size n, concatenated."""
    numbers: np.ndarray = np.arange(sizes.sum()) - (sizes.cumsum() - sizes).repeat(sizes)
    return numbers
