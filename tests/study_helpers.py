"""Studies for tests: a toy to train, and one whose runs are made up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stellaris_jax.execute.loading import load_config
from studies.actors import answers
from studies.history import History, Series, write_csv
from studies.store import Learned
from studies.study import Study
from studies.training import Variant

TASK = (
    "env=gymnax/cartpole", "env.num_envs=4", "algorithm.rollout_length=8", "network.hidden=[8]", "total_steps=320",
    "evaluation.points=5", "evaluation.episodes=4",
)  # fmt: skip
CENTRAL = Variant("toy/central", (*TASK, "system=central"))


def made_up(env: str, series: str, seed: int, level: float = 100.0) -> History:
    """A curve that rises to `level`."""
    share = np.arange(1, 11) / 10
    noise = np.random.default_rng(seed).normal(0.0, 1.0, 10)
    money = (300 * share, 0.9 * share, 0.4 * share, 1.0 * share)
    return History(env, series, f"{env}/variant", seed, 2000 * 10 * share, *money, level * share + noise)


@dataclass(frozen=True)
class Imagined(Study):
    """A study whose runs are made up: Stellaris ends at 200, everything else at 100; the policy moves by seed + 1."""

    def learned(self, variants: Iterable[Variant], seeds: range) -> dict[Variant, list[Learned]]:
        return {
            one: [Learned(one.name, seed, (1, 2), (1.0, 2.0), (seed, seed + 1.0), (8, 9)) for seed in seeds]
            for one in variants
        }

    def histories(self, figure: str, series: Iterable[Series], seeds: int) -> list[History]:
        series = list(series)
        if figure == "12":
            assert {load_config([*one.variant.overrides]).rounds for one in series} == {50}
        made = [
            made_up(one.env, one.name, seed, 200.0 if "Stellaris" in one.name else 100.0)
            for one in series
            for seed in range(seeds)
        ]
        write_csv(made, self.results / f"figure_{figure}.csv")
        return made


def empty_study(path: Path) -> Study:
    """Study of asynchronous actors without outcomes, with a page that has a place for each answer."""
    (path / "results").mkdir()
    page = "\n".join(line for figure in answers.ANSWERS for line in answers.markers(figure))
    (path / "results" / "README.md").write_text(
        f"# Title\n{page}\n<!-- made by scripts/reproduce.py: begin -->\n<!-- made by scripts/reproduce.py: end -->\n"
    )
    return Study(path / "runs", path / "results")
