"""Advantages: estimators of how much better an action was than the policy on average, and of the critic's targets.

Most are computed once, when data become training samples. Estimators that depend on the learner's own policy are
computed by learners, for minibatches of sequences. To add one, subclass `Advantage` and register it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.losses.common import AdvantageInputs, Steps
from stellaris_jax.agent.losses.gae import gae, linear_recurrence
from stellaris_jax.agent.losses.vtrace import vtrace
from stellaris_jax.agent.networks.policy_network import VALUE, has_outputs
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import Numbered
from stellaris_jax.config.schema import knob
from stellaris_jax.config.tree import Config


class Estimate(NamedTuple):
    """Advantages, and targets of the critic, `[T, N]`; each `None` if there are none."""

    advantage: jax.Array | None
    target: jax.Array | None


class Advantage(Numbered):
    """Estimator with options, which `algorithm.advantage_options` sets."""

    needs: ClassVar[tuple[str, ...]] = (VALUE,)
    """Outputs of the policy that it needs, see `PolicyNetwork.outputs`."""

    gives: ClassVar[tuple[str, ...]] = Estimate._fields
    """Fields of `Estimate` that are not `None`."""

    by_learners: ClassVar[bool] = False
    """Whether learners compute it for each minibatch of sequences, with their own policy and critic."""

    relative: ClassVar[bool] = False
    """Whether it is centred and scaled already, so that no algorithm standardises it again."""

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        yield from has_outputs(config, cls.needs, f"algorithm.advantage={config.algorithm.advantage}")

    def estimate(self, steps: AdvantageInputs) -> Estimate:
        """Advantages and targets of the steps; what learners compute has no gradient."""
        raise NotImplementedError


@register.advantage("own")
class Own(Advantage):
    """The algorithm's own estimator: its attribute `advantage`."""

    needs = ()


@register.advantage("none")
class NoAdvantage(Advantage):
    """No advantages: the algorithm's loss does without, or computes its own."""

    needs = ()
    gives = ()

    def estimate(self, steps: AdvantageInputs) -> Estimate:
        return Estimate(None, None)


@register.advantage("gae")
class GAE(Advantage):
    """Generalised advantage estimation (Schulman et al. 2016): sums of TD errors, decayed by gamma lambda."""

    def estimate(self, steps: AdvantageInputs) -> Estimate:
        ends = (steps.terminated, steps.truncated)
        return Estimate(*gae(steps.reward, steps.value, steps.next_value, *ends, steps.gamma, steps.gae_lambda))


@register.advantage("nstep")
class NStep(Advantage):
    """n-step advantage (Mnih et al. 2016): r_0 + gamma r_1 + ... + gamma^n V(s_n) - V(s_0), fewer at an episode's end.

    >>> ones, never = jnp.ones((3, 1)), jnp.zeros((3, 1), bool)
    >>> steps = AdvantageInputs(ones, 0 * ones, 8 * ones, never, never, None, None, gamma=0.5, gae_lambda=1.0)
    >>> NStep({"n": 2}).estimate(steps).target[:, 0].tolist()  # of the last step, the fragment holds no second one
    [3.5, 3.5, 5.0]
    """

    n: int = knob(5, "steps of reward before the critic's value", within="[1, 10000]")

    def estimate(self, steps: AdvantageInputs) -> Estimate:
        one = steps.reward + jnp.where(steps.terminated, 0.0, steps.gamma * steps.next_value)
        stops = steps.ends.at[-1].set(True)

        def longer(_: int, target: jax.Array) -> jax.Array:
            return jnp.where(stops, one, steps.reward + steps.gamma * jnp.roll(target, -1, axis=0))

        target = jax.lax.fori_loop(1, min(self.n, len(one)), longer, one)
        return Estimate(target - steps.value, target)


@register.advantage("vtrace")
class VTrace(Advantage):
    """V-trace (Espeholt et al. 2018): q - V, corrected from the behaviour policy to the learner's.

    Learners compute it with their own critic. PPO with it is APPO.
    """

    by_learners = True
    rho_bar: Number = knob(1.0, "the most an importance ratio weights an error of V-trace (rho-bar)", within="(0, inf)")
    c_bar: Number = knob(1.0, "the most an importance ratio carries on from later (c-bar)", within="(0, inf)")

    def estimate(self, steps: AdvantageInputs) -> Estimate:
        assert steps.log_ratio is not None, "learners compute V-trace"
        data = Steps(steps.reward, steps.next_value, steps.terminated, steps.truncated)
        numbers = (steps.gamma, steps.gae_lambda, self.rho_bar, self.c_bar)
        target, advantage = vtrace(steps.log_ratio, steps.value, data, *numbers, steps.valid)
        return Estimate(advantage, target)


