"""Checks of a configuration's numbers of actors."""

from __future__ import annotations

from collections.abc import Iterator

from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.scaling.limits import is_constant, is_scaled, limits_of


def conditions(c: Config) -> Iterator[tuple[bool, str]]:
    """Conditions on the number of actors; none if all of the platform's actors take part in every round."""
    scaling = c.scaling
    if not is_scaled(c):
        return
    limits = limits_of(c)
    yield (
        limits.maximum <= c.platform.actors,
        f"scaling.maximum={limits.maximum} must be at most platform.actors={c.platform.actors}.",
    )
    yield (
        c.env.num_envs % limits.maximum == 0,
        f"env.num_envs={c.env.num_envs} must be a multiple of scaling.maximum={limits.maximum}, to be shared evenly.",
    )
    for key in ("minimum", "actors"):
        yield (
            getattr(scaling, key) <= limits.maximum,
            f"scaling.{key}={getattr(scaling, key)} must be at most scaling.maximum={limits.maximum}.",
        )
    yield (
        is_constant(c) or scaling.actors == 0 or scaling.actors >= limits.minimum,
        f"scaling.actors={scaling.actors}, of the first round, must be at least scaling.minimum={limits.minimum}.",
    )
