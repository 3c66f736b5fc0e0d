"""Points of a sweep: which there are, and which of them are broken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stellaris_jax.config.schema import ConfigError
from stellaris_jax.config.stored import read_yaml
from stellaris_jax.report.integrity import owner_of
from stellaris_jax.report.results import load_run
from stellaris_jax.report.runs import Run, is_compared
from stellaris_jax.report.telemetry.jsonl import complain

ABOUT = "sweep.yaml"
"""File of a sweep that holds what was asked for, written once all points are laid out."""


def points(directory: Path) -> list[Path]:
    """The points of a sweep: the subdirectories that are named by a number, in its order."""
    return sorted((path for path in directory.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


def load_points(sweep_dir: Path, note: Callable[[str], None] = complain) -> list[Run]:
    """The runs of a sweep's points, also of those whose directory is gone.

    A point whose configuration is gone, or is not the one that it was laid out with, has that of another point of its
    setting, which `sweep.yaml` tells, and a seed that no run has.
    """
    runs = [load_run(place, note) for place in points(sweep_dir)]
    asked = _laid_out(sweep_dir / ABOUT, note)
    by_name = {run.path.name: run for run in runs}
    for name in map(str, range(len(asked))):
        if name not in by_name:
            told = f"{sweep_dir / name} is missing"
            note(told)
            by_name[name] = Run(sweep_dir / name, {}, None, [], [], damage=(told,))
    broken = {name for name, run in by_name.items() if _is_broken(run, asked)}
    for name in broken:
        run, settings = by_name[name], {}
        if name.isdigit() and int(name) < len(asked):
            setting = asked[int(name)][0]
            others = (str(n) for n, one in enumerate(asked) if one[0] == setting)
            settings = next((by_name[other].config for other in others if other not in broken), {})
        told = f"{run.path / 'config.yaml'} is not the configuration of this point"
        if not run.damage:
            note(told)
        known = {**settings, "seed": f"that of point {name}"} if settings else run.config if not asked else {}
        by_name[name] = replace(run, config=known, summary=None, failure=None, damage=run.damage or (told,))
    return [by_name[name] for name in sorted(by_name, key=int)]


def _is_broken(run: Run, asked: list[tuple[int, str]]) -> bool:
    number = int(run.path.name)
    if number >= len(asked):
        return False
    return not run.config or owner_of(run.config) != asked[number][1]


def settings_of(configs: Sequence[dict[str, Any]]) -> list[str]:
    """What `sweep.yaml` says of each point: the first point of its setting, and a digest of its configuration.

    Args:
      configs: the flat configurations of the points.
    """
    compared = [{key: value for key, value in config.items() if is_compared(key)} for config in configs]
    keys = [json.dumps(values, default=str) for values in compared]
    return [f"{keys.index(key)} {owner_of(config)}" for key, config in zip(keys, configs, strict=True)]


def _laid_out(path: Path, note: Callable[[str], None]) -> list[tuple[int, str]]:
    """What `settings_of` wrote; nothing in sweeps of earlier versions, and of a damaged file, which is told."""
    try:
        known = read_yaml(path).get("settings", []) if os.path.lexists(path) else []
        return [(int(first), owner) for first, owner in (one.split() for one in known)]
    except (ConfigError, ValueError, TypeError, AttributeError):
        note(f"{path} is damaged and left out")
        return []
