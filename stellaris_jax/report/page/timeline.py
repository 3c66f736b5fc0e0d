"""Timelines of a run's page: a row per learner with bars coloured by staleness, to zoom and drag.

Independent actors have a row per shard with segments coloured by version, and one with the length of the data queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from stellaris_jax.base.commands import command, path_argument
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.report.page.markup import paragraph, text
from stellaris_jax.report.perfetto import TimelineRound, rounds_of
from stellaris_jax.report.runs import Run
from stellaris_jax.report.shards import DIED, DROPPED, ShardBar, queue_length, shard_bars
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

READABLE = 12
"""Smallest height of a row that has its own name, in pixels."""
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


class Rows(NamedTuple):
    """Rows of a timeline.

    Attributes:
      learners: number of learners.
      shards: number of shards of independent actors; 0 for other actors, which have one row.
    """

    learners: int
    shards: int = 0

    @property
    def first_learner(self) -> int:
        """Row of the first learner."""
        return self.shards + 1

    @property
    def names(self) -> list[str]:
        """Names of the rows, from above."""
        actors = [*(f"shard {n}" for n in range(self.shards)), "data queue"] if self.shards else ["actors"]
        return [*actors, *(f"learner {n}" for n in range(self.learners)), "aggregation"]

    def named(self, row: int) -> list[str]:
        """Names that fit beside rows of a height in pixels."""
        if row >= READABLE:
            return self.names
        few = [f"{self.learners} learners", *[""] * (self.learners - 1), "aggregation"]
        actors = [f"{self.shards} shards", *[""] * (self.shards - 1), "data queue"] if self.shards else ["actors"]
        return [*actors, *few]


def timeline(config: Config, rounds: Sequence[TimelineRound], most: int) -> str:
    """Consecutive rounds as a picture.

    Args:
      config: configuration of the run.
      rounds: the rounds.
      most: staleness that has the last colour.
    """
    rows = Rows(config.system.learners, config.actor_shards)
    fragments = shard_bars(config, [entry.round for entry in rounds], rounds[-1].under_way) if rows.shards else []
    until = rounds[-1].round.usage.seconds
    every = [*_bars(rounds, rows, most), *_shards(config, fragments, rounds, until)]
    every.sort(key=lambda bar: bar.start)
    bars = every[:MOST_BARS]
    first, last = rounds[0].round.index + 1, rounds[-1].round.index + 1
    named = f"round {first}" if first == last else f"rounds {first} to {last}"
    if not bars:
        return f"<p>{text(f'Nothing was computed in {named}.')}</p>"
    start, end = bars[0].start, max(bar.end for bar in bars)
    span = (end - start) or 1.0
    row = max(LEAST, min(ROW, TALLEST // len(rows.names)))
    height = row * len(rows.names)

    def drawn(bar: Bar) -> str:
        left = round(WIDTH * (bar.start - start) / span)
        width = max(1, round(WIDTH * (bar.end - start) / span) - left)
        shape = f"M{left} {row * bar.row + 1}h{width}v{row - 2}h-{width}z"
        return f'<path class="{bar.kind}" d="{shape}"><title>{text(bar.about)}</title></path>'

    queue = _queue(fragments, (start, end, until), row * rows.shards, row) if rows.shards else ""
    labels = "".join(f'<li style="height:{row}px">{text(name)}</li>' for name in rows.named(row))
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
        f'preserveAspectRatio="none" style="height:{height}px">{queue}{"".join(map(drawn, bars))}</svg></div>'
        '<div class="ticks"></div><figcaption class="about" aria-live="polite">&nbsp;</figcaption></figure>'
    )


def _shards(
    config: Config, fragments: Sequence[ShardBar], rounds: Sequence[TimelineRound], until: float
) -> Iterator[Bar]:
    """Bars of fragments within the rounds, one for each segment of those that are used; and marks of batches."""
    begin = rounds[0].round.start
    versions = [version for bar in fragments for version in bar.fragment.versions]
    oldest, newest = min(versions, default=0), max(versions, default=0)
    for bar in fragments:
        fragment = bar.fragment
        where, about = fragment.shard, f"{bar.about}, {_seconds(fragment.begin, bar.end)}"
        if bar.outcome in (DROPPED, DIED):
            yield Bar(where, max(begin, fragment.begin), min(bar.end, until), "lost", about)
            continue
        for part, (start, end, version) in enumerate(bar.segments):
            shade = round((SHADES - 1) * (version - oldest) / max(1, newest - oldest))
            segment = f"segment {part + 1} of {config.segments}, version {version}; " if config.segments > 1 else ""
            if start < until and end > begin:
                yield Bar(where, max(begin, start), min(end, until), f"v{shade}", segment + about)
    for batch in (batch for entry in rounds for batch in entry.round.batches):
        ages = ", ".join(str(batch.age(fragment)) for fragment in batch.fragments)
        about = (
            f"batch {batch.index}, formed at {significant(batch.second)} s; ages of its fragments in batches: {ages}"
        )
        yield Bar(config.actor_shards, batch.second, max(batch.second, batch.loaded), "group", about)


def _queue(fragments: Sequence[ShardBar], span: tuple[float, float, float], top: int, row: int) -> str:
    """Length of the data queue as an area.

    Args:
      fragments: all fragments.
      span: first and last second of the picture, and of its rounds.
      top: upper end of its row.
      row: height of a row.
    """
    start, end, until = span
    seconds, waiting = queue_length(fragments, until)
    most = max(1, int(waiting.max()))
    shape = [f"M0 {top + row}"]
    for second, length in zip(seconds, waiting, strict=True):
        left = min(WIDTH, max(0, round(WIDTH * (second - start) / ((end - start) or 1.0))))
        shape.append(f"H{left}V{top + row - round((row - 2) * int(length) / most)}")
    about = f"fragments that wait for a batch, at most {most}"
    return f'<path class="waiting" d="{"".join(shape)}V{top + row}z"><title>{text(about)}</title></path>'


def _bars(rounds: Sequence[TimelineRound], rows: Rows, most: int) -> Iterator[Bar]:
    first = rows.first_learner
    for entry in rounds:
        round_ = entry.round
        version = (
            f"fragment {round_.index}, collected by {round_.actors} actors with version {round_.behaviour_version}"
        )
        if entry.rolls and not rows.shards:
            start, end = min(roll.start for roll in entry.rolls), max(roll.end for roll in entry.rolls)
            yield Bar(0, start, end, "roll", f"{version}, {_seconds(start, end)}")
        for failure in entry.failures:
            row = failure.number + first
            if failure.kind == "actor":
                row = failure.number if rows.shards else 0
            about = f"{failure.kind} {failure.number} died: {failure.reason}, {_seconds(failure.start, failure.end)}"
            yield Bar(row, failure.start, failure.end, "lost", about)
        for gradient in round_.dropped:
            yield _computed(gradient, first, "lost", "thrown away")
        for group in round_.groups:
            for gradient in group.gradients:
                shade = round((SHADES - 1) * min(1.0, gradient.staleness / max(1, most)))
                yield _computed(gradient, first, f"s{shade}", f"staleness {gradient.staleness}")
            end = max(group.published, group.second)
            yield Bar(
                first + rows.learners, group.second, end, "escaped" if group.escaped else "group", _aggregated(group)
            )


def _computed(gradient: Gradient, first: int, kind: str, outcome: str) -> Bar:
    data = f"fragment {gradient.fragment}, minibatch {gradient.minibatch}, on version {gradient.version}"
    about = f"{data}, by learner {gradient.learner}: {outcome}, {_seconds(gradient.start, gradient.end)}"
    return Bar(gradient.learner + first, gradient.start, gradient.end, kind, about)


def _aggregated(group: Group) -> str:
    stale = ", ".join(str(gradient.staleness) for gradient in group.gradients)
    gate = "" if group.threshold is None else f", gate {number(group.threshold, 2)}"
    return (
        f"version {group.clock + 1} of {len(group.gradients)} gradients with staleness {stale}{gate}"
        f"{', which it escaped' if group.escaped else ''}, at {significant(group.second)} s"
    )


def _seconds(start: float, end: float) -> str:
    return f"{significant(start)} s to {significant(end)} s"


def legend(most: int, shards: bool = False) -> str:
    """Legend of the colours; `shards`: of independent actors, too."""
    ends = [(f"s{shade}", most * shade / (SHADES - 1)) for shade in range(SHADES)]
    values = dict.fromkeys(round(value) for _, value in ends)
    shades = [(f"s{round((SHADES - 1) * value / max(1, most))}", f"staleness {value}") for value in values]
    others = [("group", "aggregation"), ("escaped", "escape of the gate"), ("lost", "lost")]
    if shards:
        collecting = [("v0", "collecting, oldest version"), (f"v{SHADES - 1}", "newest version")]
        others = [*collecting, ("waiting", "waiting fragments"), *others]
    else:
        others = [("roll", "collecting"), *others]
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
            "A report runs no code of plug-ins, so it draws no timeline of this run: "
            f"{command('plot')} --timeline 2 {path_argument(run.path)} draws one.",
        )
    if run.config.get("executor") == "replay":
        return "", "The timeline of a replay is that of the live run that it repeats."
    try:
        config = from_yaml(run.path / "config.yaml")
        rounds_by_number, note = _simulated(run, config, total, chosen)
        return _timelines(config, rounds_by_number, chosen), note
    except (ConfigError, RunError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = str(error) if isinstance(error, ConfigError | RunError) else "its records are damaged."
        return "", f"There is no timeline: {reason}"


def _timelines(config: Config, rounds_by_number: Mapping[int, TimelineRound], chosen: Sequence[range]) -> str:
    """HTML of the timelines of the chosen rounds, with a legend and instructions."""
    windows = chosen or _windows(config, rounds_by_number)
    shown = [
        part
        for rounds in windows
        if (part := [rounds_by_number[number] for number in rounds if number in rounds_by_number])
    ]
    most = max(
        (g.staleness for part in shown for entry in part for group in entry.round.groups for g in group.gradients),
        default=0,
    )
    drawn = "".join(timeline(config, part, most) for part in shown)
    how = (
        "The timeline is that of the first seed. Point at a bar to read its description. Drag it, or press the arrow "
        "keys, to move; +, − and the wheel with Ctrl or Shift zoom."
    )
    return legend(most, config.actor_shards > 0) + drawn + paragraph(how)


def _simulated(run: Run, config: Config, total: int, chosen: Sequence[range]) -> tuple[dict[int, TimelineRound], str]:
    """Rounds of a run by their numbers, and a note: the chosen ones, or as many as can be simulated in time."""
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


def _windows(config: Config, rounds_by_number: Mapping[int, TimelineRound]) -> list[range]:
    """Ranges of rounds at the beginning, the middle and the end, each as long as bars stay visible."""
    bars = sum(len(group.gradients) + 1 for entry in rounds_by_number.values() for group in entry.round.groups) / len(
        rounds_by_number
    )
    bars += config.actor_shards * config.segments
    size, count = max(1, min(TOGETHER, int(MOST_BARS / 2 / max(1.0, bars)))), len(rounds_by_number)
    if count <= 3 * size:
        return [range(first, min(first + size, count + 1)) for first in range(1, count + 1, size)]
    return [range(first, first + size) for first in (1, (count - size) // 2 + 1, count - size + 1)]
