"""Build of one figure: counts of trained and read runs, and protection of published figures.

A figure is published once its claims are in the results. It may gain seeds, environments and series. Any loss, or a mix
with runs of other versions or of another machine, needs `--overwrite`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.runs.provenance import processor, versions
from studies.files import locked, read_table

ORIGINS = "made.json"
"""File of the results with the versions and machines that each figure was trained with."""
NO_ORIGIN = ("python", "stellaris_jax")
"""Versions that are no part of an origin: digests of configurations cover settings whose meaning changed."""


def origin() -> dict[str, Any]:
    """Versions of the packages that results depend on, and the processor of this machine."""
    return {"machine": processor(), **{name: version for name, version in versions().items() if name not in NO_ORIGIN}}


@dataclass
class FigureBuild:
    """Build of one figure.

    Args:
      figure: name of the figure.
      results: directory of the results.
      overwrite: whether any published figure may be replaced.
    """

    figure: str
    results: Path
    overwrite: bool = False
    trained: set[Hashable] = field(default_factory=set)
    read: set[Hashable] = field(default_factory=set)
    measured: bool = False

    @property
    def claims(self) -> Path:
        """File of the figure's claims."""
        return self.results / f"claims_{self.figure}.csv"

    @property
    def published(self) -> bool:
        """Whether there is a published figure."""
        return self.claims.is_file()

    def count(self, requested: Iterable[Hashable], missing: Iterable[Hashable]) -> None:
        """Count runs as read, or as trained if they are missing; each run counts once."""
        self.trained.update(missing)
        self.read.update(key for key in requested if key not in self.trained)

    def check_training(self, runs: int) -> None:
        """Raise ConfigError, before training, if new runs must not be mixed with those of the published figure."""
        if runs:
            self._check_origin(f"would train {runs} of its runs")

    def measure(self) -> None:
        """Note that the figure measures this machine. Raises ConfigError if another machine's figure is published."""
        self._check_origin("would measure it")
        self.measured = True

    def _check_origin(self, would: str) -> None:
        made = _origins(self.results).get(self.figure, [])
        if self.overwrite or not self.published or origin() in made:
            return
        old = _differences(made[-1], origin()) if made else "versions and a machine that were not recorded"
        raise self.refused(f"made with {old}", would)

    def check_envs(self, published: Iterable[str], envs: Collection[str]) -> None:
        """Raise ConfigError if the published figure has environments that the new one lacks."""
        lost = sorted(set(published) - set(envs))
        if lost and not self.overwrite:
            raise self.refused(f"of {', '.join(lost)} as well", f"would leave only {', '.join(envs) or 'nothing'}")

    def check_series(self, published: Iterable[tuple[str, str]], series: Iterable[tuple[str, str]], seeds: int) -> None:
        """Raise ConfigError if a published curve would lose seeds, or vanish.

        Args:
          published: environment and series of each published curve, once for each seed.
          series: pairs of environment and series of the new figure.
          seeds: number of seeds of each new curve.
        """
        series = list(series)
        envs = {env for env, _ in series}
        for (env, name), known in Counter(published).items():
            if self.overwrite or env not in envs:  # other environments are kept
                continue
            if (env, name) not in series:
                raise self.refused(f'with the series "{name}" on {env}', "would leave it out")
            if known > seeds:
                raise self.refused(f"with {known} seeds of {env}", f"would have {seeds}")

    def check_table(self, name: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Raise ConfigError if a table would replace a longer one, or lose environments."""
        path = self.results / f"figure_{name}.csv"
        if self.overwrite or not path.is_file():
            return
        old = read_table(path)
        if "env" in header:
            place = list(header).index("env")
            self.check_envs((row["env"] for row in old), list(dict.fromkeys(str(row[place]) for row in rows)))
        if len(old) > len(rows):
            raise self.refused(f"with {len(old)} lines in {path.name}", f"would have {len(rows)}")

    def refused(self, published: str, would: str) -> ConfigError:
        """Error that says how to keep both figures."""
        return ConfigError(
            f"{self.results} has figure {self.figure} {published}, and this call {would}: "
            "keep them apart with --results DIR, or replace it with --overwrite."
        )

    def done(self) -> None:
        """Record the origin of the figure, if it was trained or measured here."""
        if self.trained or self.measured:
            path = self.results / ORIGINS
            with locked(path):
                known = _origins(self.results)
                others = [made for made in known.get(self.figure, []) if made != origin() and not self.measured]
                known[self.figure] = [*others, origin()]
                write_atomically(path, json.dumps(dict(sorted(known.items())), indent=1) + "\n")

    def __str__(self) -> str:
        return f"figure {self.figure}: {len(self.trained)} trained, {len(self.read)} read"


def _origins(results: Path) -> dict[str, list[dict[str, Any]]]:
    """Origins of each figure; empty if there is no file."""
    path = results / ORIGINS
    if not path.is_file():
        return {}
    try:
        stored = json.loads(inputs.read_text(path))
        return {str(figure): [dict(one) for one in origins] for figure, origins in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {inputs.reason(error)}.") from None


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Differences between two origins, such as "jax 0.11.2 (here 0.11.4)"."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(
        f"{'' if name == 'machine' else f'{name} '}{old.get(name, 'absent')} (here {new.get(name, 'absent')})"
        for name in names
    )


_CURRENT: ContextVar[FigureBuild | None] = ContextVar("build", default=None)


def current_build() -> FigureBuild:
    """Figure that is being made; outside of `figure_build`, one that refuses nothing."""
    return _CURRENT.get() or FigureBuild("", Path(), overwrite=True)


@contextmanager
def figure_build(figure: str, results: Path, overwrite: bool = False) -> Iterator[FigureBuild]:
    """Context in which a figure is made."""
    current = FigureBuild(figure, results, overwrite)
    token = _CURRENT.set(current)
    try:
        yield current
    finally:
        _CURRENT.reset(token)
