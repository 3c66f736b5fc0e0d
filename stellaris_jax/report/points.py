"""Points of a sweep: their runs, those whose directory is gone or damaged included."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.stored import read_yaml
from stellaris_jax.report.results import load_run
from stellaris_jax.report.runs import Run, setting_of
from stellaris_jax.telemetry.integrity import has_identity, run_identity
from stellaris_jax.telemetry.jsonl import warn_on_stderr

ABOUT = "sweep.yaml"
"""File of a sweep that describes its points, written once all points are laid out."""


def points(directory: Path) -> list[Path]:
    """Points of a sweep: the subdirectories that are named by a number, in numerical order."""
    return sorted((path for path in directory.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


def load_points(sweep_dir: Path, note: Callable[[str], None] = warn_on_stderr) -> list[Run]:
    """Runs of a sweep's points, including points whose directory is gone.

    A point whose configuration is missing, or is not the original one, gets the configuration of another point of its
    setting (see `sweep.yaml`), and a seed that no run has.
    """
    runs = [load_run(place, note) for place in points(sweep_dir)]
    laid_out = _laid_out(sweep_dir / ABOUT, note)
    by_name = {run.path.name: run for run in runs}
    for name in map(str, range(len(laid_out))):
        if name not in by_name:
            message = f"{sweep_dir / name} is missing"
            note(message)
            by_name[name] = Run(sweep_dir / name, {}, None, [], [], damage=(message,))
    broken = {name for name, run in by_name.items() if _is_broken(run, laid_out)}
    for name in broken:
        run, settings = by_name[name], {}
        if name.isdigit() and int(name) < len(laid_out):
            setting = laid_out[int(name)][0]
            others = (str(n) for n, (first, _) in enumerate(laid_out) if first == setting)
            settings = next((by_name[other].config for other in others if other not in broken), {})
        message = f"{run.path / 'config.yaml'} is not the configuration of this point"
        if not run.damage:
            note(message)
        known = {**settings, "seed": f"that of point {name}"} if settings else run.config if not laid_out else {}
        by_name[name] = replace(run, config=known, summary=None, failure=None, damage=run.damage or (message,))
    return [by_name[name] for name in sorted(by_name, key=int)]


def _is_broken(run: Run, laid_out: list[tuple[int, str]]) -> bool:
    number = int(run.path.name)
    if number >= len(laid_out):
        return False
    return not run.config or not has_identity(run.config, laid_out[number][1])


def settings_of(configs: Sequence[dict[str, Any]]) -> list[str]:
    """Entries of `sweep.yaml`, one per point: the first point of its setting, and a digest of its configuration.

    Args:
      configs: flat configurations of the points.
    """
    keys = list(map(setting_of, configs))
    return [f"{keys.index(key)} {run_identity(config)}" for key, config in zip(keys, configs, strict=True)]


def _laid_out(path: Path, note: Callable[[str], None]) -> list[tuple[int, str]]:
    """Entries that `settings_of` wrote; empty for sweeps of earlier versions, and for a damaged file (with a note)."""
    try:
        known = read_yaml(path).get("settings", []) if os.path.lexists(path) else []
        return [(int(first), owner) for first, owner in (entry.split() for entry in known)]
    except (ConfigError, ValueError, TypeError, AttributeError):
        note(f"{path} is damaged and left out")
        return []
