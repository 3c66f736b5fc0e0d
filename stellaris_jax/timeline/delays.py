"""How long things take: streams of simulated durations.

The i-th duration of a stream is a pure function of (seed, entity, i). So a timeline is repeatable, and its
whole random state is one counter per stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stellaris_jax.config.tree import DelayConfig

ENTITIES = ("learner", "actor", "aggregate", "failure", "scaling")
BLOCK = 1024


def sample(model: DelayConfig, generator: np.random.Generator, size: int) -> np.ndarray:
    """Draw `size` durations in seconds from a delay model (not `measured`, which draws nothing)."""
    if model.kind == "constant":
        return np.full(size, model.seconds)
    if model.kind == "lognormal":
        return model.seconds * np.exp(model.sigma * generator.standard_normal(size))
    if model.kind == "pareto":
        return model.seconds * (1.0 + generator.pareto(model.alpha, size))
    raise ValueError(f"no delay model {model.kind!r}")


class Stream:
    """Durations of one kind of work, drawn a block at a time.

    Args:
      model: the delay model; `None` draws uniforms in [0, 1) (used for failures).
      seed: seed of the run this timeline belongs to.
      entity: one of `ENTITIES`; different entities draw independently.
    """

    def __init__(self, model: DelayConfig | None, seed: int, entity: str):
        self.model = model
        self.key = (seed, ENTITIES.index(entity))
        self.count = 0
        self._block: list[float] = []
        self._drawn = -1

    def __next__(self) -> float:
        if self.model is not None and self.model.kind == "measured":
            value = self.model.table[self.count % len(self.model.table)]
            self.count += 1
            return value
        block, offset = divmod(self.count, BLOCK)
        if block != self._drawn:
            generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([*self.key, block])))
            values = generator.random(BLOCK) if self.model is None else sample(self.model, generator, BLOCK)
            self._block, self._drawn = values.tolist(), block
        self.count += 1
        return self._block[offset]

    def take(self, size: int) -> list[float]:
        """The next `size` durations."""
        block, start = divmod(self.count, BLOCK)
        if block == self._drawn and start + size <= BLOCK:
            self.count += size
            return self._block[start : start + size]
        return [next(self) for _ in range(size)]

    def state(self) -> Any:
        return self.count

    def restore(self, state: Any) -> None:
        self.count, self._drawn = state, -1
