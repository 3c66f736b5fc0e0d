"""Draws from a replay buffer, planned: minibatches are uniform over the transitions that there are at that moment."""

from __future__ import annotations

import numpy as np

from stellaris_jax.config.buffer import ReplayBuffer


def drawn_minibatches(generator: np.random.Generator, buffer: ReplayBuffer, samples: int, batch: int) -> np.ndarray:
    """Minibatches of a round, drawn from the newest batches.

    Args:
      generator: source of randomness.
      buffer: sizes of the replay buffer.
      samples: samples of a batch (M).
      batch: number of the round's batch, which is the newest one.

    Returns:
      Rows of the buffer, int32 `[G, B]`, without repetition within a minibatch; -1 where there are too few samples.
      Row r of batch b is (b mod stored) M + r.
    """
    if batch < buffer.waiting:
        return np.empty((0, buffer.batch), np.int32)
    population = min(batch + 1, buffer.batches) * samples
    drawn = distinct(generator, population, (buffer.gradients, buffer.batch))
    age, row = np.divmod(drawn, samples)
    rows = (batch - age) % buffer.stored * samples + row
    return np.where(drawn < 0, -1, rows).astype(np.int32)


def distinct(generator: np.random.Generator, population: int, shape: tuple[int, int]) -> np.ndarray:
    """Numbers below `population`, int64 `[G, B]`: each row a uniform draw without repetition; -1 beyond all of them."""
    rows, size = shape
    if population <= 4 * size:
        every = np.tile(np.arange(population), (rows, 1))
        drawn = np.full(shape, -1, np.int64)
        drawn[:, : min(size, population)] = generator.permuted(every, axis=1)[:, :size]
        return drawn
    drawn = generator.integers(population, size=shape)
    while True:
        # What has been drawn before in its row is drawn anew, as if numbers were drawn one by one and refused.
        order = np.argsort(drawn, axis=1, kind="stable")
        ordered = np.take_along_axis(drawn, order, axis=1)
        repeated = np.zeros(shape, bool)
        np.put_along_axis(repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
        if not (number := int(repeated.sum())):
            return drawn
        drawn[repeated] = generator.integers(population, size=number)
