"""Evaluation: whole episodes of the current policy in separate environments."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.base.statistics import mean_ci95
from stellaris_jax.base.watch import Watchdog
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.keys import EpisodeKeys, evaluation_key, folded
from stellaris_jax.engine.mesh import compile_plainly
from stellaris_jax.engine.rollout import Normalizers, view
from stellaris_jax.engine.seed_states import SeedStates
from stellaris_jax.engine.stored_programs import NONE, StoredPrograms
from stellaris_jax.envs.base import HostEnv, VecEnv, bounded


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns and lengths of whole episodes.

    Attributes:
      returns: `[S, E]`, one for each seed and episode.
      lengths: `[S, E]`, environment steps of each episode.
    """

    returns: np.ndarray
    lengths: np.ndarray

    @property
    def per_seed(self) -> list[float]:
        """Mean return of each seed."""
        return [float(x) for x in self.returns.mean(axis=1)]

    def mean_ci95(self) -> tuple[float, float]:
        """Mean return and half-width of its 95 % interval: over seeds if there are several, else over episodes."""
        sample = self.per_seed if len(self.returns) > 1 else [float(x) for x in self.returns[0]]
        return mean_ci95(sample)


def act(
    network: PolicyNetwork,
    config: Config,
    tree: dict[str, Any],
    normalizers: Normalizers,
    obs: jax.Array,
    carry: Carry,
    key: jax.Array,
) -> tuple[jax.Array, Carry]:
    """Actions of an evaluation and the network's next carry.

    Args:
      network, config: policy network and configuration of the run.
      tree: the policy's parameters, as a tree.
      normalizers: observation statistics.
      obs: `[E, ...]`, observations.
      carry: recurrent state of the network.
      key: PRNG key; unused if evaluation is greedy.

    Returns:
      Actions `[E, ...]` and the carry of the next step.
    """
    distribution, carry = network.act(tree, view(normalizers, obs, config.env), carry)
    if config.evaluation.greedy:
        return network.distribution.mode(distribution), carry
    return network.distribution.perturb(distribution, network.distribution.noise(key, obs.shape[:1])), carry


def play(
    env: VecEnv,
    network: PolicyNetwork,
    config: Config,
    params: jax.Array,
    normalizers: Normalizers,
    key: jax.Array,
    episodes: int,
) -> tuple[jax.Array, jax.Array]:
    """Play one episode in each of E fresh environments; normalizer statistics are read, never updated.

    Args:
      env, network, config: environment, policy network and configuration of the run.
      params: `[P]`, flat parameters of the policy.
      normalizers: observation statistics.
      key: PRNG key.
      episodes: E.

    Returns:
      Returns and lengths, both `[E]`.
    """
    tree = network.unravel(params)
    keys = EpisodeKeys.of(key, episodes)
    state, obs = env.reset(keys.reset)
    starts, limit = env.starts(keys.start), env.max_episode_steps or config.evaluation.episode_limit

    def going(so_far: tuple[Any, ...]) -> jax.Array:
        t, _, _, _, playing, _, _ = so_far
        return (t < limit) & jnp.any(playing)

    def step(so_far: tuple[Any, ...]) -> tuple[Any, ...]:
        t, state, obs, carry, playing, returns, lengths = so_far
        action_key, env_keys = keys.at(t)
        action, carry = act(network, config, tree, normalizers, obs, carry, action_key)
        state, result = env.step(env_keys, state, action, starts)
        returns += jnp.where(playing, result.reward, 0.0)
        lengths += playing
        playing &= ~(result.terminated | result.truncated)
        return t + 1, state, result.obs, carry, playing, returns, lengths

    zeros, playing = jnp.zeros(episodes), jnp.ones(episodes, bool)
    carry = network.begin(tree, view(normalizers, obs, config.env), network.initial_carry(episodes))
    start = (jnp.int32(0), state, obs, carry, playing, zeros, zeros.astype(jnp.int32))
    *_, returns, lengths = jax.lax.while_loop(going, step, start)
    return returns, lengths


