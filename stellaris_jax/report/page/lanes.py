"""Timelines of a run's page: choice of the rounds, and their simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.report.page.markup import paragraph
from stellaris_jax.report.page.timeline import MOST_BARS, legend, timeline
from stellaris_jax.report.perfetto import TimelineRound, rounds_of
from stellaris_jax.report.runs import Run
from stellaris_jax.timeline.plan import MinibatchLayout

MOST_GRADIENTS = 500_000
"""Most gradients that are simulated again for a page, which takes seconds. Longer runs show their first rounds."""
TOGETHER = 3
"""Most rounds of one timeline, unless the user chooses more."""


def lanes(run: Run, chosen: Sequence[range] = ()) -> tuple[str, str]:
    """HTML of the timelines of a run's rounds, and a sentence about missing rounds.

    Args:
      run: the run.
      chosen: numbers of rounds, from 1 on; by default some of the beginning, the middle and the end.

    Raises:
      ConfigError: the run has no such round.
    """
    total = max((row["round"] for row in run.rounds), default=0)
    beyond = [rounds for rounds in chosen if rounds.stop - 1 > total]
    if beyond:
        raise ConfigError(f"--rounds={beyond[0].stop - 1} is not a round of {run.path}, which has {total}.")
    if not run.config or not total:
        return "", ""
    if run.config.get("plugins"):
        return (
            "",
            "There is no timeline of a run with plug-ins, whose code a report does not run; plot --trace makes one.",
        )
    if run.config.get("executor") == "replay":
        return "", "The timeline of a replay is that of the live run that it repeats."
    try:
        rounds_by_number, note = _simulated(run, total, chosen)
        return _drawn(run, rounds_by_number, chosen), note
    except (ConfigError, RunError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = str(error) if isinstance(error, ConfigError | RunError) else "its records are damaged."
        return "", f"There is no timeline: {reason}"


def _drawn(run: Run, rounds_by_number: Mapping[int, TimelineRound], chosen: Sequence[range]) -> str:
    """HTML of the timelines of the chosen rounds, with a legend and instructions."""
    learners = int(run.config["system.learners"])
    windows = chosen or _windows(rounds_by_number)
    shown = [
        part
        for rounds in windows
        if (part := [rounds_by_number[number] for number in rounds if number in rounds_by_number])
    ]
    most = max(
        (g.staleness for part in shown for entry in part for group in entry.round.groups for g in group.gradients),
        default=0,
    )
    drawn = "".join(timeline(part, learners, most) for part in shown)
    how = (
        "Of the first seed. Point at a bar to read what it is; drag it, or use the arrows, to move along; +, − and the "
        "wheel with Ctrl or Shift come closer and go back."
    )
    return legend(most) + drawn + paragraph(how)


def _simulated(run: Run, total: int, chosen: Sequence[range]) -> tuple[dict[int, TimelineRound], str]:
    """Rounds of a run by their numbers, and a note: the chosen ones, or as many as can be simulated in time."""
    config = from_yaml(run.path / "config.yaml")
    last = max((rounds.stop - 1 for rounds in chosen), default=total)
    rounds = enumerate(rounds_of(run.path, config, MinibatchLayout.of(config), last), start=1)
    if chosen:
        return {number: entry for number, entry in rounds if any(number in window for window in chosen)}, ""
    by_number: dict[int, TimelineRound] = {}
    gradients = 0
    for number, entry in rounds:
        by_number[number] = entry
        gradients += sum(len(group.gradients) for group in entry.round.groups) + len(entry.round.dropped)
        if gradients >= MOST_GRADIENTS and number < last:
            return by_number, f"Of {total} rounds the first {number} were looked at; --rounds chooses others."
    return by_number, ""


def _windows(rounds_by_number: Mapping[int, TimelineRound]) -> list[range]:
    """Ranges of rounds at the beginning, the middle and the end, each as long as bars stay visible."""
    bars = sum(len(group.gradients) + 1 for entry in rounds_by_number.values() for group in entry.round.groups) / len(
        rounds_by_number
    )
    size, count = max(1, min(TOGETHER, int(MOST_BARS / 2 / max(1.0, bars)))), len(rounds_by_number)
    if count <= 3 * size:
        return [range(first, min(first + size, count + 1)) for first in range(1, count + 1, size)]
    return [range(first, first + size) for first in (1, (count - size) // 2 + 1, count - size + 1)]
