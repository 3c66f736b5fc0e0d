"""Lists runs, says in what they differ, and clears up.

stellaris-jax runs [DIR ...] [--where env=*CartPole*] [--sort return]     the runs in directories; runs/ by default
stellaris-jax runs RUN_DIR RUN_DIR ...                                    these, and every setting in which they differ
stellaris-jax runs prune [DIR ...] [--yes]                                delete runs that failed or are empty
stellaris-jax runs prune --checkpoints [DIR ...] [--yes]                  of runs that are over, all but the last one
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from stellaris_jax.base.errors import ConfigError, RunError, printable
from stellaris_jax.base.near_miss import did_you_mean
from stellaris_jax.cli import program
from stellaris_jax.report.runs import differing_keys, short
from stellaris_jax.report.table import print_sentence, print_table, wide_console
from stellaris_jax.runs.run_store import (
    BROKEN,
    INCOMPLETE,
    StoredRun,
    delete,
    find,
    old_checkpoints,
    removable_runs,
)
from stellaris_jax.telemetry.format import MISSING, compact, dollars, duration, over_seeds

FIGURES = {
    "return": "eval_return_mean", "steps": "env_steps", "simulated": "simulated_seconds", "cost": "cost_usd",
    "wall": "wall_seconds", "staleness": "staleness_mean",
}  # fmt: skip
"""Figures that runs are sorted by, and the keys of their summaries."""
PLACES = ("run.dir", "run.name")
"""Settings in which runs always differ."""
LARGEST = 1e300
"""Bound of numbers that are shown and sorted."""
UNITS = ("B", "kB", "MB", "GB", "TB")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command on these arguments; those of the process by default."""
    program.run(lambda: _main(sys.argv[1:] if argv is None else argv))


def _main(argv: Sequence[str]) -> None:
    if argv and argv[0] == "prune":
        _prune(argv[1:])
        return
    parser = program.Parser("runs", __doc__)
    parser.add_argument("places", nargs="*", type=Path, metavar="DIR", help="directories of runs, or runs")
    where = "only runs with that setting, state or name; * and ? stand for anything"
    parser.add_argument("--where", action="append", default=[], type=_condition, metavar="KEY=VALUE", help=where)
    order = f"by a setting, by name, by state, or, the largest first, by {', '.join(FIGURES)}"
    parser.add_argument("--sort", metavar="KEY", help=order)
    arguments = parser.parse_mixed(argv)
    places = arguments.places or [Path("runs")]
    found = _found(places)
    runs = [kept for kept in found if all(_matches(kept, key, form, found) for key, form in arguments.where)]
    if arguments.sort:
        runs = _sorted(runs, arguments.sort)
    _list(runs)
    if len(arguments.places) > 1 and all(kept.path in places for kept in runs):
        _compare(runs)


def _found(places: Sequence[Path]) -> list[StoredRun]:
    """The runs there are. Raises ConfigError where there are none."""
    runs = find(places)
    if not runs:
        raise ConfigError(f"{', '.join(map(str, places))} holds no runs.")
    return runs