EQUAL = 1e-6
"""Difference of returns below which they are equal: a group of such episodes teaches nothing."""


@register.advantage("group")
class Group(Advantage):
    """Group-relative advantage (GRPO, Shao et al. 2024): an episode's return in the fragment, less the group's mean.

    A group is so many adjacent environments; all steps of an episode have the same advantage. No critic is needed.
    Groups whose episodes have equal returns teach nothing.

    >>> reward, ends = jnp.array([[0.0, 1.0, 2.0, 3.0]]), jnp.ones((1, 4), bool)
    >>> steps = AdvantageInputs(reward, None, None, ends, ~ends, None, None, gamma=1.0, gae_lambda=1.0)
    >>> Group({"size": 2, "scaled": False}).estimate(steps).advantage[0].tolist()
    [-0.5, 0.5, -0.5, 0.5]
    """

    needs = ()
    gives = ("advantage",)
    relative = True
    size: int = knob(8, "environments of a group; env.num_envs is a multiple of it", within="[2, inf)")
    leave_one_out: bool = knob(False, "the mean is over the group's other episodes alone, as in RLOO")
    scaled: bool = knob(True, "divide by the deviation of the group's returns, as GRPO does; Dr. GRPO does not")

    @classmethod
    def settles(cls, config: Config, section: str) -> Iterator[tuple[str, Any, str]]:
        if isinstance(group := config.env.kwargs.get("group"), int):
            if group < 2:
                raise ConfigError(f"env.kwargs.group={group} must be at least 2: advantages are relative to a group.")
            yield "algorithm.advantage_options.size", group, ""

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        yield from super().conditions(config, section)
        size, envs = config.algorithm.advantage_options.get("size", 8), config.env.num_envs
        key = "env.kwargs.group" if config.env.kwargs.get("group") == size else "algorithm.advantage_options.size"
        yield (
            not isinstance(size, int) or size < 1 or envs % size == 0,
            f"{key}={size} must divide env.num_envs={envs}.",
        )

    def estimate(self, steps: AdvantageInputs) -> Estimate:
        reward, ends = steps.reward, steps.ends
        if steps.valid is not None:
            reward = jnp.where(steps.valid, reward, 0.0)
        going, zeros = 1.0 - ends.astype(reward.dtype), jnp.zeros_like(reward[0])
        so_far = linear_recurrence(jnp.concatenate([zeros[None], going[:-1]]), reward, zeros)
        last = ends.at[-1].set(True)
        # The sum at the last step, carried back: so all steps of an episode have the same, without rounding.
        total = linear_recurrence(going, jnp.where(last, so_far, 0.0), zeros, reverse=True)
        counted = last if steps.valid is None else last & steps.valid

        count = counted.reshape(len(reward), -1, self.size).sum(axis=(0, 2))

        def mean(x: jax.Array) -> jax.Array:  # over the episodes of a group, each counted at its last step
            groups = jnp.where(counted, x, 0.0).reshape(len(x), -1, self.size).sum(axis=(0, 2))
            return jnp.repeat(groups / jnp.maximum(count, 1), self.size)

        def within(x: jax.Array, least: float, reduce: Callable[..., jax.Array]) -> jax.Array:
            groups = reduce(jnp.where(counted, x, least).reshape(len(x), -1, self.size), axis=(0, 2))
            return jnp.repeat(groups, self.size)

        # Divided by a deviation of nearly 0, the rounding of a mean of equal returns would count as an advantage.
        spread = within(total, -jnp.inf, jnp.max) - within(total, jnp.inf, jnp.min)
        advantage = jnp.where(spread < EQUAL, 0.0, total - mean(total))
        if self.leave_one_out:
            advantage *= jnp.repeat(count / jnp.maximum(count - 1, 1), self.size)
        if self.scaled:
            advantage *= jax.lax.rsqrt(mean(jnp.square(advantage)) + 1e-8)
        return Estimate(advantage, None)
