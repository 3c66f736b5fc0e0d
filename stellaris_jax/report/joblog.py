"""Timeline of a run as a log of jobs, which `delays=trace` reads, for simulated and live runs."""

from __future__ import annotations

from pathlib import Path

from stellaris_jax.base.outputs import rewriting_text
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.report.curves import readable
from stellaris_jax.report.perfetto import rounds_of
from stellaris_jax.timeline.joblog import jobs_of
from stellaris_jax.timeline.jobs import write
from stellaris_jax.timeline.plan import MinibatchLayout
from stellaris_jax.timeline.scaling.limits import is_scaled, limits_of

FORMATS = {".csv": "csv", ".jsonl": "jsonl"}
"""Formats of a log, by the file's ending."""


def export(run_dir: Path, layout: MinibatchLayout, path: Path, rounds: int | None = None) -> Path:
    """Write the jobs of a run's first seed and return `path`.

    Args:
      run_dir: directory of the run.
      layout: minibatch layout of its fragments.
      path: file to write, with an ending of `FORMATS`.
      rounds: number of rounds, from the first one on; all by default.

    Raises:
      ConfigError: there is no run, or its records are damaged.
    """
    config = from_yaml(run_dir / "config.yaml")
    each = layout.steps * limits_of(config).envs if is_scaled(config) else None
    with readable(run_dir), rewriting_text(path) as file:
        pairs = ((entry.round, entry.rolls) for entry in rounds_of(run_dir, config, layout, rounds))
        write(file, jobs_of(pairs, lambda actors: each or _share(layout, actors), layout.batch), FORMATS[path.suffix])
    return path


def _share(layout: MinibatchLayout, actors: int) -> int | None:
    """Steps of each actor of a whole fragment; None if the actors have different shares."""
    steps, remainder = divmod(layout.steps * layout.envs, actors)
    return None if remainder else steps