def _condition(text: str) -> tuple[str, str]:
    key, equals, form = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, as in env=gymnax/*, not {text!r}")
    return key, form


def _value(kept: StoredRun, key: str, runs: Sequence[StoredRun]) -> Any:
    """What a run has under a key: its name or state, or a setting, of which `system` is `system.name`.

    Raises ConfigError for a key that no run has.
    """
    if key in ("name", "state"):
        return kept.path.name if key == "name" else kept.state
    for full in (key, f"{key}.name"):
        if any(full in other.run.config for other in runs):
            return kept.run.config.get(full)
    known = {name for other in runs for name in other.run.config} | {"name", "state", *FIGURES}
    raise ConfigError(f"{key} is nothing that these runs have{did_you_mean(key, sorted(known))}")


def _matches(kept: StoredRun, key: str, form: str, runs: Sequence[StoredRun]) -> bool:
    value = _value(kept, key, runs)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(form) == value
        except ValueError:
            return fnmatchcase(text, form)
    return fnmatchcase(text, form)


def _sorted(runs: list[StoredRun], key: str) -> list[StoredRun]:
    if key in FIGURES:
        figures = [(_figure(kept, FIGURES[key]), kept) for kept in runs]
        known = [(value, kept) for value, kept in figures if value is not None]
        return [kept for _, kept in sorted(known, key=lambda one: -one[0])] + [k for v, k in figures if v is None]

    def order(kept: StoredRun) -> tuple[bool, float, str]:
        value = _value(kept, key, runs)
        number = _is_number(value)
        return not number, float(value) if number else 0.0, str(value)

    return sorted(runs, key=order)


def _figure(kept: StoredRun, key: str) -> float | None:
    value = (kept.run.summary or {}).get(key)
    return value if _is_number(value) else None


def _is_number(value: Any) -> bool:
    """Whether a value of a file is a number that can be shown and sorted."""
    return isinstance(value, int | float) and abs(value) < LARGEST  # of no NaN


def _list(runs: Sequence[StoredRun]) -> None:
    sound = [kept.run.settings for kept in runs if kept.state != BROKEN]
    keys = differing_keys(sound)
    rows = []
    for kept in runs:
        summary = kept.run.summary or {}
        seeds = summary.get("eval_return_per_seed")
        mean, spread = _figure(kept, "eval_return_mean"), _figure(kept, "eval_return_ci95")
        shown = over_seeds(mean, spread, seeds if isinstance(seeds, list) and all(map(_is_number, seeds)) else None)
        last = (kept.run.rounds or [{}])[-1].get("env_steps")
        steps = _figure(kept, "env_steps") or (last if _is_number(last) else None)
        rows.append(
            {
                "run": str(kept.path),
                "state": kept.state,
                "return": shown if mean is not None else MISSING,
                "steps": compact(steps),
                "simulated": duration(_figure(kept, "simulated_seconds")),
                "cost": dollars(_figure(kept, "cost_usd")),
                "differs in": ", ".join(_told(key, kept.run.settings.get(key)) for key in keys if kept.run.config),
            }
        )
    title = f"{len(runs)} run{'s' * (len(runs) != 1)}"
    print_table(wide_console(), title, rows, names=("run", "state", "differs in"))
    if not runs:
        print("no run is like that")
    for sentence in (sentence for kept in runs if kept.state in (INCOMPLETE, BROKEN) for sentence in _damage(kept)):
        print_sentence(wide_console(), f"damage: {sentence}")


def _damage(kept: StoredRun) -> Sequence[str]:
    """Damage of a run, in sentences."""
    return kept.run.damage or (f"{kept.path / 'config.yaml'} is no whole configuration of a run",)


def _told(key: str, value: Any) -> str:
    return str(value) if key.endswith(".name") else f"{short(key)}={value}"


def _compare(runs: Sequence[StoredRun]) -> None:
    """Every setting in which runs differ, whether it follows from another or not."""
    configs = [kept.run.settings for kept in runs]
    keys = sorted({key for config in configs for key in config if key not in PLACES})
    differing = [key for key in keys if len({str(config.get(key, MISSING)) for config in configs}) > 1]
    rows = [
        {"setting": key, **{str(kept.path): str(kept.run.settings.get(key, MISSING)) for kept in runs}}
        for key in differing
    ]
    if rows:
        print_table(wide_console(), "what differs", rows, names=("setting",))
    else:
        print("their settings are the same")


def _prune(argv: Sequence[str]) -> None:
    parser = program.Parser("runs", __doc__)
    parser.add_argument("places", nargs="*", type=Path, metavar="DIR", help="directories of runs, or runs")
    parser.add_argument("--checkpoints", action="store_true", help="checkpoints but the last, of runs that are over")
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    arguments = parser.parse_mixed(argv)
    runs = _found(arguments.places or [Path("runs")])
    found, left = (old_checkpoints(runs), []) if arguments.checkpoints else removable_runs(runs)
    for sentence in left:
        print(printable(sentence))
    if not found:
        print("there is nothing to delete")
        return
    for waste in found:
        what = f"{len(waste.paths)} checkpoints" if arguments.checkpoints else waste.kept.state
        print(printable(f"{waste.kept.path}  {what}  {_bytes(waste.size)}"))
    whole = _bytes(sum(waste.size for waste in found))
    noun = "checkpoints of " if arguments.checkpoints else ""
    if not arguments.yes and not _agreed(f"delete {noun}{len(found)} run{'s' * (len(found) != 1)} ({whole})? [y/N] "):
        print("nothing was deleted")
        return
    troubles = [trouble for waste in found if (trouble := delete(waste)) is not None]
    for trouble in troubles:
        print(printable(trouble), file=sys.stderr)
    print(f"deleted {len(found) - len(troubles)} of {len(found)}")
    if troubles:
        raise RunError(f"{len(troubles)} of {len(found)} could not be deleted.")


def _agreed(question: str) -> bool:
    """Whether the user agrees. Raises ConfigError where there is nobody to ask."""
    if not sys.stdin.isatty():
        raise ConfigError("there is nobody to ask whether that shall be deleted; --yes deletes it.")
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _bytes(size: float) -> str:
    unit = 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {UNITS[unit]}"
