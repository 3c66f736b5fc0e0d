"""Lists and compares runs, or deletes runs and checkpoints that are no longer needed.

stellaris-jax runs [DIR ...] [--where env=*CartPole*] [--sort return]     runs in directories; runs/ by default
stellaris-jax runs RUN_DIR RUN_DIR ...                                    these runs, and all settings that differ
stellaris-jax runs prune [DIR ...] [--yes]                                delete runs that failed or are empty
stellaris-jax runs prune --checkpoints [DIR ...] [--yes]                  delete all but the last of finished runs
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
from stellaris_jax.report.runs import counts_learned, differing_keys, settings_text
from stellaris_jax.report.table import print_sentence, print_table, wide_console
from stellaris_jax.runs import run_store
from stellaris_jax.runs.run_store import StoredRun
from stellaris_jax.telemetry.format import MISSING, compact, dollars, duration, number, over_seeds, plural, value_text

FIGURES = {
    "return": "eval_return_mean", "steps": "env_steps", "simulated": "simulated_seconds", "cost": "cost_usd",
    "wall": "wall_seconds", "staleness": "staleness_mean",
}  # fmt: skip
"""Figures that runs are sorted by, and the keys of their summaries."""
PLACES = ("run.dir", "run.name")
"""Settings in which runs always differ."""
LARGEST = 1e300
"""Bound of numbers that are shown and sorted."""


@program.entry
def main(argv: Sequence[str]) -> None:
    """Run the command with these arguments, by default those of the process."""
    if argv and argv[0] == "prune":
        _prune(argv[1:])
        return
    parser = _parser()
    where = "only runs with this setting, state or name; * and ? stand for any characters"
    parser.add_argument("--where", action="append", default=[], type=_condition, metavar="KEY=VALUE", help=where)
    order = f"sort by a setting, name or state, or by a figure, largest first: {', '.join(FIGURES)}"
    parser.add_argument("--sort", metavar="KEY", help=order)
    arguments = parser.parse_mixed(argv)
    every = _runs_in(arguments.places)
    runs = [stored for stored in every if all(_matches(stored, key, form, every) for key, form in arguments.where)]
    if arguments.sort:
        runs = _sorted(runs, arguments.sort)
    _list(runs)
    if len(arguments.places) > 1 and all(stored.path in arguments.places for stored in runs):
        _compare(runs)


def _parser() -> program.Parser:
    parser = program.Parser("runs", __doc__)
    parser.add_argument("places", nargs="*", type=Path, metavar="DIR", help="directories of runs, or runs")
    return parser


def _runs_in(places: Sequence[Path]) -> list[StoredRun]:
    """Runs in directories, by default in runs/. Raises ConfigError if there are none."""
    places = places or [Path("runs")]
    runs = run_store.find(places)
    if not runs:
        raise ConfigError(f"{', '.join(map(str, places))} holds no runs.")
    return runs


def _condition(text: str) -> tuple[str, str]:
    key, equals, form = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, as in env=gymnax/*, not {text!r}")
    return key, form


def _value(stored: StoredRun, key: str, runs: Sequence[StoredRun]) -> Any:
    """Value of a run under a key: its name or state, or a setting; `system` stands for `system.name`.

    Raises ConfigError for a key that no run has.
    """
    if key in ("name", "state"):
        return stored.path.name if key == "name" else stored.state
    for full in (key, f"{key}.name"):
        if any(full in other.run.config for other in runs):
            return stored.run.config.get(full)
    known = {name for other in runs for name in other.run.config} | {"name", "state", *FIGURES}
    raise ConfigError(f"{key} is nothing that these runs have{did_you_mean(key, sorted(known))}")


def _matches(stored: StoredRun, key: str, form: str, runs: Sequence[StoredRun]) -> bool:
    value = _value(stored, key, runs)
    if _is_number(value):
        try:
            return float(form) == value
        except ValueError:
            pass
    return fnmatchcase(value_text(value), form)


def _sorted(runs: list[StoredRun], key: str) -> list[StoredRun]:
    def order(stored: StoredRun) -> tuple[bool, float, str]:
        value: Any = _figure(stored, FIGURES[key]) if key in FIGURES else _value(stored, key, runs)
        is_number, sign = _is_number(value), -1.0 if key in FIGURES else 1.0
        return not is_number, sign * float(value) if is_number else 0.0, str(value)

    return sorted(runs, key=order)


def _figure(stored: StoredRun, key: str) -> float | None:
    value = (stored.run.summary or {}).get(key)
    return value if _is_number(value) else None


def _is_number(value: Any) -> bool:
    """Whether a value of a file is a number that can be shown and sorted; NaN is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _list(runs: Sequence[StoredRun]) -> None:
    if not runs:
        print("no run matches --where")
    keys = differing_keys([stored.run.settings for stored in runs if stored.state != run_store.BROKEN])
    console, lag = wide_console(), counts_learned([stored.run for stored in runs])
    print_table(
        console, plural(len(runs), "run"), [_row(stored, keys, lag) for stored in runs], ("run", "state", "differs in")
    )
    for stored in runs:
        if stored.state in (run_store.INCOMPLETE, run_store.BROKEN):
            for sentence in stored.run.damage or (f"{stored.path / 'config.yaml'} is no complete configuration",):
                print_sentence(console, f"damage: {sentence}")


