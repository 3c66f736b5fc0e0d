"""From events to dense arrays: the plan that the engine executes.

Between two updates of the policy all versions needed already exist, so the gradients of one group may be computed
together. A group of H gradients is cut into ceil(H / L) *waves* of L = lanes x devices places; the last wave
of a group applies the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.timeline.records import Round

Indices = Any
"""Int32, of NumPy where they are planned, of JAX where they are executed."""


class Peers(NamedTuple):
    """The other versions that learners in flight held: how many `[...]`, and their ring slots `[..., K]`."""

    number: Indices
    slots: Indices


class Invocation(NamedTuple):
    """What a learner function is invoked with, each with the same leading axes.

    buffer, minibatch: the pointer: a fragment's buffer, and which of its minibatches. slot: ring slot of the version
    the gradient is computed on; target_slot: of the target network in force when that version was the newest. peers:
    `None` where nothing asks for them. kl_coefficient: weight of the KL penalty; `None` where it is the round's.
    """

    buffer: Indices
    minibatch: Indices
    slot: Indices
    target_slot: Indices
    peers: Peers | None
    kl_coefficient: Any = None


class Plan(NamedTuple):
    """A chunk of R rounds for S seeds; C = wave capacity, L = places of a wave, K = most peers, G x B = minibatches.

    invocations: `[C, S, L]`: of the wave's learner functions.
    weights: float32 `[C, S, L]`: weight of each gradient (Eq. 4); 0 marks an empty place.
    sizes: int32 `[C, S]`: size H of the group that this wave completes, else 0.
    bounds: int32 `[R, 2]`: first wave of each round and the one after its last.
    behaviour: int32 `[R, S]`: ring slot of the version the actors use.
    envs: int32 `[R, S]`: environments that take part in the round, the first ones.
    order: int32 `[R, S, G, B]`: the data loader's minibatches, as indices into the fragment's samples; -1 for nothing.
    learning_rate: float32 `[R]`: factor on the base learning rate.
    """

    invocations: Invocation
    weights: np.ndarray
    sizes: np.ndarray
    bounds: np.ndarray
    behaviour: np.ndarray
    envs: np.ndarray
    order: np.ndarray
    learning_rate: np.ndarray


class PlanShape(NamedTuple):
    """The static sizes of a plan; one compiled engine runs all plans of one shape.

    wave_size: places L of a wave. versions: length H of the window of versions that gradients may be of.
    target_interval: versions from one target network to the next; 1 without any. recorded: gradients have weights of
    the KL penalty of their own.
    """

    rounds: int
    seeds: int
    wave_size: int
    peers: int
    gradients: int
    batch: int
    versions: int
    buffers: int
    target_interval: int = 1
    recorded: bool = False

    @property
    def ring(self) -> int:
        """Versions to be kept: the oldest one in use may have a target network that is older still."""
        return self.versions + self.target_interval - 1

    def target(self, version: Any) -> Any:
        """The version that was the target network when `version` was the newest; of an array, for each."""
        return version - version % self.target_interval

    @property
    def capacity(self) -> int:
        """Waves that always suffice: a round executes at most the gradients of `buffers` fragments."""
        return self.rounds * self.gradients * self.buffers


class MinibatchLayout(NamedTuple):
    """How the data loader cuts a fragment `[T, N]`: into minibatches of at most `batch` = T N / `minibatches` samples.

    envs: N. length: T if a minibatch is all steps of some environments, `[T, n]`, flattened; 1 if it is of samples.
    """

    epochs: int
    minibatches: int
    steps: int
    envs: int
    length: int = 1

    @property
    def batch(self) -> int:
        return self.steps * self.envs // self.minibatches

    def count(self, envs: int) -> int:
        """Minibatches of each epoch over a fragment of so many environments."""
        return -(-self.steps * envs // self.batch)


def minibatch_order(
    seed: int, fragment: int, cut: MinibatchLayout, envs: int | None = None, width: int | None = None
) -> np.ndarray:
    """The data loader: a fresh permutation per epoch, cut into minibatches. Int32 `[epochs * count, B]`.

    Args:
      envs: environments that took part; the first of `width`, whose samples are the fragment's rows `[T, width]`.

    Both are N by default. Where the samples do not fill the minibatches, all are as full as they can be evenly, and the
    rest of their places hold -1.
    """
    envs = cut.envs if envs is None else envs
    width = cut.envs if width is None else width
    if envs == 0:
        return np.empty((0, cut.batch), np.int32)
    generator = np.random.Generator(np.random.Philox(key=(fragment << 64) | (seed << 1) | 1))
    sequences, places, count = cut.steps * envs // cut.length, cut.batch // cut.length, cut.count(envs)
    # NumPy swaps words of 64 bits twice as fast as shorter ones.
    order = np.tile(np.arange(sequences), (cut.epochs, 1))
    order = generator.permuted(order, axis=1, out=order).astype(np.int32)
    if width != envs and cut.length == 1:
        order += (width - envs) * (order // envs)  # sample t * envs + e is row t * width + e
    if sequences == count * places:
        first = order.reshape(cut.epochs, count, places)
    else:
        first = np.full((cut.epochs, count, places), -1, np.int32)
        for minibatch, part in enumerate(np.array_split(order, count, axis=1)):
            first[:, minibatch, : part.shape[1]] = part
    if cut.length > 1:
        rows = first[:, :, None] + width * np.arange(cut.length, dtype=np.int32)[:, None]
        first = np.where(first[:, :, None] < 0, -1, rows)
    return first.reshape(cut.epochs * count, cut.batch)


def empty_plan(shape: PlanShape) -> Plan:
    """A plan of nothing."""
    rounds, seeds = shape.rounds, shape.seeds
    places = (shape.capacity, seeds, shape.wave_size)
    buffer, minibatch, slot, target_slot, number = (np.zeros(places, np.int32) for _ in range(5))
    peers = Peers(number, np.zeros((*places, shape.peers), np.int32)) if shape.peers else None
    return Plan(
        invocations=Invocation(
            buffer, minibatch, slot, target_slot, peers, np.zeros(places, np.float32) if shape.recorded else None
        ),
        weights=np.zeros(places, np.float32),
        sizes=np.zeros((shape.capacity, seeds), np.int32),
        bounds=np.zeros((rounds, 2), np.int32),
        behaviour=np.zeros((rounds, seeds), np.int32),
        envs=np.zeros((rounds, seeds), np.int32),
        order=np.full((rounds, seeds, shape.gradients, shape.batch), -1, np.int32),
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
      shape: of the plan.
      records: of R rounds or fewer, S seeds each. Rounds beyond them stay empty, so that the last, shorter chunk has
        the same shape.
      orders: `[r][s]`: the minibatch order of fragment r of seed s, which may be drawn meanwhile.
      learning_rate: `[r]`: the schedule's factor.
      envs: `[r][s]`: how many environments take part.
    """
    plan = empty_plan(shape)
    rounds = len(records)
    plan.learning_rate[:rounds] = learning_rate
    plan.behaviour[:rounds] = [[record.behaviour_version % shape.ring for record in row] for row in records]
    if envs is not None:
        plan.envs[:rounds] = envs
    for order, row in zip(plan.order, orders, strict=False):
        for minibatches, drawn in zip(order, row, strict=True):
            minibatches[: len(drawn)] = drawn
    _lay_out(plan, shape, records)
    return plan


