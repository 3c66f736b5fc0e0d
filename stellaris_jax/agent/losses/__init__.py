"""Losses, the algorithms made of them, advantages and global importance-sampling truncation."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax

from stellaris_jax.agent.losses.common import LossInputs, LossMetrics
from stellaris_jax.agent.losses.impact import impact_loss
from stellaris_jax.agent.losses.impala import impala_loss
from stellaris_jax.agent.losses.ppo import ppo_loss
from stellaris_jax.registry import register


class Algorithm(NamedTuple):
    """A loss and the data it asks for.

    sequences: minibatches are whole environments' fragments instead of single samples, and have `Samples.steps`.
    target_network: there is one, and minibatches have `Samples.target_policy`.
    """

    loss: Callable[[LossInputs], tuple[jax.Array, LossMetrics]]
    sequences: bool = False
    target_network: bool = False


register.algorithm("ppo")(Algorithm(ppo_loss))
register.algorithm("impala")(Algorithm(impala_loss, sequences=True))
register.algorithm("impact")(Algorithm(impact_loss, sequences=True, target_network=True))
