"""Static sizes of plans; one compiled engine runs all plans of one shape."""

from __future__ import annotations

from typing import Any, NamedTuple

from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.data_admission import store_rows
from stellaris_jax.timeline.ring import Ring


class CollectionShape(NamedTuple):
    """Static sizes of collection.

    Attributes:
      shards: number A of shards.
      segments: segments S of a fragment.
      rows: rows of the store; one more holds data that nobody needs.
      follows: whether a fragment's duration follows its episodes, so that a round is executed in several stretches.
    """

    shards: int
    segments: int
    rows: int
    follows: bool = False

    @property
    def width(self) -> int:
        """Places of a collect wave: one for each shard, or a single one if segments are rolled as they begin."""
        return 1 if self.follows else self.shards

    @classmethod
    def of(cls, config: Config) -> CollectionShape | None:
        """Sizes of a configuration; `None` unless its actors are independent."""
        shards, follows = config.actor_shards, config.delays.by == "episodes"
        return cls(shards, config.segments, store_rows(config.system, shards), follows) if shards else None


class PlanShape(NamedTuple):
    """Static sizes of a plan; one compiled engine runs all plans of one shape.

    Attributes:
      rounds: rounds R of a chunk.
      seeds: seeds S.
      wave_size: places L of a wave.
      peers: largest number K of other versions in flight.
      gradients: minibatches G of a fragment, over all epochs.
      batch: samples B of a minibatch.
      versions: length H of the window of versions on which gradients may be computed.
      buffers: fragments kept.
      target_interval: versions from one target network to the next; 1 without target networks.
      kl_coefficient_per_gradient: whether each gradient has its own weight of the KL penalty.
      collection: sizes of independent actors' collection; `None` for other actors.
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
    kl_coefficient_per_gradient: bool = False
    collection: CollectionShape | None = None

    @property
    def ring(self) -> Ring:
        """Ring of the stored versions; the oldest version in use may have an even older target network."""
        return Ring(self.versions + self.target_interval - 1)

    @property
    def fragments(self) -> Ring:
        """Ring of the stored fragments."""
        return Ring(self.buffers)

    def target(self, version: Any) -> Any:
        """Version that was the target network when `version` was the newest; element by element for arrays."""
        return version - version % self.target_interval

    @property
    def capacity(self) -> int:
        """Largest number of waves of a plan: a round executes at most the gradients of `buffers` fragments."""
        if self.collection is not None:
            return (self.rounds + self.buffers) * self.gradients
        return self.rounds * self.gradients * self.buffers
