"""Rows of arrays that several devices hold together."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from stellaris_jax.engine.device_rows import put, take
from stellaris_jax.engine.mesh import AXIS, make_mesh

ROWS, DEVICES = 24, 4
WHOLE, PARTS = PartitionSpec(), PartitionSpec(AXIS)
SPECIAL = np.array([-0.0, np.nan, -np.inf, 1e-45], np.float32)


def stored() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    numbers = random.normal(size=(ROWS, 3)).astype(np.float32)
    numbers[::5, 1] = np.resize(SPECIAL, len(numbers[::5]))
    return {
        "flag": random.integers(2, size=ROWS) > 0,
        "byte": random.integers(256, size=(ROWS, 2, 2)).astype(np.uint8),
        "integer": random.integers(-9, 9, size=ROWS).astype(np.int32),
        "half": random.normal(size=ROWS).astype(jnp.bfloat16),
        "number": numbers,
    }


def on_devices(function: Any, *specs: Any, out: Any) -> Any:
    return jax.jit(jax.shard_map(function, mesh=make_mesh(DEVICES), in_specs=specs, out_specs=out, check_vma=False))


def same_bits(ours: Any, theirs: Any) -> None:
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(np.asarray(x).view(np.uint8), y.view(np.uint8)), ours, theirs
    )


def test_each_device_takes_rows_of_its_own() -> None:
    arrays, chosen = stored(), np.random.default_rng(1).integers(ROWS, size=(DEVICES, 2, 5))

    def each(arrays: Any, rows: jax.Array) -> Any:
        return jax.tree.map(lambda x: x[None], take(arrays, rows[0], AXIS))

    taken = on_devices(each, PARTS, PARTS, out=PARTS)(arrays, chosen)
    same_bits(taken, {name: x[chosen] for name, x in arrays.items()})


def test_rows_are_taken_under_vmap() -> None:
    arrays, chosen = stored(), np.random.default_rng(2).integers(ROWS, size=(3, 5))
    taken = on_devices(jax.vmap(partial(take, axis=AXIS), in_axes=(None, 0)), PARTS, WHOLE, out=WHOLE)(arrays, chosen)
    same_bits(taken, {name: x[chosen] for name, x in arrays.items()})


@pytest.mark.parametrize("axis", [None, AXIS])
def test_rows_beyond_the_ends_are_clipped(axis: str | None) -> None:
    arrays, chosen = stored(), np.array([-3, 0, ROWS - 1, ROWS + 5])
    function = partial(take, axis=axis)
    taken = function(arrays, chosen) if axis is None else on_devices(function, PARTS, WHOLE, out=WHOLE)(arrays, chosen)
    same_bits(taken, {name: x[np.clip(chosen, 0, ROWS - 1)] for name, x in arrays.items()})


def test_rows_are_put_wherever_they_belong() -> None:
    arrays, new = stored(), {name: np.roll(x, 5, axis=0)[:7] for name, x in stored().items()}
    function = on_devices(partial(put, axis=AXIS), PARTS, WHOLE, WHOLE, out=PARTS)
    for first in range(ROWS - 6):
        expected = {name: np.concatenate([x[:first], new[name], x[first + 7 :]]) for name, x in arrays.items()}
        same_bits(function(arrays, new, first), expected)
        same_bits(put(arrays, new, jnp.int32(first), None), expected)
