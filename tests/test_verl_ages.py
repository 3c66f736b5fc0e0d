"""Ages of completions by verl's options, as the page on engines' options has them."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from commands import REPOSITORY

from stellaris_jax.many.forecast import combinations, forecast
from stellaris_jax.timeline.forecast import Window


def verl_rows() -> list[Any]:
    """Rows of the table on verl's options: its options, `eta`, updates of a step, and the printed ages."""
    section = (REPOSITORY / "docs/knobs.md").read_text().partition("## Which of verl's options")[2]
    rows = [[*map(str.strip, line.strip("|").split("|"))] for line in section.splitlines() if line.startswith("| ")][1:]
    found = []
    for theirs, ours, *ages in rows:
        trigger, threshold = re.findall(r"[\d.]+", theirs)[:2]
        period, often, eta = map(int, re.findall(r"\d+", ours))
        assert [period, often] == [int(trigger), 4 * int(trigger)]
        for updates, printed in zip((1, 4), ages, strict=True):
            row = (int(trigger), float(threshold), eta, updates, printed)
            found.append(pytest.param(*row, marks=pytest.mark.thorough if found else ()))
    return found


@pytest.mark.parametrize(("trigger", "threshold", "eta", "updates", "printed"), verl_rows())
def test_ages_by_options_of_verl(trigger: int, threshold: float, eta: int, updates: int, printed: str) -> None:
    """By the rule, and by plans with two durations of training."""
    options = [
        "env=tokens/addition", "algorithm=grpo", f"algorithm.minibatches={updates}", "system=areal",
        "system.learners=1", f"system.data_admission_options.eta={eta}", f"system.publish_every={trigger * updates}",
        "system.sync_steps=1", "network.options.recompute=true", "platform.cache=0", "delays.learner.seconds=0.3,4",
    ]  # fmt: skip
    rule = trigger + math.ceil(threshold * trigger) - 1
    ages = [forecast(one, Window()).figures["data_lag_max"][0] for one in combinations(options)]
    assert printed == f"{rule * updates + updates - 1} ({ages[0]:.0f}, {ages[1]:.0f})"
    assert eta == math.ceil(round((1 + threshold) * trigger - 1, 9))
