"""Figures of a method's sensitivity: each parameter is varied alone, around the paper's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from studies import pictures
from studies.claims import Claim, more
from studies.history import Series, cost, final, of
from studies.pictures import Point
from studies.study import Study
from studies.training import Variant


class Parameter(NamedTuple):
    """Parameter to vary.

    Attributes:
      key: key of the configuration.
      symbol: the paper's symbol.
      chosen: the paper's choice.
      values: values to train.
      paper: the paper's return and dollars by value.
    """

    key: str
    symbol: str
    chosen: str
    values: Sequence[str]
    paper: Mapping[str, tuple[float, float]]

    def label(self, value: str) -> str:
        return CHOSEN if value == self.chosen else f"{self.symbol}={value}"

    def changed(self, base: Variant, value: str) -> Variant:
        """Variant with another value."""
        return base.with_settings(f"{self.key.rpartition('.')[2]}{value}", f"{self.key}={value}")


CHOSEN = "chosen"


def one_at_a_time(
    study: Study, figure: str, title: str, base: Variant, parameters: Sequence[Parameter], seeds: int
) -> list[Claim]:
    """Train `base`, with the chosen values, and variants with one other value; claim that `base` is best.

    Args:
      study: the request.
      figure: name of the figure.
      title: title of the picture.
      base: variant with the chosen values.
      parameters: parameters to vary.
      seeds: the figure's own number of seeds.
    """
    env = base.name.partition("/")[0]
    series = [Series(CHOSEN, env, base)]
    for parameter in parameters:
        for value in parameter.values:
            if value != parameter.chosen:
                series.append(Series(parameter.label(value), env, parameter.changed(base, value)))
    histories = study.histories(figure, series, seeds)
    ours = of(histories, env, CHOSEN)
    panels: dict[str, list[Point]] = {}
    claims = []
    for parameter in parameters:
        points = panels[parameter.symbol] = []
        for value in parameter.values:
            label, paper = parameter.label(value), parameter.paper
            members = of(histories, env, label)
            points.append(Point(value, paper[value], final(members), cost(members)))
            if label != CHOSEN:
                theirs = f"{paper[parameter.chosen][0]:.0f} against {paper[value][0]:.0f}"
                text = f"{parameter.symbol}={parameter.chosen} ends higher than {label}"
                claims.append(more(text, theirs, final(ours), final(members)))
    pictures.sensitivity(panels, study.picture(figure), title)
    return claims
