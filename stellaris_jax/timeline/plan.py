"""From events to dense arrays: the plan that the engine executes.

Between two updates of the policy all versions needed already exist, so the gradients of one group may be computed
together. A group of H gradients is cut into ceil(H / L) *waves* of L = lanes x devices places; the last wave
of a group applies the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    `None` where nothing asks for them.
    """

    buffer: Indices
    minibatch: Indices
    slot: Indices
    target_slot: Indices
    peers: Peers | None


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
    target_interval: versions from one target network to the next; 1 without any.
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

    @property
    def ring(self) -> int:
        """Versions to be kept: the oldest one in use may have a target network that is older still."""
        return self.versions + self.target_interval - 1

    def target(self, version: int) -> int:
        """The version that was the target network when `version` was the newest."""
        return version - version % self.target_interval

    @property
    def capacity(self) -> int:
        """Waves that always suffice: a round executes at most the gradients of `buffers` fragments."""
        return self.rounds * self.gradients * self.buffers


class Cut(NamedTuple):
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
    seed: int, fragment: int, cut: Cut, envs: int | None = None, width: int | None = None
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
    order = np.tile(np.arange(sequences, dtype=np.int32), (cut.epochs, 1))
    generator.permuted(order, axis=1, out=order)
    if width != envs and cut.length == 1:
        order += (width - envs) * (order // envs)  # sample t * envs + e is row t * width + e
    first = np.full((cut.epochs, count, places), -1, np.int32)
    full, more = divmod(sequences, count)
    begin = 0
    for minibatch in range(count):
        size = full + (minibatch < more)
        first[:, minibatch, :size] = order[:, begin : begin + size]
        begin += size
    rows = first[:, :, None] + width * np.arange(cut.length, dtype=np.int32)[:, None]
    rows = np.where(first[:, :, None] < 0, -1, rows)
    return rows.reshape(cut.epochs * count, cut.batch)


def wave_count(record: Round, wave_size: int) -> int:
    """Waves a round takes: every group is rounded up to whole waves."""
    return sum(-(-len(group.gradients) // wave_size) for group in record.groups)


def empty_plan(shape: PlanShape) -> Plan:
    """A plan of nothing."""
    rounds, seeds = shape.rounds, shape.seeds
    places = (shape.capacity, seeds, shape.wave_size)
    buffer, minibatch, slot, target_slot, number = (np.zeros(places, np.int32) for _ in range(5))
    peers = Peers(number, np.zeros((*places, shape.peers), np.int32)) if shape.peers else None
    return Plan(
        invocations=Invocation(buffer, minibatch, slot, target_slot, peers),
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
    orders: Sequence[Sequence[np.ndarray]],
    learning_rate: Sequence[float],
    envs: Sequence[Sequence[int]] | None = None,
) -> Plan:
    """Lay `records[r][s]` out as waves; seeds with fewer waves in a round get empty ones.

    Args:
      shape: of the plan.
      records: of R rounds or fewer, S seeds each. Rounds beyond them stay empty, so that the last, shorter chunk has
        the same shape.
      orders: `[r][s]`: the minibatch order of fragment r of seed s.
      learning_rate: `[r]`: the schedule's factor.
      envs: `[r][s]`: how many environments take part.
    """
    plan = empty_plan(shape)
    begin = 0
    for r, row in enumerate(records):
        end = begin
        plan.learning_rate[r] = learning_rate[r]
        for s, record in enumerate(row):
            plan.behaviour[r, s] = record.behaviour_version % shape.ring
            plan.order[r, s, : len(orders[r][s])] = orders[r][s]
            if envs is not None:
                plan.envs[r, s] = envs[r][s]
            end = max(end, _lay_out(plan, shape, s, record, begin))
        plan.bounds[r] = begin, end
        begin = end
    return plan


def _lay_out(plan: Plan, shape: PlanShape, seed: int, record: Round, wave: int) -> int:
    """Write a round's groups into the plan, from a wave on; returns the wave after the last."""
    wave_size, ring = shape.wave_size, shape.ring
    places: list[int] = []
    rows: list[tuple[int, ...]] = []
    peers: list[list[int]] = []
    weights: list[float] = []
    for group in record.groups:
        size = len(group.gradients)
        places += range(wave * wave_size, wave * wave_size + size)
        weights += group.weights
        for gradient in group.gradients:
            version = gradient.version
            pointer = (gradient.fragment % shape.buffers, gradient.minibatch)
            rows.append((*pointer, version % ring, shape.target(version) % ring))
            if shape.peers:
                held = [v % ring for v in gradient.peers]
                peers.append([len(held), *held, *([0] * (shape.peers - len(held)))])
        wave += -(-size // wave_size)
        plan.sizes[wave - 1, seed] = size
    if places:
        waves, lanes = np.divmod(np.array(places), wave_size)
        at = (waves, seed, lanes)
        *columns, others = plan.invocations
        for column, values in zip(columns, np.array(rows, np.int32).T, strict=True):
            column[at] = values
        if others is not None:
            counted = np.array(peers, np.int32)
            others.number[at], others.slots[at] = counted[:, 0], counted[:, 1:]
        plan.weights[at] = weights
    return wave
