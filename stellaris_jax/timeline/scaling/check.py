"""What a configuration's numbers of actors must be."""

from __future__ import annotations

from collections.abc import Iterator

from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.scaling.width import is_constant, is_scaled, width_of


def conditions(c: Config) -> Iterator[tuple[bool, str]]:
    """Conditions on the number of actors, where it is not simply all of the platform's."""
    scaling = c.scaling
    if not is_scaled(c):
        return
    width = width_of(c)
    yield (
        width.maximum <= c.platform.actors,
        f"scaling.maximum={width.maximum} must be at most platform.actors={c.platform.actors}.",
    )
    yield (
        c.env.num_envs % width.maximum == 0,
        f"env.num_envs={c.env.num_envs} must be a multiple of scaling.maximum={width.maximum}, to be shared evenly.",
    )
    for key in ("minimum", "actors"):
        yield (
            getattr(scaling, key) <= width.maximum,
            f"scaling.{key}={getattr(scaling, key)} must be at most scaling.maximum={width.maximum}.",
        )
    yield (
        is_constant(c) or scaling.actors == 0 or scaling.actors >= width.minimum,
        f"scaling.actors={scaling.actors}, of the first round, must be at least scaling.minimum={width.minimum}.",
    )
