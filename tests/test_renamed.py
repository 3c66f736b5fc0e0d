"""Old names of what plug-ins use: they work, with one warning that says the new name."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import jax.numpy as jnp
import pytest

from stellaris_jax import Admission, Cell
from stellaris_jax.agent.losses import masks
from stellaris_jax.config.old_options import new_keys
from stellaris_jax.engine.corrections import Context
from stellaris_jax.execute.loading import load_config

MIGRATING = Path(__file__).parents[1] / "docs" / "migrating.md"


def test_mask_inputs() -> None:
    with pytest.warns(FutureWarning, match=r"masks\.Seen is called MaskInputs now"):
        assert masks.Seen is masks.MaskInputs
    with pytest.raises(AttributeError, match="no attribute 'Scene'"):
        masks.Scene  # noqa: B018


def test_newest_params() -> None:
    params = jnp.ones(3)
    context = Context(jnp.zeros(1, jnp.int32), params[None], params, {})
    with pytest.warns(FutureWarning, match=r"Context\.newest is called newest_params now"):
        assert context.newest is params


def test_initial_carry_of_an_old_cell() -> None:
    with pytest.warns(FutureWarning, match="the method blank of Old is called initial_carry now"):

        class Old(Cell):
            def blank(self, number: int) -> jnp.ndarray:
                return jnp.full((number, self.size), 7.0)

    with warnings.catch_warnings(action="error"):

        class New(Cell):
            def initial_carry(self, number: int) -> jnp.ndarray:
                return jnp.zeros((number, self.size))

    assert float(Old(2, None).initial_carry(3).sum()) == 42.0  # type: ignore[arg-type]
    assert float(New(2, None).initial_carry(3).sum()) == 0.0  # type: ignore[arg-type]


def test_patience_of_an_old_admission_policy() -> None:
    with pytest.warns(FutureWarning, match="the method patience of Old is called largest_staleness now"):

        class Old(Admission):
            def patience(self) -> int | None:
                return 3

    assert Old({}).largest_staleness() == 3 and Admission({}).largest_staleness() is None


def test_page_on_migration_has_the_keys_that_the_package_reads() -> None:
    table = MIGRATING.read_text().partition("## Which keys")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", table, re.MULTILINE)
    assert len(rows) == 6
    config = load_config(
        ["env=gymnax/cartpole", "system=softsync", "system.weights=power", "system.admission=bounded",
         "system.corrections=[delay_compensation]", "algorithm=importance", "algorithm.masks=[m2po]",
         "run.loggers=[wandb]"]
    )  # fmt: skip
    for old, new in rows:
        assert new_keys(old, lambda place: place.names(config)) == [new]
