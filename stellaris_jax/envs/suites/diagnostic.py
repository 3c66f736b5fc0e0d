"""Diagnostic environments with known solutions, to locate faults in a learner.

The first five follow Andy Jones, "Debugging RL, Without the Agonizing Pain" (2021): each adds one
capability to the one before it, so the first failing one locates the fault. The others test time limits,
non-finite numbers and memory. `V` is the value of an observation, `γ` the discount per step.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import Array, Box, Discrete, EnvState, MultiBinary, MultiDiscrete, Space
from stellaris_jax.envs.names import check_options

REFUSED: dict[str, str] = {}


def available() -> list[str]:
    """Names of the diagnostic environments."""
    return list(DIAGNOSTICS)


def make(name: str, **kwargs: Any) -> Diagnostic:
    """Environment of a name; the environments have no arguments."""
    check_options(f"diagnostic/{name}", kwargs, [])
    return DIAGNOSTICS[name]()


class Diagnostic(AutoResetEnv):
    """Base of diagnostic environments: episodes of `max_episode_steps` steps, two actions, scalar observations.

    The state is (steps taken, observation). Subclasses define observations and rewards, and whether
    the last step terminates the episode or truncates it.
    """

    action_space: Space = Discrete(2)
    observation_space = Box((1,), (-1.0,), (1.0,))
    max_episode_steps = 1
    truncates: ClassVar[bool] = False

    def observe(self, key: Array, steps: Array) -> Array:
        """Observation after `steps` steps, a scalar; 0 by default."""
        return jnp.float32(0.0)

    def reward(self, key: Array, steps: Array, obs: Array, action: Array) -> Array:
        """Reward of step number `steps` (from 0) for `action` on `obs`; 1 by default."""
        return jnp.float32(1.0)

    def reset_one(self, key: Array) -> tuple[EnvState, Array]:
        steps = jnp.int32(0)
        obs = self.observe(key, steps)
        return (steps, obs), obs[None]

    def step_one(self, key: Array, state: EnvState, action: Array) -> tuple[EnvState, Array, Array, Array, Array]:
        steps, obs = state
        reward = self.reward(key, steps, obs, action)
        steps = steps + 1
        obs = self.observe(key, steps)
        over = steps >= self.max_episode_steps
        never = jnp.zeros_like(over)
        terminated, truncated = (never, over) if self.truncates else (over, never)
        return (steps, obs), obs[None], reward, terminated, truncated


class ConstantReward(Diagnostic):
    """One step with reward 1. Solution: V(0) = 1. Fails if the value loss or the optimizer is wrong."""

    name = "diagnostic/constant_reward"


class ObservationReward(Diagnostic):
    """One step whose reward is the observation, -1 or 1 at random. Solution: V(o) = o.

    Fails if gradients do not reach the network through its input.
    """

    name = "diagnostic/observation_reward"

    def observe(self, key: Array, steps: Array) -> Array:
        return jax.random.rademacher(key, (), jnp.float32)

    def reward(self, key: Array, steps: Array, obs: Array, action: Array) -> Array:
        return obs


class DelayedReward(Diagnostic):
    """Two steps with observations 0 and 1; only the second has a reward, 1. Solution: V(0) = γ, V(1) = 1.

    Fails if the reward is not discounted or not propagated to earlier steps.
    """

    name = "diagnostic/delayed_reward"
    max_episode_steps = 2

    def observe(self, key: Array, steps: Array) -> Array:
        return steps.astype(jnp.float32)

    def reward(self, key: Array, steps: Array, obs: Array, action: Array) -> Array:
        return steps.astype(jnp.float32)


class ActionReward(Diagnostic):
    """One step: reward 1 for action 1, -1 for action 0. Solution: always action 1, with V(0) = 1.

    A policy that takes action 1 with probability p has V(0) = 2p - 1. Fails if the policy loss has the wrong sign.
    """

    name = "diagnostic/action_reward"

    def reward(self, key: Array, steps: Array, obs: Array, action: Array) -> Array:
        return 2.0 * action - 1.0


class ObservationActionReward(Diagnostic):
    """One step with observation -1 or 1 at random: reward 1 if the action matches (1 for 1, 0 for -1), else -1.

    Solution: action 1 on 1 and 0 on -1, with V(-1) = V(1) = 1. Fails if actions, observations and advantages
    get out of order, for instance by a wrong shuffle.
    """

    name = "diagnostic/observation_action_reward"

    def observe(self, key: Array, steps: Array) -> Array:
        return jax.random.rademacher(key, (), jnp.float32)

    def reward(self, key: Array, steps: Array, obs: Array, action: Array) -> Array:
        return obs * (2.0 * action - 1.0)


class MultiDiscreteActionReward(ObservationReward):
    """One step with observation -1 or 1 at random, with choices of 2 and of 3: reward 1 per correct choice, else -1.

    Solution: (0, 1) on -1 and (1, 2) on 1, with V(-1) = V(1) = 2. Fails if the choices of an action are mixed up, or
    one uses another's logits.
    """

    name = "diagnostic/multi_discrete_action_reward"
    action_space = MultiDiscrete((2, 3))

    def reward(self, key: Array, steps: Array, obs: Array, action: Array) -> Array:
        right = jnp.array([0, 1]) + (obs > 0)
        return jnp.sum(jnp.where(action == right, 1.0, -1.0))


class MultiBinaryActionReward(ObservationReward):
    """One step with observation -1 or 1 at random, with three switches: reward 1 per correct switch, else -1.

    Solution: (0, 1, 0) on -1 and (1, 0, 0) on 1, with V(-1) = V(1) = 3. Fails if the switches of an action are mixed
    up.
    """

    name = "diagnostic/multi_binary_action_reward"
    action_space = MultiBinary(3)

    def reward(self, key: Array, steps: Array, obs: Array, action: Array) -> Array:
        on = obs > 0
        right = jnp.stack([on, ~on, jnp.zeros_like(on)])
        return jnp.sum(jnp.where(action == right, 1.0, -1.0))


class Truncation(Diagnostic):
    """Reward 1 and observation 0 at every step; never terminated, and truncated every 5 steps.

    Solution: V(0) = 1 / (1 - γ), the return without a time limit. A learner that treats truncation as
    termination finds at most the value of 5 steps, (1 - γ^5) / (1 - γ).
    """

    name = "diagnostic/truncation"
    max_episode_steps = 5
    truncates = True


class Termination(Diagnostic):
    """Reward 1 at every step, observed as the step number t = 0, 1, ..., and terminated after 5 steps.

    Solution: V(t) = (1 - γ^(5 - t)) / (1 - γ). A learner that bootstraps after the end finds larger values.
    """

    name = "diagnostic/terminating"
    max_episode_steps = 5
    observation_space = Box((1,), (0.0,), (5.0,))

    def observe(self, key: Array, steps: Array) -> Array:
        return steps.astype(jnp.float32)


class NonFinite(ActionReward):
    """`ActionReward` whose reward is NaN with probability 1/32, for both actions.

    Solution: a guarded learner counts non-finite gradients, keeps finite parameters and still learns action 1.
    """

    name = "diagnostic/nonfinite"

    def reward(self, key: Array, steps: Array, obs: Array, action: Array) -> Array:
        broken = jax.random.bernoulli(key, 1 / 32)
        return jnp.where(broken, jnp.nan, super().reward(key, steps, obs, action))


class Recall(Diagnostic):
    """Five steps with a cue, -1 or 1 at random, as the first observation, and 0 as the others.

    The last step has reward 1 if its action matches the cue (1 for 1, 0 for -1), else 0. Solution: remember the cue,
    for a return of 1; without memory the return is 0.5. Fails if memory is not carried from step to step or to the
    next fragment, is kept after an episode, or has no gradient through time.
    """

    name = "diagnostic/recall"
    max_episode_steps = 5

    def reset_one(self, key: Array) -> tuple[EnvState, Array]:
        cue = jax.random.rademacher(key, (), jnp.float32)
        return (jnp.int32(0), cue), cue[None]

    def step_one(self, key: Array, state: EnvState, action: Array) -> tuple[EnvState, Array, Array, Array, Array]:
        steps, cue = state
        steps = steps + 1
        over = steps >= self.max_episode_steps
        reward = jnp.where(over & (2.0 * action - 1.0 == cue), 1.0, 0.0)
        return (steps, cue), jnp.zeros(1), reward, over, jnp.zeros_like(over)


_ALL = (
    ConstantReward,
    ObservationReward,
    DelayedReward,
    ActionReward,
    ObservationActionReward,
    MultiDiscreteActionReward,
    MultiBinaryActionReward,
    Truncation,
    Termination,
    NonFinite,
    Recall,
)
DIAGNOSTICS: dict[str, type[Diagnostic]] = {kind.name.removeprefix("diagnostic/"): kind for kind in _ALL}
