"""Which rounds of a run have a timeline on its page, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stellaris_jax.config.schema import ConfigError, RunError
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.report.page.markup import paragraph
from stellaris_jax.report.page.timeline import MOST_BARS, legend, timeline
from stellaris_jax.report.perfetto import Lived, rounds_of
from stellaris_jax.report.runs import Run

MOST_GRADIENTS = 500_000
"""Gradients that are simulated again for a page: seconds. Of longer runs the first rounds are shown."""
TOGETHER = 3
"""Rounds that are shown together, at most, unless one asks for more."""


def lanes(run: Run, chosen: Sequence[range] = ()) -> tuple[str, str]:
    """The timelines of a run's rounds, and what else is to be said.

    Args:
      run: the run.
      chosen: numbers of rounds, from 1 on; by default some of the beginning, the middle and the end.

    Raises:
      ConfigError: a round is asked for that it does not have.
    """
    total = max((record["round"] for record in run.rounds), default=0)
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
        lived, told = _lived(run, total, chosen)
        return _drawn(run, lived, chosen), told
    except (ConfigError, RunError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        told = str(error) if isinstance(error, ConfigError | RunError) else "its records are damaged."
        return "", f"There is no timeline: {told}"


def _drawn(run: Run, lived: Mapping[int, Lived], chosen: Sequence[range]) -> str:
    """The timelines of the rounds that are chosen, and how to read them."""
    learners = int(run.config["system.learners"])
    windows = chosen or _windows(lived)
    shown = [part for rounds in windows if (part := [lived[number] for number in rounds if number in lived])]
    most = max(
        (g.staleness for part in shown for one in part for group in one.record.groups for g in group.gradients),
        default=0,
    )
    drawn = "".join(timeline(part, learners, most) for part in shown)
    how = (
        "Of the first seed. Point at a bar to read what it is; drag it, or use the arrows, to move along; +, − and the "
        "wheel with Ctrl or Shift come closer and go back."
    )
    return legend(most) + drawn + paragraph(how)


def _lived(run: Run, total: int, chosen: Sequence[range]) -> tuple[dict[int, Lived], str]:
    """A run's rounds by their numbers: those that are chosen, or as many as can be had in time."""
    from stellaris_jax.engine.spec import ProgramSpec  # JAX, which most pages do without

    config = from_yaml(run.path / "config.yaml")
    last = max((rounds.stop - 1 for rounds in chosen), default=total)
    rounds = enumerate(rounds_of(run.path, config, ProgramSpec.of(config).minibatch_layout, last), start=1)
    if chosen:
        return {number: one for number, one in rounds if any(number in some for some in chosen)}, ""
    found: dict[int, Lived] = {}
    gradients = 0
    for number, one in rounds:
        found[number] = one
        gradients += sum(len(group.gradients) for group in one.record.groups) + len(one.record.dropped)
        if gradients >= MOST_GRADIENTS and number < last:
            return found, f"Of {total} rounds the first {number} were looked at; --rounds chooses others."
    return found, ""


def _windows(lived: Mapping[int, Lived]) -> list[range]:
    """Rounds of the beginning, the middle and the end, so many together as can be seen."""
    bars = sum(len(group.gradients) + 1 for one in lived.values() for group in one.record.groups) / len(lived)
    size, count = max(1, min(TOGETHER, int(MOST_BARS / 2 / max(1.0, bars)))), len(lived)
    if count <= 3 * size:
        return [range(first, min(first + size, count + 1)) for first in range(1, count + 1, size)]
    return [range(first, first + size) for first in (1, (count - size) // 2 + 1, count - size + 1)]
