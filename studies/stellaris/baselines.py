"""Baselines of Stellaris's comparisons, and how their learners are timed."""

from __future__ import annotations

from typing import NamedTuple

from studies.hardware import AT_ONCE


class Baseline(NamedTuple):
    """Baseline of Figures 6, 7, 9 and 10.

    Attributes:
      algorithm: key of `studies.stellaris.study.RATES`.
      system: trained system.
      billed: settings by which it is timed and billed; none of them affects what it learns.
    """

    algorithm: str
    system: str
    billed: tuple[str, ...]


BASELINES = {
    "PPO": Baseline("ppo", "central", ("system=central", *AT_ONCE)),
    "IMPACT": Baseline("impact", "impact", ("system=impact", "system.actors=pipelined", *AT_ONCE)),
    "RLlib": Baseline("ppo", "rllib", ("system=rllib",)),
    "MinionsRL": Baseline("ppo", "central", ("system=minionsrl", *AT_ONCE)),
}
"""Baselines by name. MinionsRL learns as the central learner does, and pays for functions."""
FULL_GPU = ", whole GPU"
"""Suffix of the names of baselines each of whose learners has a GPU to itself (`studies.hardware.full_gpu`).

The training is the same; its time is not.
"""
