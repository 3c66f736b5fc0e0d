"""Frames of stacked observations in a replay buffer, each stored once.

An observation that joins the last F frames of its episode shares all but one with the observation before it. So a
buffer keeps the newest frame of every observation, and transitions refer to them. A reference is the row of an
observation's newest frame and the number of its frames that are not repetitions of its episode's first one. A
reference is checked when it is made. Transitions with an observation that is not of this form are invalid.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.losses.common import Samples
from stellaris_jax.config.buffer import ReplayBuffer
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.engine import device_rows
from stellaris_jax.engine.prepare import Collected
from stellaris_jax.engine.rollout import viewed
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.transitions import Window
from stellaris_jax.envs.base import Box

REFERENCE = 2
"""Numbers of a reference."""


def stored_once(spec: ProgramSpec, space: Box, options: EnvConfig) -> bool:
    """Whether a run's replay buffer stores frames once: bytes from environments on the host that go in step."""
    in_step = spec.buffer is not None and spec.host_fragments and spec.collection is None
    return in_step and space.frames > 1 and len(space.shape) == 3 and viewed(space, options) == "uint8"


class Frames(NamedTuple):
    """Newest frames of the observations of the last steps.

    Attributes:
      pixels: the frames, `[R, H, W, C]`, or `[R, H, W]` of one channel, whose layout is better without the last axis;
        a ring of whole batches, rows in the order of the samples.
      last: frames of the newest observations, `[N, H, W, C]` or `[N, H, W]`; a program that read them from the ring
        that it changes would copy it.
      begins: whether each of the last F observations of an environment is its episode's first one, bool `[N, F]`.
    """

    pixels: jax.Array
    last: jax.Array
    begins: jax.Array

    @classmethod
    def empty(cls, envs: int, steps: int, buffer: ReplayBuffer, space: Box) -> Frames:
        """Frames before the first step.

        Args:
          envs: environments N.
          steps: steps T of a batch.
          buffer: sizes of the replay buffer.
          space: space of observations, each of F frames.
        """
        rows = envs * steps * frame_batches(steps, buffer, space.frames)
        shape = (*space.shape[:-1], space.shape[-1] // space.frames)
        pixels = jnp.zeros((rows, *(shape[:-1] if shape[-1] == 1 else shape)), space.dtype)
        return cls(pixels, pixels[:envs], jnp.ones((envs, space.frames), bool))

    @property
    def channels(self) -> int:
        """Channels of a frame (C)."""
        return 1 if self.pixels.ndim == 3 else self.pixels.shape[-1]

    @property
    def depth(self) -> int:
        """Frames of an observation (F)."""
        return self.begins.shape[-1]

    def observations(self, references: jax.Array, axis: str | None = None) -> jax.Array:
        """Observations `[..., F C]` of references; `axis` is that of devices that share the frames."""
        row, own = references[..., 0], references[..., 1]
        age = jnp.minimum(jnp.arange(self.depth)[::-1], own[..., None] - 1)  # oldest frame first
        rows = (row[..., None] - age * len(self.begins)) % device_rows.total(self.pixels, axis)
        chosen = device_rows.take(self.pixels, rows, axis)
        channels = chosen.reshape(*row.shape, self.depth, *self.pixels.shape[1:3], self.channels)
        joined = jnp.moveaxis(channels, row.ndim, -2)
        return joined.reshape(*joined.shape[:-2], -1)

    def filled(self, samples: Samples, axis: str | None = None) -> Samples:
        """Samples of a replay buffer with observations in place of references; `axis` as in `observations`."""
        transition = samples.transition
        assert transition is not None, "there is no replay buffer"
        transition = transition._replace(next_obs=self.observations(transition.next_obs, axis))
        return samples._replace(obs=self.observations(samples.obs, axis), transition=transition)


def frame_batches(steps: int, buffer: ReplayBuffer, depth: int) -> int:
    """Batches of frames that are stored.

    Besides a buffer's batches these are frames that its oldest transitions began with, and the batch that is next: its
    first observations are what the newest transitions end with.
    """
    return buffer.stored + 1 + math.ceil((buffer.steps + depth - 2) / steps)


def with_references(
    frames: Frames, data: Collected, window: Window | None, batch: jax.Array, axis: str | None = None
) -> tuple[Frames, Collected, Window | None, jax.Array]:
    """Store the newest frames of a batch.

    Args:
      frames: frames before.
      data: the batch's steps `[T, N, ...]`, with `next_obs`.
      window: steps before them, with references.
      batch: number of the batch.
      axis: mesh axis of devices that share the frames; `None` if each has all.

    Returns:
      (frames; data and window with references in place of observations, where those that do not hold are invalid; rows
      `[N]` of the pixels whose frames were other ones until now, else -1).
    """
    length, envs = data.reward.shape
    samples, total, channels = length * envs, device_rows.total(frames.pixels, axis), frames.channels
    assert data.next_obs is not None, "a replay buffer needs the observations after steps"
    seen = jnp.concatenate([data.obs, data.next_obs[-1:]])
    newest = seen[..., -channels:].reshape(length + 1, envs, *frames.pixels.shape[1:])
    begin = batch % (total // samples) * samples
    first = begin + jnp.arange(envs)
    # The first observations are what the batch before ended with, unless a run continues with new episodes.
    broken = _differ(frames.last, newest[0], 1)
    lost = jnp.where(broken, first, -1)
    pixels = device_rows.put(frames.pixels, newest[:-1].reshape(samples, *newest.shape[2:]), begin, axis)
    pixels = device_rows.put(pixels, newest[-1], (begin + samples) % total, axis)
    restarts = _differ(seen[1:, ..., :-channels], seen[:-1, ..., channels:], 2)
    begins = jnp.concatenate([frames.begins.T, restarts])
    begins = begins.at[frames.depth - 1].set(begins[frames.depth - 1] | broken)
    own = jnp.full((length + 1, envs), frames.depth, jnp.int32)
    for k in reversed(range(frames.depth)):
        past = frames.depth - 1 - k
        own = jnp.where(begins[past : past + length + 1], k + 1, own)
    after = Frames(pixels, newest[-1], begins[-frames.depth :].T)
    rows = (begin + jnp.arange(samples + envs, dtype=jnp.int32).reshape(length + 1, envs)) % total
    references = jnp.stack([rows, own], axis=-1)
    holds = ~_differ(after.observations(references, axis), seen, 2)
    valid = holds[:-1] & holds[1:]
    data = data._replace(
        obs=references[:-1],
        next_obs=references[1:],
        valid=valid if data.valid is None else data.valid & valid,
    )
    if window is not None:
        window = window._replace(valid=window.valid & ~refers(window.next_obs, lost))
    return after, data, window, lost


def refers(references: jax.Array, rows: jax.Array) -> jax.Array:
    """Whether references `[..., 2]` are to one of some rows `[N]`."""
    found: jax.Array = jnp.any(references[..., 0, None] == rows, axis=-1)
    return found


def _differ(ours: jax.Array, theirs: jax.Array, axes: int) -> jax.Array:
    """Whether arrays differ anywhere, for each place of their first axes."""
    different: jax.Array = jnp.any(ours != theirs, axis=tuple(range(axes, ours.ndim)))
    return different
