"""Actors on the host: a policy steps environments outside JAX for one fragment.

Actors inside the compiled program are in `stellaris_jax.engine.rollout`. Host actors run in a thread of the trainer
(`stellaris_jax.sources.host_actors`) or in a process of a live run (`stellaris_jax.live.hosts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.base.errors import RunError
from stellaris_jax.base.registry import code_location
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.engine.exploration import explored, mixed
from stellaris_jax.engine.keys import folded
from stellaris_jax.engine.rollout import Normalizers, Trajectory, view
from stellaris_jax.envs.base import HostEnv, HostPool, HostStep, bounded

Chance = Callable[[jax.Array, jax.Array], jax.Array]
"""Probability of a random action `[n]`, from the number of the fragment and those of environments `[n]`."""
Act = Callable[[int, int, np.ndarray, Carry], tuple[np.ndarray, np.ndarray, Carry]]
"""Acting function: (step, group, observations `[n, ...]`, carry) -> (actions, distributions, next carry)."""


def silent() -> None:
    """Heartbeat callback that does nothing."""


class HostGroup:
    """Group of environments stepped together, with their current observations and carry.

    Attributes:
      envs: number of environments that take part in a fragment (the first ones).
      width: number of environments for which the policy is compiled.
      obs: current observations.
      carry: state of the network's memory at `obs`.
      dead: environments whose episode has ended with the last step, bool.
    """

    def __init__(self, pool: HostPool, env: HostEnv, envs: int, carry: Carry):
        self.pool, self.env, self.envs, self.width, self.carry = pool, env, envs, envs, carry
        self.obs: np.ndarray = self._arrived().obs
        self.dead = np.zeros(envs, bool)

    def receive(self) -> HostStep:
        """Wait for the step that was sent."""
        step, n = self._arrived(), self.envs
        if n == len(self.obs):
            self.obs = step.obs
        else:
            self.obs[:n] = step.obs
        self.dead[:n] = step.terminated | step.truncated
        return step

    def carry_on(self, carry: Carry) -> None:
        """Store the network's next carry, reset to zero where an episode has ended."""
        n = self.envs

        def taken(old: np.ndarray, new: np.ndarray) -> np.ndarray:
            over = self.dead[:n].reshape(-1, *(1,) * (new.ndim - 1))
            return np.concatenate([np.where(over, np.zeros_like(new[:n]), new[:n]), old[n:]])

        self.carry = jax.tree.map(taken, self.carry, carry)

    def _arrived(self) -> HostStep:
        """Step from the pool. Raises RunError for wrong shapes, which NumPy would broadcast silently."""
        step, n = self.pool.recv(), self.envs
        if not isinstance(step, tuple) or len(step) != len(HostStep._fields):
            kind, place = type(step).__name__, code_location(type(self.pool).recv)
            raise RunError(f"{self.env.name} returned a {kind} from recv ({place}), not a HostStep.")
        shapes = ((n, *self.env.observation_space.shape), (n,), (n,), (n,))
        for name, array, shape in zip(HostStep._fields, step, shapes, strict=True):
            if np.shape(array) != shape:
                raise RunError(
                    f"{self.env.name} returned {name} of shape {np.shape(array)}, where {n} environments have {shape}."
                )
        return step


def acting(
    network: PolicyNetwork, config: EnvConfig, of: int | None = None, chance: Chance | None = None
) -> Callable[..., tuple[jax.Array, jax.Array, Carry]]:
    """Acting function of one group, not compiled yet.

    Args:
      network: the policy.
      config: options of the normalisers.
      of: total number of environments, if the function acts for a part of them. Noise is drawn for all of them, so it
        does not depend on the partition. By default the function acts for all.
      chance: probability of a random action; by default actors take none.

    Returns:
      The function `act`.
    """
    distribution = network.distribution

    def act(
        tree: dict[str, Any],
        normalizers: Normalizers,
        obs: jax.Array,
        carry: Carry,
        key_data: jax.Array,
        where: jax.Array,
        first: jax.Array | int = 0,
    ) -> tuple[jax.Array, jax.Array, Carry]:
        """Actions, distributions and the next carry.

        `where` is (round, step, group) and determines the noise, with the key. `first` is the index of the first
        environment among all.
        """
        key = folded(jax.random.wrap_key_data(key_data), where)
        parameters, carry = network.act(tree, view(normalizers, obs, config), carry)
        noise = distribution.noise(key, (of or obs.shape[0],))
        if of is not None:
            noise = jax.lax.dynamic_slice_in_dim(noise, first, obs.shape[0])
        action = distribution.perturb(parameters, noise)
        if chance is not None:
            probability = chance(where[0], first + jnp.arange(obs.shape[0]))
            keys = jax.random.split(key, of or obs.shape[0])
            if of is not None:
                keys = jax.lax.dynamic_slice_in_dim(keys, first, obs.shape[0])
            random = explored(network.action_space, probability, keys, 1)
            action = mixed(jax.tree.map(lambda x: x[:, 0], random), action)
        return action, parameters, carry

    return act