def _lay_out(plan: Plan, shape: PlanShape, records: Sequence[Sequence[Round]]) -> None:
    """Write the rounds' groups and their bounds into the plan."""
    cells = [record for row in records for record in row]
    groups = [group for record in cells for group in record.groups]
    gradients = [gradient for group in groups for gradient in group.gradients]
    sizes = _numbers([len(group.gradients) for group in groups])
    waves = -(-sizes // shape.wave_size)
    done = np.concatenate([[0], waves.cumsum()])  # waves up to each group, if rounds and seeds followed one another
    counts = _numbers([len(record.groups) for record in cells])
    last = counts.cumsum()
    begins, ends = done[last - counts], done[last]  # of each round and seed
    bounds = np.concatenate([[0], (ends - begins).reshape(len(records), -1).max(axis=1).cumsum()])
    plan.bounds[: len(records)] = np.stack([bounds[:-1], bounds[1:]], axis=1)
    seeds = np.tile(np.arange(shape.seeds), len(records)).repeat(counts)
    first = done[:-1] + (bounds[:-1].repeat(shape.seeds) - begins).repeat(counts)
    plan.sizes[first + waves - 1, seeds] = sizes

    index, lanes = np.divmod(_within(sizes), shape.wave_size)
    places = ((first.repeat(sizes) + index) * shape.seeds + seeds.repeat(sizes)) * shape.wave_size + lanes
    version = _numbers([gradient.version for gradient in gradients])
    buffer, minibatch, slot, target_slot, peers, kl_coefficient = plan.invocations
    _flat(buffer)[places] = _numbers([gradient.fragment for gradient in gradients]) % shape.buffers
    _flat(minibatch)[places] = [gradient.minibatch for gradient in gradients]
    _flat(slot)[places] = version % shape.ring
    _flat(target_slot)[places] = shape.target(version) % shape.ring
    _flat(plan.weights)[places] = [weight for group in groups for weight in group.weights]
    if kl_coefficient is not None:
        _flat(kl_coefficient)[places] = [gradient.kl_coefficient for gradient in gradients]
    if peers is not None:
        number = _numbers([len(gradient.peers) for gradient in gradients])
        held = _numbers([version for gradient in gradients for version in gradient.peers])
        _flat(peers.number)[places] = number
        _flat(peers.slots)[places.repeat(number) * shape.peers + _within(number)] = held % shape.ring


def _numbers(values: Sequence[int]) -> np.ndarray:
    return np.fromiter(values, np.int64, len(values))


def _flat(column: np.ndarray) -> np.ndarray:
    """A view of all of it in one axis."""
    return column.reshape(-1)


def _within(sizes: np.ndarray) -> np.ndarray:
    """0, ..., n - 1 for each of these sizes n."""
    numbers: np.ndarray = np.arange(sizes.sum()) - (sizes.cumsum() - sizes).repeat(sizes)
    return numbers