class HostEvaluator:
    """Evaluator of host environments, one seed after the other.

    Args:
      env, network, config: environment, policy network and configuration of the run.
      episodes: number of episodes per seed.
      stopping: if given, a watched thread steps the environments (see `base.watch`). Without it the calling
        thread steps them, because renderers only work in the thread that made them.
    """

    def __init__(
        self,
        env: HostEnv,
        network: PolicyNetwork,
        config: Config,
        episodes: int,
        stopping: threading.Event | None = None,
    ):
        self.env, self.episodes = env, episodes
        self.limit = math.inf if env.max_episode_steps is not None else config.evaluation.episode_limit
        self._watch = None if stopping is None else Watchdog("evaluation", env.name, config.env.timeout, stopping)

        def step(
            tree: dict[str, Any], normalizers: Normalizers, obs: jax.Array, carry: Carry, key: jax.Array, t: jax.Array
        ) -> tuple[jax.Array, Carry]:
            return act(network, config, tree, normalizers, obs, carry, folded(key, [t]))

        self._act, self._unravel = jax.jit(step), jax.jit(network.unravel)
        self._initial_carry = network.initial_carry(episodes)

    def over(self, seed_states: SeedStates, stream: int) -> Evaluation:
        """Evaluate the newest policies of all seeds."""
        return self(*seed_states.learned, seed_states.seeds, stream)

    def __call__(self, params: jax.Array, normalizers: Normalizers, seeds: list[int], stream: int) -> Evaluation:
        """Evaluate policies on episodes drawn from (seed, stream), independent of all training randomness.

        Args:
          params: `[S, P]`, flat parameters of each seed's policy.
          normalizers: observation statistics, with a leading axis `[S]`.
          seeds: `[S]`, seeds of the runs.
          stream: number of the evaluation.

        Raises:
          EnvStalled: the environment does not answer.
        """
        params, normalizers = jax.device_put((params, normalizers), jax.devices()[0])
        rows = []
        for i, seed in enumerate(seeds):
            seed_normalizers = jax.tree.map(lambda x, i=i: x[i], normalizers)
            key = evaluation_key(seed, stream)
            play = partial(self._play, params[i], seed_normalizers, key)
            rows.append(play() if self._watch is None else self._watch.call(play))
        returns, lengths = zip(*rows, strict=True)
        return Evaluation(np.stack(returns), np.stack(lengths))

    def _play(self, params: jax.Array, normalizers: Normalizers, key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
        pool = self.env.open(self.episodes, int(jax.random.bits(key) >> 1), evaluation=True)
        obs, tree, carry = pool.recv().obs, self._unravel(params), self._initial_carry
        playing = np.ones(self.episodes, bool)
        returns, lengths = np.zeros(self.episodes, np.float32), np.zeros(self.episodes, np.int32)
        t = 0
        while playing.any() and t < self.limit:
            if self._watch is not None:
                self._watch.beat()
            action, carry = self._act(tree, normalizers, obs, carry, key, np.uint32(t))
            pool.send(bounded(np.asarray(action), self.env.action_space))
            step = pool.recv()
            returns += np.where(playing, step.reward, 0.0)
            lengths += playing
            playing &= ~(step.terminated | step.truncated)
            obs, t = step.obs, t + 1
        pool.close()
        return returns, lengths

    def close(self) -> None:
        """End the watched thread."""
        if self._watch is not None:
            self._watch.close()


class Evaluator:
    """Evaluator of all seeds' policies at once; compiled on first use."""

    def __init__(
        self,
        env: VecEnv,
        network: PolicyNetwork,
        config: Config,
        episodes: int,
        stored: StoredPrograms = NONE,
    ):
        def run(
            params: jax.Array, normalizers: Normalizers, seeds: jax.Array, stream: jax.Array
        ) -> tuple[jax.Array, jax.Array]:
            def evaluate_seed(
                params: jax.Array, normalizers: Normalizers, seed: jax.Array
            ) -> tuple[jax.Array, jax.Array]:
                return play(env, network, config, params, normalizers, evaluation_key(seed, stream), episodes)

            return jax.vmap(evaluate_seed)(params, normalizers, seeds)

        self._run, self._lock, self._stored = jax.jit(run), threading.Lock(), stored
        self._programs: dict[int, jax.stages.Compiled] = {}

    def _program(
        self, params: jax.Array, normalizers: Normalizers, seeds: np.ndarray, stream: np.uint32
    ) -> jax.stages.Compiled:
        """Program for this number of seeds, compiled once by the first thread that needs it."""
        with self._lock:
            if len(seeds) not in self._programs:
                arguments = (params, normalizers, seeds, stream)
                lower = partial(self._run.lower, *arguments)
                self._programs[len(seeds)] = self._stored.compiled("evaluation", arguments, lower, compile_plainly)
            return self._programs[len(seeds)]

    def over(self, seed_states: SeedStates, stream: int) -> Evaluation:
        """Evaluate the newest policies of all seeds, in the blocks that training uses."""
        blocks = seed_states.blocks(seed_states.seeds)
        parts = seed_states.each(lambda state, seeds: self(state.params, state.normalizers, seeds, stream), blocks)
        return Evaluation(*(np.concatenate(x) for x in zip(*((e.returns, e.lengths) for e in parts), strict=True)))

    def __call__(self, params: jax.Array, normalizers: Normalizers, seeds: list[int], stream: int) -> Evaluation:
        """Evaluate policies `[S, P]` on episodes drawn from (seed, stream); see `HostEvaluator.__call__`."""
        # Evaluation runs on one device, regardless of the state's mesh.
        params, normalizers = jax.device_put((params, normalizers), jax.devices()[0])
        arguments = (params, normalizers, np.asarray(seeds, np.uint32), np.uint32(stream))
        returns, lengths = jax.device_get(self._program(*arguments)(*arguments))
        return Evaluation(returns, lengths)

    def close(self) -> None:
        """Release nothing; counterpart of `HostEvaluator.close`."""