def host_rollout(
    groups: Sequence[HostGroup],
    act: Act,
    network: PolicyNetwork,
    length: int,
    beat: Callable[[], None] = silent,
) -> Trajectory:
    """Roll one fragment: each group in turn receives its actions while the other groups step.

    Args:
      groups: groups of one seed.
      act: acting function of the policy.
      network: the policy's network.
      length: steps of the fragment.
      beat: heartbeat callback, called at every step.

    Returns:
      The trajectory of all groups.
    """
    parts = [Recorder(length, group.env, network.distribution.size, len(group.obs)) for group in groups]
    for t in range(length if groups[0].envs > 0 else 0):
        beat()
        for g, (group, part) in enumerate(zip(groups, parts, strict=True)):
            if t > 0:
                part.outcome(t - 1, group)
            obs, carry = group.obs[: group.width], jax.tree.map(lambda x, n=group.width: x[:n], group.carry)
            action, parameters, carry = act(t, g, obs, carry)
            part.decision(t, group, action, parameters)
            group.carry_on(carry)
            group.pool.send(bounded(action[: group.envs], group.env.action_space))
    for group, part in zip(groups, parts, strict=True):
        if group.envs > 0:
            part.outcome(length - 1, group)
    last_obs = np.concatenate([group.obs for group in groups])
    columns = [np.concatenate(column, axis=1) for column in zip(*(part.columns for part in parts), strict=True)]
    trajectory = trajectory_of(columns, last_obs)
    if not network.recurrent:
        return trajectory
    # The observation after a dead transition is the first of an episode.
    first = np.concatenate([np.zeros_like(trajectory.valid[:1]), ~trajectory.valid])
    return trajectory._replace(first=first)


def step_again(groups: Sequence[HostGroup], actions: np.ndarray, beat: Callable[[], None] = silent) -> None:
    """Step freshly opened groups through the actions `[T, n, ...]` of a fragment, as `compact` returned them."""
    parts = [actions] if len(groups) == 1 else np.split(actions, [len(groups[0].obs)], axis=1)
    for group, part in zip(groups, parts, strict=True):
        group.envs = part.shape[1]
    for t in range(len(actions) if actions.shape[1] > 0 else 0):
        for group, part in zip(groups, parts, strict=True):
            space = group.env.action_space
            group.pool.send(bounded(part[t].astype(space.dtype), space))
        for group in groups:
            group.receive()
        beat()


def compact(actions: np.ndarray, env: HostEnv) -> np.ndarray:
    """Actions in their smallest dtype, for `step_again`."""
    return actions.astype(env.action_space.compact, copy=False)


def fingerprint(obs: np.ndarray | None) -> str:
    """SHA-256 of observations of any shape; an empty string for `None`."""
    return "" if obs is None else sha256(np.ascontiguousarray(obs).tobytes()).hexdigest()


def pool_seed(seed: int, round_: int, group: int) -> int:
    """Seed of a pool of environments: a 31-bit number derived from (seed, round, group)."""
    return int(np.random.SeedSequence([seed, round_, group]).generate_state(1)[0] >> 1)


class Recorder:
    """Recorder of one group's fragment: arrays `[T, n, ...]`, 0 for environments that take no part."""

    def __init__(self, length: int, env: HostEnv, parameters: int, size: int):
        observation = env.observation_space
        self.obs = np.zeros((length, size, *observation.shape), observation.dtype)
        self.action: np.ndarray = np.zeros((length, size, *env.action_space.shape), env.action_space.dtype)
        self.parameters = np.zeros((length, size, parameters), np.float32)
        self.reward = np.zeros((length, size), np.float32)
        self.terminated, self.truncated, self.valid = (np.zeros((length, size), bool) for _ in range(3))
        self.columns = (
            self.obs, self.action, self.parameters, self.reward, self.terminated, self.truncated, self.valid
        )  # fmt: skip

    def decision(self, t: int, group: HostGroup, action: np.ndarray, parameters: np.ndarray) -> None:
        n = group.envs
        self.obs[t, :n], self.action[t, :n], self.parameters[t, :n] = group.obs[:n], action[:n], parameters[:n]
        self.valid[t, :n] = ~group.dead[:n]

    def outcome(self, t: int, group: HostGroup) -> None:
        step, n = group.receive(), group.envs
        self.reward[t, :n], self.terminated[t, :n], self.truncated[t, :n] = step.reward, step.terminated, step.truncated


def trajectory_of(columns: list[Any], last_obs: Any) -> Trajectory:
    """Trajectory of a recorder's columns; the engine adds the totals of the episodes."""
    *steps, valid = columns
    return Trajectory._make((*steps, None, None, last_obs, valid, None))
