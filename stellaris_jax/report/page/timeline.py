"""Timelines of a run's page: a row per learner with bars coloured by staleness, to zoom and drag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.report.page.markup import paragraph, text
from stellaris_jax.report.perfetto import TimelineRound, rounds_of
from stellaris_jax.report.runs import Run
from stellaris_jax.telemetry.format import number, significant
from stellaris_jax.timeline import Gradient, Group
from stellaris_jax.timeline.plan import MinibatchLayout

WIDTH = 10_000
"""Width of a timeline, in units of its view box."""
MOST_BARS = 1200
"""Most bars of one timeline; of rounds with more, the first bars are drawn."""
SHADES = 6
"""Number of colours, from no staleness to the largest."""
ROW, LEAST, TALLEST = 18, 4, 420
"""Largest and smallest height of a row, and largest height of all rows, in pixels."""


MOST_GRADIENTS = 500_000
"""Most gradients that are simulated again for a page, which takes seconds. Longer runs show their first rounds."""
TOGETHER = 3
"""Most rounds of one timeline, unless the user chooses more."""


class Bar(NamedTuple):
    """Bar of a timeline.

    Attributes:
      row: row of the bar.
      start: beginning, in seconds.
      end: end, in seconds.
      kind: CSS class.
      about: description.
    """

    row: int
    start: float
    end: float
    kind: str
    about: str


def timeline(rounds: Sequence[TimelineRound], learners: int, most: int) -> str:
    """Consecutive rounds as a picture.

    Args:
      rounds: the rounds.
      learners: number of learners.
      most: staleness that has the last colour.
    """
    every = sorted(_bars(rounds, learners, most), key=lambda bar: bar.start)
    bars = every[:MOST_BARS]
    first, last = rounds[0].round.index + 1, rounds[-1].round.index + 1
    named = f"round {first}" if first == last else f"rounds {first} to {last}"
    if not bars:
        return f"<p>{text(f'Nothing was computed in {named}.')}</p>"
    start, end = bars[0].start, max(bar.end for bar in bars)
    span = (end - start) or 1.0
    row = max(LEAST, min(ROW, TALLEST // (learners + 2)))
    height = row * (learners + 2)

    def drawn(bar: Bar) -> str:
        left = round(WIDTH * (bar.start - start) / span)
        width = max(1, round(WIDTH * (bar.end - start) / span) - left)
        shape = f"M{left} {row * bar.row + 1}h{width}v{row - 2}h-{width}z"
        return f'<path class="{bar.kind}" d="{shape}"><title>{text(bar.about)}</title></path>'

    names = ["actors", *(f"learner {n}" for n in range(learners)), "aggregation"]
    if row < 12:
        names = ["actors", f"{learners} learners", *[""] * (learners - 1), "aggregation"]
    labels = "".join(f'<li style="height:{row}px">{text(name)}</li>' for name in names)
    heading = f"{named[0].upper()}{named[1:]}: {significant(start)} s to {significant(end)} s"
    heading += f"; the first {MOST_BARS} of {len(every)} bars" if len(every) > MOST_BARS else ""
    tools = "".join(
        f'<button type="button" data-zoom="{zoom}" aria-label="{name}">{sign}</button>'
        for zoom, name, sign in ((0.5, "closer", "+"), (2, "wider", "−"), (0, "all of it", "⟲"))
    )
    return (
        f'<figure class="timeline" data-from="{start:.9g}" data-to="{end:.9g}">'
        f'<div class="tools"><span>{text(heading)}</span>{tools}</div><div class="rows"><ol>{labels}</ol>'
        f'<svg role="img" tabindex="0" aria-label="{text(f"timeline of {named}")}" viewBox="0 0 {WIDTH} {height}" '
        f'preserveAspectRatio="none" style="height:{height}px">{"".join(map(drawn, bars))}</svg></div>'
        '<div class="ticks"></div><figcaption class="about" aria-live="polite">&nbsp;</figcaption></figure>'
    )


def _bars(rounds: Sequence[TimelineRound], learners: int, most: int) -> Iterator[Bar]:
    for entry in rounds:
        round_ = entry.round
        version = (
            f"fragment {round_.index}, collected by {round_.actors} actors with version {round_.behaviour_version}"
        )
        if entry.rolls:
            start, end = min(roll.start for roll in entry.rolls), max(roll.end for roll in entry.rolls)
            yield Bar(0, start, end, "roll", f"{version}, {_seconds(start, end)}")
        for failure in entry.failures:
            row = 0 if failure.kind == "actor" else failure.number + 1
            about = f"{failure.kind} {failure.number} died: {failure.reason}, {_seconds(failure.start, failure.end)}"
            yield Bar(row, failure.start, failure.end, "lost", about)
        for gradient in round_.dropped:
            yield _computed(gradient, "lost", "thrown away")
        for group in round_.groups:
            for gradient in group.gradients:
                shade = round((SHADES - 1) * min(1.0, gradient.staleness / max(1, most)))
                yield _computed(gradient, f"s{shade}", f"staleness {gradient.staleness}")
            end = max(group.published, group.second)
            yield Bar(learners + 1, group.second, end, "escaped" if group.escaped else "group", _aggregated(group))


def _computed(gradient: Gradient, kind: str, outcome: str) -> Bar:
    data = f"fragment {gradient.fragment}, minibatch {gradient.minibatch}, on version {gradient.version}"
    about = f"{data}, by learner {gradient.learner}: {outcome}, {_seconds(gradient.start, gradient.end)}"
    return Bar(gradient.learner + 1, gradient.start, gradient.end, kind, about)


def _aggregated(group: Group) -> str:
    stale = ", ".join(str(gradient.staleness) for gradient in group.gradients)
    gate = "" if group.threshold is None else f", gate {number(group.threshold, 2)}"
    return (
        f"version {group.clock + 1} of {len(group.gradients)} gradients with staleness {stale}{gate}"
        f"{', which it escaped' if group.escaped else ''}, at {significant(group.second)} s"
    )


def _seconds(start: float, end: float) -> str:
    return f"{significant(start)} s to {significant(end)} s"


def legend(most: int) -> str:
    """Legend of the colours."""
    ends = [(f"s{shade}", most * shade / (SHADES - 1)) for shade in range(SHADES)]
    values = dict.fromkeys(round(value) for _, value in ends)
    shades = [(f"s{round((SHADES - 1) * value / max(1, most))}", f"staleness {value}") for value in values]
    others = [("roll", "collecting"), ("group", "aggregation"), ("escaped", "escape of the gate"), ("lost", "lost")]
    items = "".join(f'<li><i class="{kind}"></i>{text(name)}</li>' for kind, name in [*shades, *others])
    return f'<ul class="legend shades">{items}</ul>'


def timelines_of(run: Run, chosen: Sequence[range] = ()) -> tuple[str, str]:
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
            "A report runs no code of plug-ins, so it draws no timeline of this run; plot --trace writes one.",
        )
    if run.config.get("executor") == "replay":
        return "", "The timeline of a replay is that of the live run that it repeats."
    try:
        rounds_by_number, note = _simulated(run, total, chosen)
        return _timelines(run, rounds_by_number, chosen), note
    except (ConfigError, RunError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = str(error) if isinstance(error, ConfigError | RunError) else "its records are damaged."
        return "", f"There is no timeline: {reason}"


def _timelines(run: Run, rounds_by_number: Mapping[int, TimelineRound], chosen: Sequence[range]) -> str:
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
        "The timeline is that of the first seed. Point at a bar to read its description. Drag it, or press the arrow "
        "keys, to move; +, − and the wheel with Ctrl or Shift zoom."
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
    for index, entry in rounds:
        by_number[index] = entry
        gradients += sum(len(group.gradients) for group in entry.round.groups) + len(entry.round.dropped)
        if gradients >= MOST_GRADIENTS and index < last:
            return by_number, f"Of {total} rounds the first {index} were simulated; --rounds chooses others."
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
