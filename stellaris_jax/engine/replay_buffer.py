"""Replay buffer of actors that go in step: a fragment's transitions are stored, and minibatches are rows of the buffer.

Independent actors complete transitions as they roll (`engine.shards`), and store them when a batch is formed of them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import Samples
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.engine import device_rows, learner
from stellaris_jax.engine.frames import refers, with_references
from stellaris_jax.engine.mesh import AXIS
from stellaris_jax.engine.prepare import Collected, EpisodeStatistics, ended_episodes
from stellaris_jax.engine.processes import put
from stellaris_jax.engine.rollout import Fragment
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.state import EngineState
from stellaris_jax.engine.transitions import Window, replayed, steps_for_replay, transitions


class Transitions(NamedTuple):
    """Large arrays of a replay buffer, which checkpoints write apart; every leaf `[S, ...]`.

    Attributes:
      samples: the transitions.
      pixels: frames that they refer to; `None` if observations are stored whole.
    """

    samples: Samples
    pixels: jax.Array | None

    @classmethod
    def of(cls, loader: learner.DataLoader) -> Transitions:
        """Transitions of a data loader."""
        return cls(loader.fragments, None if loader.frames is None else loader.frames.pixels)

    def placed(self, abstract: EngineState) -> Transitions:
        """Same transitions with the shardings of a state."""
        shardings = jax.tree.map(lambda x: x.sharding, Transitions.of(abstract.loader))
        return put(self, shardings)

    def within(self, state: EngineState) -> EngineState:
        """State with these transitions."""
        loader = state.loader._replace(fragments=self.samples)
        if loader.frames is not None:
            loader = loader._replace(frames=loader.frames._replace(pixels=self.pixels))  # type: ignore[arg-type]
        return state._replace(loader=loader)


NOTHING = Transitions(None, None)  # type: ignore[arg-type]
"""Transitions of a state without its replay buffer."""


def store_transitions(
    spec: ProgramSpec, options: EnvConfig, hyper: Hyper, state: EngineState, fragment: Fragment, order: jax.Array
) -> tuple[EngineState, EpisodeStatistics, Samples]:
    """Store the transitions that are complete with a fragment; also returns them, `[M, ...]`.

    Args:
      spec: program spec of the run.
      options: options of observations and rewards.
      hyper: hyper-parameters.
      state: training state before.
      fragment: the fragment, `[T, N, ...]`, or this device's share of its environments.
      order: its minibatches as rows of the buffer, `[G, B]`.
    """
    assert spec.buffer is not None, "there is no replay buffer"
    axis = spec.buffer_axis
    window, shared = state.actor.window, spec.devices > 1 and not spec.host_fragments
    if shared:
        window = device_rows.gathered(window, AXIS)
        share = fragment.trajectory._replace(last_obs=fragment.trajectory.last_obs[None])
        columns = device_rows.gathered(share, AXIS, along=1)
        fragment = fragment._replace(trajectory=columns._replace(last_obs=columns.last_obs[0]))
    data, loader = steps_for_replay(options, fragment), state.loader
    if loader.frames is not None:
        loader, data, window = _store_frames(loader, data, window, axis)
    data, window = transitions(data, window, spec.buffer.steps, hyper.gamma)
    if shared:
        local = spec.envs // spec.devices
        begin = jax.lax.axis_index(AXIS) * local
        window = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, begin, local), window)
    samples = replayed(data)
    samples = samples._replace(version=jnp.full(samples.action.shape[:1], fragment.version, jnp.int32))
    buffer = spec.shape.fragments.slot(state.round)
    loader = learner.with_key(loader, buffer, state.key)
    loader = learner.store(loader, buffer, samples, order, fragment.version, axis)
    state = state._replace(loader=loader, actor=state.actor._replace(window=window))
    return state, ended_episodes(fragment.trajectory, None), samples


def _store_frames(
    loader: learner.DataLoader, data: Collected, window: Window | None, axis: str | None
) -> tuple[learner.DataLoader, Collected, Window | None]:
    """Store the frames of a batch; data and window have references to them in place of observations."""
    assert loader.frames is not None and loader.stored is not None, "observations are stored whole"
    frames, data, window, lost = with_references(loader.frames, data, window, loader.stored, axis)
    # Only transitions of the batch before can end with frames that were lost.
    fragments, samples = loader.fragments, data.reward.size
    batches = device_rows.total(fragments.action, axis) // samples
    begin = (loader.stored - 1) % batches * samples
    assert fragments.transition is not None and fragments.valid is not None, "there is no replay buffer"
    ends, valid = device_rows.take((fragments.transition.next_obs, fragments.valid), begin + jnp.arange(samples), axis)
    valid = device_rows.put(fragments.valid, valid & ~refers(ends, lost), begin, axis)
    return loader._replace(frames=frames, fragments=fragments._replace(valid=valid)), data, window