def _row(stored: StoredRun, keys: Sequence[str], lag: bool) -> dict[str, str]:
    """Cells of one run, by heading; `lag`: with the data lag of its last round."""
    run = stored.run
    seeds = (run.summary or {}).get("eval_return_per_seed")
    mean, spread = _figure(stored, "eval_return_mean"), _figure(stored, "eval_return_ci95")
    returns = over_seeds(mean, spread, seeds if isinstance(seeds, list) and all(map(_is_number, seeds)) else None)
    last_round = (run.rounds or [{}])[-1]
    last, data_lag = last_round.get("env_steps"), last_round.get("data_lag")
    return {
        "run": str(stored.path),
        "state": stored.state,
        "return": returns if mean is not None else MISSING,
        "steps": compact(_figure(stored, "env_steps") or (last if _is_number(last) else None)),
        **({"last data lag": number(data_lag if _is_number(data_lag) else None, 2)} if lag else {}),
        "simulated": duration(_figure(stored, "simulated_seconds")),
        "cost": dollars(_figure(stored, "cost_usd")),
        "differs in": settings_text({key: run.settings.get(key) for key in keys}) if run.config else "",
    }


def _compare(runs: Sequence[StoredRun]) -> None:
    """Print every setting in which runs differ, whether it follows from another or not."""
    configs = {str(stored.path): stored.run.settings for stored in runs}
    keys = sorted({key for config in configs.values() for key in config if key not in PLACES})
    texts = {
        key: {path: value_text(config[key]) if key in config else MISSING for path, config in configs.items()}
        for key in keys
    }
    rows = [{"setting": key, **cells} for key, cells in texts.items() if len(set(cells.values())) > 1]
    print_table(wide_console(), "what differs", rows, names=("setting",))
    if not rows:
        print("their settings are the same")


def _prune(argv: Sequence[str]) -> None:
    parser = _parser()
    parser.add_argument("--checkpoints", action="store_true", help="delete checkpoints but the last, of finished runs")
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    arguments = parser.parse_mixed(argv)
    runs = _runs_in(arguments.places)
    found, left = (run_store.old_checkpoints(runs), []) if arguments.checkpoints else run_store.removable_runs(runs)
    for sentence in left:
        print(printable(sentence))
    if not found:
        print("there is nothing to delete")
        return
    for removable in found:
        what = f"{len(removable.paths)} checkpoints" if arguments.checkpoints else removable.kept.state
        print(printable(f"{removable.kept.path}  {what}  {_bytes(removable.size)}"))
    noun = "checkpoints of " if arguments.checkpoints else ""
    total = _bytes(sum(removable.size for removable in found))
    if not arguments.yes and not _agreed(f"delete {noun}{plural(len(found), 'run')} ({total})? [y/N] "):
        print("nothing was deleted")
        return
    troubles = [trouble for removable in found if (trouble := run_store.delete(removable)) is not None]
    for trouble in troubles:
        print(printable(trouble), file=sys.stderr)
    print(f"deleted {len(found) - len(troubles)} of {len(found)}")
    if troubles:
        raise RunError(f"{len(troubles)} of {len(found)} could not be deleted.")


def _agreed(question: str) -> bool:
    """Whether the user agrees. Raises ConfigError if stdin is no terminal."""
    if not sys.stdin.isatty():
        raise ConfigError("nobody can be asked whether to delete, because stdin is no terminal; --yes deletes.")
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _bytes(size: float) -> str:
    units = ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, _ = size / 1000, units.pop(0)
    return f"{size:.3g} {units[0]}"
