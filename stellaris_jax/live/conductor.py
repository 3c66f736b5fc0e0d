"""Conductor of a live run: drives the coordinator by real events, where the simulator uses drawn durations.

A round is as in `stellaris_jax.timeline.simulate`, but its seconds are measured and its data and gradients are computed
on demand. Work of a dead process is computed again; a function returns the same result in any process. This module has
learners and the parameter function; actors are in `round_conductor` (all roll a fragment a round) and `free_conductor`
(each rolls at its own pace).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from stellaris_jax.agent.losses.common import Samples
from stellaris_jax.base.errors import RunError
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.state import EngineState
from stellaris_jax.engine.wave import RoundMetrics, WaveCarry
from stellaris_jax.live.actor_inputs import Width
from stellaris_jax.live.driver_steps import Delivered, DriverSteps, StoredFragment, StoredGradient, waves
from stellaris_jax.live.emulation import Emulation, waiting
from stellaris_jax.live.functions import Pointer
from stellaris_jax.live.pool import ACTOR, LEARNER, Call, Done, Pool
from stellaris_jax.timeline import Gradient, Group, Round, Usage, minibatch_order
from stellaris_jax.timeline.coordinator import Action, Coordinator, Drop
from stellaris_jax.timeline.record_json import as_data, record_of
from stellaris_jax.timeline.trace import Failure, Published, RoundTrace

MOST_DEATHS = 10
"""Number of consecutive deaths of one invocation after which the run gives up."""


class Conductor(ABC):
    """Driver of one live run: feeds the coordinator with real events, and is the parameter function and data loader.

    The pool computes data and gradients; the conductor stores samples, aggregates and publishes.

    Args:
      config: configuration of the run.
      steps: computations of the driver itself.
      seed: seed of the run.
    """

    def __init__(self, config: Config, steps: DriverSteps, seed: int):
        self.config, self.steps, self.seed = config, steps, seed
        self.spec, self.shape = steps.spec, steps.spec.shape
        self.usage = Usage()
        self.coordinator = Coordinator(config.system, self.usage)
        self.pool: Pool | None = None
        self.traced: list[RoundTrace] = []
        self._origin = 0.0
        self._stamp = 0
        self._learning: dict[int, Gradient] = {}
        self._learning_origins: dict[int, float] = {}  # origin of training's seconds when a learner was invoked
        self._delivered: dict[tuple[int, int], StoredGradient] = {}
        self._fragments: dict[int, StoredFragment] = {}
        self._versions: dict[int, Any] = {}
        self._interrupted: list[Gradient] = []
        self.emulation = Emulation(config, seed)
        self._draws: dict[int, int] = {}  # of each learner's invocation
        self._deaths: dict[tuple[str, int], int] = {}
        self._forming: Group | None = None
        self._coefficient = 0.0

    # A round -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def round(
        self, state: EngineState, index: int, width: Width, step_scale: float
    ) -> tuple[EngineState, RoundMetrics, Round]:
        """Run round `index`.

        Args:
          state: state of the one seed, every leaf `[1, ...]`.
          index: number of the round.
          width: width of the round.
          step_scale: factor on the learning rate.

        Returns:
          State after the round, its metrics `[1, 1]`, and its record.
        """

    def _begin_round(self, state: EngineState, index: int, width: Width, step_scale: float) -> None:
        """Take a state apart, and start a round's record."""
        self._origin = time.monotonic() - self.usage.seconds
        self._record = Round(index, self.coordinator.clock, self.now, width.actors)
        self._trace = RoundTrace(self._record, step_scale)
        self._step_scale = step_scale
        self._state, self._wave_state = self.steps.open(state)
        self._coefficient = float(self._state.kl_coefficient)
        if not self._versions:
            self._hand_out_state()

    def _end_round(self) -> Round:
        """Complete a round's record and its trace."""
        self.usage.seconds = self.now
        record, record.usage = self._record, self.usage.copy()
        self.traced.append(self._trace)
        return record

    def _happen(self) -> None:
        """Aggregate the group that was formed, or process the next invocations that end; without any, the queue."""
        if self._forming is not None:  # while learners compute
            group, self._forming = self._forming, None
            self._aggregate(group)
            return
        invocations = self._pool.wait()
        for done in invocations:
            self._handle(done)
        if invocations:
            return
        actions = self.coordinator.on_stall(self.now)
        if not actions:
            raise RunError(self._stuck(f"{self.now:.3g} seconds"))
        self._carry_out(actions)

    def _stuck(self, moment: str) -> str:
        """Sentence on why nothing can go on at a moment."""
        return self.coordinator.stuck(moment)

    @property
    def now(self) -> float:
        """Seconds of training since the run began."""
        return time.monotonic() - self._origin

    @property
    def _pool(self) -> Pool:
        assert self.pool is not None, "a round needs a pool"
        return self.pool

    def _handle(self, done: Done) -> None:
        """Process an invocation that has ended."""
        call = done.call
        if done.value is None:
            self._died(call, done)
            return
        self._deaths.pop((call.kind, call.number), None)
        if call.kind == ACTOR:
            self._rolled(done)
        else:
            done = self._without_pauses(done)
            gradient = self._learning.pop(call.stamp)
            busy = busy_seconds(done)
            self.usage.learner_busy += busy
            self.usage.learner_startup += done.elapsed - busy
            gradient.start = self.now - busy
            self._store_gradient(gradient, done.value)
            self._carry_out(self.coordinator.on_delivery(gradient, self.now, gradient.peers))

    def _without_pauses(self, done: Done) -> Done:
        """End of a learner's invocation without time between rounds, when policies are evaluated and saved."""
        paused = self._origin - self._learning_origins.pop(done.call.stamp, self._origin)
        return done._replace(elapsed=min(done.elapsed, max(done.seconds, done.elapsed - paused)))

    @abstractmethod
    def _rolled(self, done: Done) -> None:
        """Process the result of an actor."""

    @abstractmethod
    def _roll_again(self, done: Done) -> None:
        """Bill an actor that has died, and start its work again."""

    def _store_gradient(self, gradient: Gradient, delivered: Delivered) -> None:
        """Store a delivered gradient with its peers, which the ring may drop meanwhile."""
        self._delivered[gradient.fragment, gradient.minibatch] = StoredGradient(delivered, gradient.peers)

    def _count_death(self, done: Done) -> None:
        call = done.call
        deaths = self._deaths[call.kind, call.number] = self._deaths.get((call.kind, call.number), 0) + 1
        if deaths > MOST_DEATHS:
            raise RunError(
                f"{call.kind} {call.number} has died {deaths} times in a row, the last time after {done.elapsed:.1f} s"
                + (f": {done.reason}" if done.reason else ".")
            )

    def _died(self, call: Call, done: Done) -> None:
        """Record and bill a dead invocation, and start its work again."""
        self._count_death(done)
        self._trace.failures.append(Failure(call.kind, call.number, self.now - done.elapsed, self.now, done.reason))
        if call.kind == ACTOR:
            self._roll_again(done)
        else:
            gradient = self._learning.pop(call.stamp)
            self.usage.learner_failed += self._without_pauses(done).elapsed
            self.coordinator.on_failure(gradient)

    # Learners ------------------------------------------------------------------------------------------------------

    def _call(self, kind: str, number: int, grace: float = 0.0) -> Call:
        self._stamp += 1
        return Call(kind, number, self._stamp, grace)

    def _invoke(self, gradient: Gradient) -> None:
        """Start a learner on the newest version; its peers are the versions that other learners compute on."""
        held = [version for version in self.coordinator.learners_by_version if version != gradient.version]
        gradient.peers = held[-self.spec.peers :] if self.spec.peers else []
        gradient.kl_coefficient = self._coefficient
        number = self._draws[gradient.learner] = self.usage.invocations - 1
        self._learn(gradient, self.emulation.learner(number))

    def _learn(self, gradient: Gradient, wait: float = 0.0) -> None:
        data, behaviour = self._fragments[gradient.fragment]
        coefficient = gradient.kl_coefficient or 0.0
        pointer = Pointer(gradient.fragment, gradient.minibatch, gradient.version, behaviour, coefficient)
        target = self._versions[self.shape.target(gradient.version)] if self.shape.target_interval > 1 else None
        target = self._targets.get(gradient.version, target)
        others = [self._versions[version] for version in gradient.peers]
        call = self._call(LEARNER, gradient.learner, wait)
        self._learning[call.stamp] = gradient
        self._learning_origins[call.stamp] = self._origin
        self._pool.submit(call, pointer, data, self._versions[gradient.version], target, *others, *waiting(wait))

    # The parameter function ----------------------------------------------------------------------------------------

    def _carry_out(self, actions: Sequence[Action]) -> None:
        """Carry out the coordinator's decisions."""
        for action in actions:
            if isinstance(action, Drop):
                self._record.dropped += action.gradients
                for gradient in action.gradients:
                    self.usage.learner_dropped += gradient.end - gradient.start
                    del self._delivered[gradient.fragment, gradient.minibatch]
            else:
                self._record.groups.append(action)
                self._record.sequence.append(action)
                self._forming = action

    def _aggregate(self, group: Group) -> None:
        """Aggregate a group into the next version."""
        begin = time.monotonic()
        delivered = []
        for gradient in group.gradients:
            gradient_and_metrics, gradient.peers = self._delivered.pop((gradient.fragment, gradient.minibatch))
            delivered.append(gradient_and_metrics)
        self._merge(group, delivered)
        self._publish(self._wave_state)
        self.usage.aggregate_busy += time.monotonic() - begin
        group.published = self.now
        fragments = [gradient.fragment for gradient in group.gradients]
        self._carry_out(self.coordinator.on_publish(fragments, self.now))

    def _merge(self, group: Group, delivered: Sequence[Delivered]) -> None:
        context = (self._state.loader, self._state.kl_coefficient, np.float32(self._step_scale))
        for wave, gradients, metrics in waves(self.shape, group, delivered):
            self._wave_state = self.steps.aggregate(context, self._wave_state, wave, gradients, metrics)

    def _publish(self, carry: WaveCarry) -> None:
        """Publish the newest version for learners that start from now on, and drop unused old ones."""
        version = int(carry.version)
        params = self._hold_newest(carry, version)
        oldest = self.shape.target(version - self.shape.versions - 1)
        held = {v for gradient in self._learning.values() for v in (gradient.version, *gradient.peers)}
        for old in [old for old in self._versions if old < oldest and old not in held]:
            del self._versions[old]
            self._targets.pop(old, None)
        self._trace.versions.append(Published.of(version, self.now, params))

    def _hold_newest(self, carry: WaveCarry, version: int) -> np.ndarray:
        """Put the newest version where learners find it, with its target network; returns its parameters."""
        params = np.asarray(jax.device_get(carry.params))
        self._versions[version] = self._pool.put(params)
        if carry.targets is not None:
            self._targets[version] = self._pool.put(np.asarray(jax.device_get(carry.targets.newest)))
        return params

    def _order(self, index: int, *envs: int) -> np.ndarray:
        """Minibatches of a fragment, int32 `[G, B]`; `envs` as for `minibatch_order`."""
        order = np.full((self.shape.gradients, self.shape.batch), -1, np.int32)
        drawn = minibatch_order(self.seed, index, self.spec.minibatch_layout, *envs)
        order[: len(drawn)] = drawn
        return order

    def _training_data(self, buffer: int, samples: Samples | None = None) -> Any:
        """Samples of a fragment, its minibatches and the key of what losses draw, as a handle of the pool."""
        loader = self._state.loader
        key = None if loader.keys is None else jax.random.key_data(loader.keys[buffer])
        if samples is None or self.spec.buffer is not None:
            samples = loader.samples(buffer)
        samples, key = jax.device_get((samples, key))
        return self._pool.put((samples, loader.places(buffer), key))

    # Warm-up, saving, restoring ------------------------------------------------------------------------------------

    @abstractmethod
    def warm(self, state: EngineState, width: Width) -> None:
        """Compile everything in all processes, by a round that nothing is learned from.

        The conductor has to be restored afterwards.
        """

    def _warm_learners(self, number: int) -> None:
        """Compute a gradient on the data of fragment `number` in all learners, and aggregate one."""
        held = [0] * self.spec.peers
        for learner in range(self.coordinator.learners):
            self._learn(Gradient(number, 0, learner, 0, peers=held))
        results: dict[int, Delivered] = {}
        self._wait_all(lambda done: results.__setitem__(self._learning.pop(done.call.stamp).learner, done.value))
        group = Group([Gradient(0, 0, 0, 0)], [1.0], 0, 0.0, False, None)
        self._step_scale = 0.0
        self._merge(group, [results[0]])

    def _wait_all(self, take: Callable[[Done], object]) -> None:
        """Pass the results of all invocations under way to `take`; dead ones are invoked again."""
        while invocations := self._pool.wait():
            for done in invocations:
                if done.value is not None:
                    self._deaths.pop((done.call.kind, done.call.number), None)
                    take(done)
                    continue
                self._count_death(done)
                if done.call.kind == ACTOR:
                    self._start_again(done)
                else:
                    self._learn(self._learning.pop(done.call.stamp))

    @abstractmethod
    def _start_again(self, done: Done) -> None:
        """Start the work of an actor that has died again."""

    def state(self) -> dict[str, Any]:
        """Mutable state as JSON data; work under way is repeated after a restore."""
        learning = sorted(self._learning.values(), key=lambda gradient: gradient.learner)
        return {
            **self.coordinator.state(),
            "usage": as_data(self.usage),
            "learning": [as_data(gradient) for gradient in learning],
            "draws": [self._draws[gradient.learner] for gradient in learning],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state()` returned, possibly through JSON."""
        self._clear()
        self.usage = self.coordinator.usage = Usage(**state["usage"])
        self.coordinator.restore(state)
        self._interrupted = [record_of(Gradient, gradient) for gradient in state["learning"]]
        draws = state.get("draws", [0] * len(self._interrupted))  # states of earlier versions lack them
        self._draws = {one.learner: draw for one, draw in zip(self._interrupted, draws, strict=True)}

    def _clear(self) -> None:
        """Drop all work under way and its data."""
        self._learning, self._delivered, self._fragments, self._versions = {}, {}, {}, {}
        self._targets: dict[int, Any] = {}  # target networks of versions, as handles of the pool
        self._learning_origins = {}
        self._forming = None

    def _hand_out_state(self) -> None:
        """Send versions and data to processes that hold nothing of this run yet, and repeat interrupted work."""
        clock, ring = int(self._wave_state.version), np.asarray(jax.device_get(self._wave_state.ring))
        targets = self._wave_state.targets
        for version in range(max(0, clock - len(ring) + 1), clock):
            slot = self.spec.shape.ring.slot(version)
            self._versions[version] = self._pool.put(ring[slot])
            if targets is not None:
                self._targets[version] = self._pool.put(np.asarray(jax.device_get(targets.fetch(slot))))
        newest = self._hold_newest(self._wave_state, clock)
        if clock == 0:
            self._trace.versions.append(Published.of(0, self.now, newest))
        for fragment, left in self.coordinator.remaining.items():
            if left > 0:
                buffer = self.spec.shape.fragments.slot(fragment)
                version = int(self._state.loader.version[buffer])
                self._fragments[fragment] = StoredFragment(self._training_data(buffer), version)
        forming = [] if self._forming is None else self._forming.gradients
        unapplied = [*forming, *self.coordinator.queue, *self.coordinator.waiting_for_order]
        for gradient in [*unapplied, *self._interrupted]:
            gradient.peers = [version for version in gradient.peers if version in self._versions]
        while unapplied:
            turn = {gradient.learner: gradient for gradient in reversed(unapplied)}  # a learner computes one at a time
            unapplied = [gradient for gradient in unapplied if gradient is not turn[gradient.learner]]
            for gradient in turn.values():
                self._learn(gradient)
            self._wait_all(lambda done: self._store_gradient(self._learning.pop(done.call.stamp), done.value))
        for gradient in self._interrupted:
            self._learn(gradient, self.emulation.learner(self._draws[gradient.learner]))
        self._interrupted = []


def busy_seconds(done: Done, again: bool = False) -> float:
    """Seconds of an invocation that are billed as busy: computation and data transfer.

    Only computation counts if the invocation included its process's start or a replay of environments.
    """
    return min(done.seconds, done.elapsed) if done.cold or again else done.elapsed
