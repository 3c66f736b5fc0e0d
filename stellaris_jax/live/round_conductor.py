"""Conductor of a live run whose actors go in step: all roll a fragment, and the round ends when learners have it.

With `system.actors=pipelined` the next fragment is rolled while learners compute on this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from stellaris_jax.config.tree import Config
from stellaris_jax.engine.rollout import Fragment
from stellaris_jax.engine.state import EngineState
from stellaris_jax.engine.wave import RoundMetrics
from stellaris_jax.live.actor_inputs import Actors, HostedActors, ProgramActors, Width
from stellaris_jax.live.conductor import Conductor, busy_seconds
from stellaris_jax.live.driver_steps import DriverSteps, StoredFragment
from stellaris_jax.live.hosts import EnvPosition
from stellaris_jax.live.pool import Done
from stellaris_jax.live.rolls import ActingPolicy, Rolls
from stellaris_jax.timeline import Round
from stellaris_jax.timeline.scaling.limits import is_scaled
from stellaris_jax.timeline.trace import Roll


class RoundConductor(Conductor):
    """Driver of one live run whose actors go in step; see `Conductor`.

    Args:
      config: configuration of the run.
      steps: computations of the driver itself.
      seed: seed of the run.
      position: position of the environments, if they are host environments.
    """

    def __init__(self, config: Config, steps: DriverSteps, seed: int, position: EnvPosition | None = None):
        super().__init__(config, steps, seed)
        self.depth = config.system.fragments_in_flight
        network = steps.engine.network
        self.actors: Actors = ProgramActors(network) if position is None else HostedActors(position, seed)
        self.rolls = Rolls(self.actors, self._call)
        self._beginning = self.state()

    def round(
        self, state: EngineState, index: int, width: Width, step_scale: float
    ) -> tuple[EngineState, RoundMetrics, Round]:
        """Collect fragment `index`, and continue until the next one can be started; see `Conductor.round`."""
        coordinator = self.coordinator
        self._begin_round(state, index, width, step_scale)
        coordinator.remaining[index] = self.spec.minibatch_layout.gradients(index, width.envs)
        # Rules of scaling change the number of shares; host environments, which may begin anew, have no such rules.
        shares = self.usage.actor_invocations if is_scaled(self.config) else index * width.actors
        self._roll(index, width, waits=[self.emulation.share(shares + actor) for actor in range(width.actors)])
        consumed = index + 1 - self.depth
        while self.rolls.under_way or self._forming or coordinator.remaining[consumed] > 0:
            for gradient in coordinator.starts():
                self._invoke(gradient)
            self._happen()
        coordinator.remaining.pop(consumed, None)
        self._forget(consumed)
        state, metrics = self.steps.finish(self._state, self._wave_state, self._episodes)
        metrics = jax.device_get(metrics)
        self._trace.opened = self.actors.over()
        return state, metrics, self._end_round()

    def _rolled(self, done: Done) -> None:
        busy, rolling = 0.0, self.rolls.took(done)
        if rolling is not None:
            busy = self.rolls.seconds = busy_seconds(done, rolling.behind > 0)
            self.usage.actor_busy += busy
            self.usage.actor_invocations += 1
            self._trace.rolls.append(Roll(rolling.actor, self.now - busy, self.now))
            self._record.actor_seconds += busy / self._record.actors
        self.usage.actor_startup += done.elapsed - busy
        if not self.rolls.under_way:
            self._collect()

    def _roll_again(self, done: Done) -> None:
        self.usage.failures += 1
        self.usage.actor_busy += done.elapsed
        self._start_again(done)

    def _start_again(self, done: Done) -> None:
        self.rolls.died(done.call)

    def _roll(self, index: int, width: Width, rehearsal: bool = False, waits: Sequence[float] = ()) -> None:
        """Start all actors on their shares of a fragment, after which each waits for its seconds."""
        params = self._versions[self.coordinator.clock]
        self._normalizers = jax.device_get(self._state.normalizers)
        acting = self._acting = ActingPolicy(params, self._pool.put(self._normalizers))
        self.rolls.begin(self._pool, self._state, index, width, acting, rehearsal, waits)

    def _collect(self) -> None:
        """Turn a complete fragment into training data for learners."""
        index, (_, envs, width) = self._record.index, self.rolls.width
        rolled = self.rolls.assembled()
        if rolled is None:
            return
        order = self._order(index, envs, width)
        version, params = self._record.behaviour_version, self._pool.get(self._acting.params)
        fragment = Fragment(rolled.trajectory, params, self._normalizers, np.int32(version), rolled.carry)
        self._state, self._episodes, samples = self.steps.collect(
            width, self._state, rolled.actor, np.int32(envs), order, fragment
        )
        data = self._training_data(self.shape.fragments.slot(index), samples)
        self._fragments[index] = StoredFragment(data, version)
        self._record.arrived, self._record.complete = self.coordinator.clock, self.now
        self.coordinator.on_data(index)

    def warm(self, state: EngineState, width: Width) -> None:
        pool, steps = self._pool, self.steps
        self.restore(self._beginning)
        self._state, self._wave_state = steps.open(state)
        self._record = Round(0, 0, 0.0, width.actors)
        self._hold_newest(self._wave_state, 0)
        self._roll(0, width, rehearsal=True)
        self._wait_all(self.rolls.took)
        self._collect()
        number = -width.actors  # learners cache data by the fragment's number, so each width has its own
        self._fragments[number] = self._fragments.pop(0)
        self._warm_learners(number)
        jax.block_until_ready(steps.finish(self._state, self._wave_state, self._episodes))
        self._clear()
        if not self.config.platform.prewarm:
            pool.cool()

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        if self.usage.actor_invocations:
            self.rolls.seconds = self.usage.actor_busy / self.usage.actor_invocations

    def _clear(self) -> None:
        super()._clear()
        self.rolls.clear()

    def _forget(self, fragment: int) -> None:
        """Drop all data of fragments up to this one."""
        for old in [old for old in self._fragments if old <= fragment]:
            del self._fragments[old]
