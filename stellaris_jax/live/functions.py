"""Functions of the worker processes: an actor's fragment and a learner's gradient, each a pure function of its inputs.

A process holds no state that another would miss, so a dead one's work is repeated with the same result. Host
environments held by an actor (`stellaris_jax.live.hosts`) are restored by replay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import Metrics, Samples, Versions
from stellaris_jax.agent.networks import policy_network
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.base.registry import load_plugins
from stellaris_jax.config.tree import Config
from stellaris_jax.engine import learner
from stellaris_jax.engine.exploration import chance
from stellaris_jax.engine.keys import FragmentKeys
from stellaris_jax.engine.learner import DataLoader, Fetched
from stellaris_jax.engine.prepare import ended_episodes
from stellaris_jax.engine.rollout import ActorState, Fragment, Normalizers, RolloutInputs, Trajectory, rollout
from stellaris_jax.engine.shards import Shards, with_totals
from stellaris_jax.engine.spec import ProgramSpec, in_program
from stellaris_jax.envs.base import HostEnv
from stellaris_jax.envs.registry import from_config
from stellaris_jax.live.emulation import without_wait
from stellaris_jax.live.free_actors import RolledSegment
from stellaris_jax.live.free_hosts import HostedSegment, RequestedShard
from stellaris_jax.live.hosts import HostActors, NotAtPosition, Programs, RequestedPosition, Share, Steps, Timed
from stellaris_jax.live.pool import LEARNER
from stellaris_jax.timeline.plan import Peers
from stellaris_jax.timeline.records import Segment


class Pointer(NamedTuple):
    """Minibatch for a learner.

    Attributes:
      fragment: number of the fragment.
      minibatch: number of the minibatch in the fragment.
      version: version of the policy to differentiate.
      behaviour: version of the policy that acted; of several the oldest, for samples have theirs then.
      kl_coefficient: weight of the KL penalty.
    """

    fragment: int
    minibatch: int
    version: int
    behaviour: int
    kl_coefficient: float


class Functions:
    """Functions of an actor and of a learner for a configuration, compiled at their first calls.

    Args:
      config: configuration of the run.
    """

    def __init__(self, config: Config):
        load_plugins(config.plugins)
        self.config, self.env = config, from_config(config.env)
        self.network = policy_network(
            self.env.observation_space, self.env.action_space, config.network, config.system.actor_precision
        )
        self.program_env = in_program(self.env)
        self.spec = ProgramSpec.of(config, host_fragments=self.program_env is None)
        self._programs = Programs()
        self._hosts: HostActors | None = None
        if self.spec.host_fragments:
            self._hosts = HostActors(cast(HostEnv, self.env), self.network, config, self._programs)
        self.hyper: Hyper = jax.tree.map(jnp.asarray, Hyper.of(config))
        self._fragment: tuple[int | None, Any] = (None, None)

    def roll(
        self,
        share: Share,
        key: np.ndarray,
        params: np.ndarray,
        normalizers: Normalizers,
        envs: ActorState | RequestedPosition,
    ) -> Timed:
        """Roll a share of a fragment.

        Args:
          share: share to roll.
          key: data of the PRNG key for all randomness.
          params, normalizers: acting policy.
          envs: state `[n, ...]` of the environments, or the position for host environments.

        Returns:
          The actors' state after it and its trajectory, as NumPy arrays. For host environments the carry and the
          trajectory, or `NotAtPosition`.
        """
        if isinstance(envs, RequestedPosition):
            assert self._hosts is not None, "these actors step environments of JAX"
            return self._hosts.roll(share, key, params, normalizers, envs)
        numbers = (np.int32(share.round), np.int32(share.first))
        return self._timed(("roll", len(envs.totals)), self._roll, numbers, key, params, normalizers, envs)

    def invoke(self, kind: str, *arguments: Any) -> Timed:
        """Call the function of a learner, `learn`, or of an actor: `roll`, or `roll_segment` of independent ones.

        With a last argument `Wait` it returns that many seconds later (`live.emulate`).
        """
        self._programs.waited = False
        arguments, wait = without_wait(arguments)
        result = self._invoke(kind, *arguments)
        if not wait or isinstance(result.value, NotAtPosition):
            return result
        time.sleep(wait)
        return result._replace(seconds=result.seconds + wait)

    def _invoke(self, kind: str, *arguments: Any) -> Timed:
        if kind == LEARNER:
            return self.learn(*arguments)
        return self.roll_segment(*arguments) if isinstance(arguments[0], Segment) else self.roll(*arguments)

    @property
    def compiled(self) -> bool:
        """Whether this thread's last invocation compiled its function, or waited until another thread had."""
        return self._programs.waited

    def silent(self) -> dict[int, float]:
        """Seconds since host environments last answered, by identifier of the thread that is waiting for them."""
        return {} if self._hosts is None else self._hosts.silent()

    def _roll(
        self, numbers: tuple[jax.Array, ...], key: jax.Array, params: jax.Array, normalizers: Any, actor: ActorState
    ) -> tuple[ActorState, Trajectory]:
        round_, first = numbers
        # Same draws as in the engine's own actors, so that the engine can replay the run.
        keys = FragmentKeys.of(jax.random.wrap_key_data(key), round_, self.spec.envs).part(first, len(actor.totals))
        assert self.program_env is not None, "these actors step host environments"
        envs = first + jnp.arange(len(actor.totals))
        random = chance(self.spec, self.hyper, round_, envs)
        inputs = RolloutInputs(params, normalizers, actor, keys, self.hyper.gamma, chance=random)
        return rollout(self.program_env, self.network, self.config.env, self.spec.steps, inputs)

    def roll_segment(
        self,
        segment: Segment,
        key: np.ndarray,
        params: np.ndarray,
        normalizers: Normalizers,
        envs: ActorState | RequestedShard,
    ) -> Timed:
        """Roll a segment of an independent actor.

        Args:
          segment: segment to roll.
          key: data of the PRNG key for all randomness.
          params, normalizers: acting policy.
          envs: state `[n, ...]` of the shard's environments, or the position for host environments.

        Returns:
          `RolledSegment`, as NumPy arrays. For host environments `HostedSegment`, or `NotAtPosition`.
        """
        if isinstance(envs, RequestedShard):
            return self._roll_hosted(segment, key, params, normalizers, envs)
        numbers = tuple(np.int32(x) for x in (segment.shard, segment.number, segment.part))
        return self._timed("segment", self._roll_segment, numbers, key, params, normalizers, envs)

    def _roll_segment(
        self, numbers: tuple[jax.Array, ...], key: jax.Array, params: jax.Array, normalizers: Any, actor: ActorState
    ) -> RolledSegment:
        shard, number, part = numbers
        # Same draws as in the engine's own shards, so that the engine can replay the run.
        envs, steps = self.spec.shard_envs, self.spec.segment_steps
        keys = FragmentKeys.of(jax.random.wrap_key_data(key), number, self.spec.envs).part(shard * envs, envs)
        assert self.program_env is not None, "these actors step host environments"
        options = self.config.env
        random = chance(self.spec, self.hyper, number, shard * envs + jnp.arange(envs))
        inputs = RolloutInputs(params, normalizers, actor, keys, self.hyper.gamma, part * steps, random)
        after, trajectory = rollout(self.program_env, self.network, options, steps, inputs, self.spec.steps)
        return self._collected(trajectory, params, normalizers, self.network.stored(actor.carry), after)

    def _roll_hosted(
        self, segment: Segment, key: np.ndarray, params: np.ndarray, normalizers: Normalizers, shard: RequestedShard
    ) -> Timed:
        assert self._hosts is not None, "these actors step environments of JAX"
        requested, length = shard.position, self.spec.segment_steps
        part = Steps(segment.number, segment.shard * requested.envs, segment.part * length, length)
        rolled = self._hosts.steps(part, key, params, normalizers, requested)
        if isinstance(rolled.value, NotAtPosition):
            return rolled
        (carry, trajectory), seconds = rolled
        columns = (trajectory, params, normalizers, shard.totals, shard.window, requested.carry)
        done = self._timed("segment", self._collect_segment, *columns)
        obs = np.asarray(trajectory.obs[0]), np.asarray(trajectory.last_obs)
        action = np.asarray(trajectory.action)
        return Timed(HostedSegment(done.value, obs, action, carry), seconds + done.seconds)

    def _collect_segment(
        self, trajectory: Trajectory, params: jax.Array, normalizers: Any, totals: jax.Array, window: Any, carry: Carry
    ) -> RolledSegment:
        """Data of a segment of host environments, from the totals `[n, 3]`, window and carry before it."""
        trajectory, after = with_totals(trajectory, totals, self.hyper.gamma)
        return self._collected(trajectory, params, normalizers, carry, ActorState(None, None, after, window=window))

    def _collected(
        self, trajectory: Trajectory, params: jax.Array, normalizers: Any, carry: Carry, after: ActorState
    ) -> RolledSegment:
        shards = Shards(self.program_env, self.network, self.config.env, self.spec)
        fragment = Fragment(trajectory, params, normalizers, 0, carry)
        data, window = shards.data(self.hyper.gamma, fragment, after.window)
        episodes = jnp.stack(ended_episodes(trajectory, None))
        return RolledSegment(after._replace(window=window), data._replace(first=None), episodes)

    def learn(
        self,
        pointer: Pointer,
        data: tuple[Samples, np.ndarray, Any],
        params: np.ndarray,
        target: np.ndarray | None,
        *others: np.ndarray,
    ) -> Timed:
        """Compute a gradient `[P]` and the metrics of its loss, as NumPy arrays.

        Args:
          pointer: minibatch to use.
          data: the fragment's samples `[M, ...]`, the order `[G, B]` of its minibatches, and data of the key of what
            losses draw, `None` unless they draw.
          params: fetched policy.
          target: current target network, if there is one.
          others: policies that other learners in flight hold.
        """
        fragment = self._fragment  # threads of one process may work on two fragments at once
        if fragment[0] != pointer.fragment:
            fragment = self._fragment = (pointer.fragment, jax.device_put(data))
        most = self.spec.peers
        held = np.zeros((max(most, 1), len(params)), np.float32)
        held[: len(others)] = others[:most] if others else held[:0]
        numbers = tuple(np.int32(x) for x in (pointer.minibatch, pointer.version, pointer.behaviour, len(others)))
        coefficient = np.float32(pointer.kl_coefficient)
        target = params if target is None else target
        size = len(fragment[1][0].action)
        return self._timed(("learn", size), self._learn, fragment[1], numbers, coefficient, params, target, held)

    def _learn(
        self,
        data: tuple[Samples, jax.Array, Any],
        numbers: tuple[jax.Array, ...],
        kl_coefficient: jax.Array,
        params: jax.Array,
        target: jax.Array,
        others: jax.Array,
    ) -> tuple[jax.Array, Metrics]:
        minibatch, version, behaviour, count = numbers
        samples, order, key = data
        batch = learner.minibatch(DataLoader(samples, order[None], behaviour[None]), jnp.int32(0), minibatch)
        if self.spec.algorithm.target != "none" and self.spec.buffer is None:
            batch = learner.with_target(self.network, target, batch)
        if key is not None:
            key = jax.random.fold_in(jax.random.wrap_key_data(key), minibatch)
        peers = Peers(count, jnp.arange(len(others))) if self.spec.peers else None
        acting = behaviour if batch.version is None else batch.version
        known = Versions(version, acting)
        fetched = Fetched(params, batch, others, peers, known, kl_coefficient, target, key)
        return learner.gradient_of(self.network, self.spec, self.hyper, fetched)

    def _timed(self, name: Any, function: Callable[..., Any], *arguments: Any) -> Timed:
        """Run a function, compiled once per `name`; its arguments must always have the same shapes."""
        program = self._programs.compiled(name, lambda: jax.jit(function).lower(*arguments).compile())
        begin = time.perf_counter()
        value = jax.device_get(program(*arguments))
        return Timed(value, time.perf_counter() - begin)

    def close(self) -> None:
        """Close host environments, except those that a thread is using."""
        if self._hosts is not None:
            self._hosts.close()
