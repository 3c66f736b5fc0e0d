"""Sweeps on disk and their training: concurrent points share compiled programs, and every point can be resumed.

The directory of a sweep holds `sweep.yaml` and one directory per point, named by its number. Every point's
`config.yaml` is written before any point starts, so a stopped sweep still knows all its points.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf
from rich.console import Console

from stellaris_jax.base.commands import argument, command
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import refuse_links, write_atomically
from stellaris_jax.config.schema import flatten, plain
from stellaris_jax.config.stored import read_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.many.concurrency import stoppable
from stellaris_jax.many.points import Outcome, PointQueue
from stellaris_jax.report.points import ABOUT, points, settings_of
from stellaris_jax.report.runs import read_run
from stellaris_jax.runs.run_dir import store, writing
from stellaris_jax.telemetry.shared_display import SharedDisplay

if TYPE_CHECKING:
    from stellaris_jax.many.cluster import Cluster


def lay_out(directory: Path, configs: Sequence[Config], overrides: Sequence[str]) -> list[Config]:
    """Make the directories of a sweep's points.

    Args:
      directory: directory of the sweep.
      configs: one for each point.
      overrides: command-line overrides of the sweep.

    Returns:
      The configurations, each with its directory.

    Raises:
      ConfigError: the directory is not empty.
      RunError: the directory cannot be written.
    """
    if directory.is_dir() and any(directory.iterdir()):
        resume_advice = f", or continue the sweep with -m {argument('resume', directory)}"
        advice = resume_advice if (directory / ABOUT).is_file() else ""
        raise ConfigError(f"hydra.sweep.dir={directory} is not empty; name another directory{advice}.")
    laid = []
    with writing(directory):
        for number, config in enumerate(configs):
            place = directory / str(number)
            place.mkdir(parents=True)
            store(config, place)
            laid.append(config.replace({"resume": str(place), "run.dir": str(place)}))
        settings = settings_of([flatten(plain(config)) for config in configs])
        about = {"overrides": list(overrides), "points": len(configs), "settings": settings}
        write_atomically(directory / ABOUT, OmegaConf.to_yaml(OmegaConf.create(about)))
    return laid


def laid_out(directory: Path) -> list[Path]:
    """Directories of the points of a sweep to resume. Raises ConfigError, and RunError if one of them is a link."""
    path = directory / ABOUT
    if not path.is_file():
        raise ConfigError(f"resume={directory} holds no sweep: there is no {path}.")
    count, places = read_yaml(path).get("points"), points(directory)
    if count != len(places):
        raise ConfigError(f"resume={directory} should hold {count} points, says {path}, and holds {len(places)}.")
    with writing(directory):
        refuse_links(*places)
    return places


def is_done(config: Config) -> bool:
    """Whether the run of a point is over, with or without a result, and no file is damaged."""
    run = read_run(Path(config.run.dir), lambda message: None)
    if run.failure is not None:
        return True
    if run.summary is None or run.damage:
        return False
    try:
        return bool(run.summary["ended_early"] or run.summary["rounds"] >= config.rounds)
    except (KeyError, TypeError):
        return False


def train_points(directory: Path, configs: Sequence[Config], cluster: Cluster | None = None) -> Outcome:
    """Train the unfinished points of a sweep, as many at a time as cores and memory allow.

    Points with equal programs run in succession and share them. Each point gets the same result as it would alone.

    Args:
      directory: directory of the sweep.
      configs: configurations of all points, each with its directory (`lay_out`).
      cluster: cluster whose workers train the points; `None` uses threads of this process.

    Raises:
      Interrupted: a signal arrived and everything was saved; Abandoned after a second one.
      ClusterDied: the cluster died; the sweep can be resumed.
    """
    done = {number for number, config in enumerate(configs) if is_done(config)}
    steps = [config.total_steps * config.num_seeds for config in configs]
    progress = all(config.run.progress for config in configs)
    with closing(SharedDisplay(Console(), steps, done, progress)) as display:

        def farewell() -> str:
            if not directory.is_dir():
                return f"stopped; {directory} was moved or removed while the sweep was trained"
            resume = f"{command('train')} -m {argument('resume', directory)}"
            return f"stopped; {len(display.done)} of {len(configs)} points are done; continue with: {resume}"

        with stoppable(display, directory, farewell) as signals:
            queue = PointQueue(configs, done, display, signals, cluster)
            queue.through()
    return queue.outcome
