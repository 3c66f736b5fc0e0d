"""Spaces as JSON data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from stellaris_jax.envs.base import Box, Discrete, MultiBinary, MultiDiscrete, Space

KINDS: dict[str, Callable[..., Space]] = {kind.__name__: kind for kind in (Box, Discrete, MultiBinary, MultiDiscrete)}


def space_to_data(space: Space) -> dict[str, Any]:
    """Description of a space by its kind and fields.

    A bound that all elements share is one text; bounds are text because JSON has no infinity.

    >>> space_to_data(Box((2,), (-1.0, -1.0), (1.0, float("inf"))))
    {'kind': 'Box', 'shape': [2], 'low': '-1.0', 'high': ['1.0', 'inf'], 'dtype': 'float32'}
    >>> space_from_data(space_to_data(Discrete(3)))
    Discrete(n=3)
    """
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(space).items()}
    for bound in {"low", "high"} & set(fields):
        texts = [str(float(x)) for x in fields[bound]]
        fields[bound] = texts[0] if len(set(texts)) == 1 else texts
    return {"kind": type(space).__name__, **fields}


def space_from_data(data: dict[str, Any]) -> Space:
    """Space of a description; the inverse of `space_to_data`."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items() if name != "kind"}
    for bound in {"low", "high"} & set(given):
        given[bound] = tuple(np.broadcast_to(np.asarray(data[bound], float), math.prod(data["shape"])).tolist())
    return KINDS[data["kind"]](**given)
