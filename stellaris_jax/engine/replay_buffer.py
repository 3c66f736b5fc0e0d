"""Replay buffer of actors that go in step: a fragment's transitions are stored, and minibatches are rows of the buffer.

Independent actors complete transitions as they roll (`engine.shards`), and store them when a batch is formed of them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import Samples
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.engine import learner
from stellaris_jax.engine.mesh import AXIS
from stellaris_jax.engine.prepare import EpisodeStatistics, ended_episodes
from stellaris_jax.engine.rollout import Fragment
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.state import EngineState
from stellaris_jax.engine.transitions import replayed, steps_for_replay, transitions


def store_transitions(
    spec: ProgramSpec, options: EnvConfig, hyper: Hyper, state: EngineState, fragment: Fragment, order: jax.Array
) -> tuple[EngineState, EpisodeStatistics, Samples]:
    """Store the transitions that are complete with a fragment; also returns them, `[M, ...]`.

    Args:
      spec: program spec of the run.
      options: options of observations and rewards.
      hyper: hyper-parameters.
      state: training state before.
      fragment: the fragment, `[T, N, ...]`.
      order: its minibatches as rows of the buffer, `[G, B]`.
    """
    assert spec.buffer is not None, "there is no replay buffer"
    window, shared = state.actor.window, spec.devices > 1 and not spec.host_fragments
    if shared:
        window = jax.tree.map(lambda x: jax.lax.all_gather(x, AXIS, tiled=True), window)
    data, window = transitions(steps_for_replay(options, fragment), window, spec.buffer.steps, hyper.gamma)
    if shared:
        local = spec.envs // spec.devices
        begin = jax.lax.axis_index(AXIS) * local
        window = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, begin, local), window)
    samples = replayed(data)
    samples = samples._replace(version=jnp.full(samples.action.shape[:1], fragment.version, jnp.int32))
    buffer = spec.shape.fragments.slot(state.round)
    loader = learner.with_key(state.loader, buffer, state.key)
    loader = learner.store(loader, buffer, samples, order, fragment.version)
    state = state._replace(loader=loader, actor=state.actor._replace(window=window))
    return state, ended_episodes(fragment.trajectory, None), samples
