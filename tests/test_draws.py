"""Draws made as one row: the same numbers as those of the shape, under `vmap` and with bounds of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris_jax.base.draws import in_one_row
from stellaris_jax.engine.exploration import random_actions
from stellaris_jax.envs.base import Box, MultiBinary, MultiDiscrete, Space

DRAWS = {
    "gumbel": (jax.random.gumbel,),
    "logistic": (jax.random.logistic,),
    "normal": (jax.random.normal,),
    "randint": (jax.random.randint, 0, 7),
    "bounds of each column": (jax.random.randint, 0, jnp.array([2, 5, 9])),
}


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 5, 3)], ids=str)
@pytest.mark.parametrize("draw, bounds", [(one, bounds) for one, *bounds in DRAWS.values()], ids=list(DRAWS))
def test_one_row_has_the_same_numbers(
    draw: Callable[..., jax.Array], bounds: list[Any], shape: tuple[int, ...]
) -> None:
    keys = jax.random.split(jax.random.key(3), (2, 4))
    rows = jax.vmap(jax.vmap(lambda key: in_one_row(draw, key, shape, *bounds)))(keys)
    shaped = jax.vmap(jax.vmap(lambda key: draw(key, shape, *bounds)))(keys)
    np.testing.assert_array_equal(rows, shaped)


@pytest.mark.parametrize("space", [MultiDiscrete((2, 5)), MultiBinary(3), Box((2,), (-1.0, 0.0), (0.0, 9.0))], ids=str)
def test_random_actions_are_within_the_bounds_of_their_column(space: Space) -> None:
    actions = np.asarray(random_actions(space, jax.random.key(0), (500,)))
    low = np.asarray(getattr(space, "low", 0))
    high = np.asarray(getattr(space, "high", getattr(space, "nvec", 2)))
    assert actions.shape[0] == 500 and (actions >= low).all() and (actions <= high).all()
    share = (actions.mean(axis=0) - low) / (high - low)
    np.testing.assert_allclose(
        share, 0.5 if isinstance(space, Box) else (1 - 1 / np.broadcast_to(high, share.shape)) / 2, atol=0.05
    )
