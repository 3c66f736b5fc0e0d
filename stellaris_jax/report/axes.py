"""Axes that curves of return are drawn over, and their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stellaris_jax.report.runs import LEARNED, Run, counts_learned
from stellaris_jax.telemetry.format import clock

AXES = {
    "env_steps": "env steps", LEARNED: "env steps learned from", "simulated_seconds": "simulated seconds",
    "wall_seconds": "real seconds", "cost_usd": "dollars",
}  # fmt: skip
"""Axes of curves, and their names. Of independent actors, env steps are those rolled."""
USUAL = ("env_steps", LEARNED, "simulated_seconds", "cost_usd")
"""Axes of curves by default; steps learned from only if a run has independent actors."""


def axes_of(runs: Iterable[Run], chosen: Sequence[str] = ()) -> list[str]:
    """Axes that returns of runs are drawn over.

    Args:
      runs: the runs.
      chosen: keys of `AXES`; by default those of `USUAL`.
    """
    learned = counts_learned(runs)
    return list(chosen) or [axis for axis in USUAL if axis != LEARNED or learned]


def axis_name(axis: str, chosen: Sequence[str]) -> str:
    """Name of an axis beside others: env steps are those rolled."""
    return f"{AXES[axis]} rolled" if axis == "env_steps" and LEARNED in chosen else AXES[axis]


def clock_name(axis: str, run: Run) -> str:
    """Name of an axis for one run, whose seconds may have been measured."""
    return axis.replace("simulated", clock(run.config.get("executor")))
