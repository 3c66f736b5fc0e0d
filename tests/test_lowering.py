"""Programs lowered from shapes alone, for devices that are there and for others; keys and slots of a run."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType
from training import tiny

from stellaris_jax import Config
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.engine import keys, versions
from stellaris_jax.engine.mesh import AXIS
from stellaris_jax.engine.program import Engine
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.state import EngineInputs
from stellaris_jax.envs.registry import from_config
from stellaris_jax.timeline.plan import empty_plan


def engine_of(config: Config, devices: int) -> Engine:
    env = from_config(config.env)
    network = ActorCritic(env.observation_space, env.action_space, config.network)
    return Engine(config.env, env, network, replace(ProgramSpec.of(config), devices=devices))  # type: ignore[arg-type]


def shapes_of(engine: Engine, config: Config) -> EngineInputs:
    return EngineInputs(engine.layout.shapes(), Hyper.of(config).rows(1), empty_plan(engine.shape))


def test_programs_are_lowered_for_devices_that_are_not_there() -> None:
    config = tiny()
    engine = engine_of(config, devices=8)
    assert jax.device_count() < 8
    mesh = AbstractMesh((8,), (AXIS,), axis_types=(AxisType.Auto,))
    text = engine.lower(shapes_of(engine, config), mesh, "cuda").as_text()
    assert "num_partitions = 8" in text


def test_shapes_and_arrays_lower_to_the_same_program() -> None:
    config = tiny()
    engine = engine_of(config, devices=2)
    shapes = shapes_of(engine, config)
    arrays = shapes._replace(state=engine.init([0], shapes.hyper), plan=engine.put(shapes.plan))
    assert engine.lower(arrays).as_text() == engine.lower(shapes).as_text()


def test_a_plan_is_placed_before_anything_is_lowered() -> None:
    engine = engine_of(tiny(), devices=2)
    placed = engine.put(empty_plan(engine.shape))
    assert placed.weights.sharding.shard_shape(placed.weights.shape)[-1] == 1  # type: ignore[attr-defined]
    assert placed.bounds.sharding.is_fully_replicated  # type: ignore[attr-defined]


def test_keys_do_not_change() -> None:
    """Stored results depend on these numbers."""
    key = jax.random.key(7)
    fragment = keys.FragmentKeys.of(key, jax.numpy.int32(3), 4)
    made = (
        *keys.SeedKeys.of(key),
        fragment.start,
        fragment.part(1, 2).envs[0],
        keys.evaluation_key(7, 2),
        keys.probe_key(key, jax.numpy.int32(3)),
        keys.EpisodeKeys.of(key, 2).at(jax.numpy.int32(5))[1][1],
        keys.step_keys(fragment.envs, 2)[3, 1],
    )
    words = [int(jax.random.key_data(each)[1]) for each in made] + [int(keys.acting_key(7)[1])]
    assert words == WORDS


WORDS = [
    1954958720,
    4062205631,
    1948237315,
    2637538571,
    1479548952,
    172180096,
    3161559171,
    350534217,
    869864309,
    351196575,
]


def test_versions_are_found_in_their_slots() -> None:
    config = tiny()
    ring = ProgramSpec.of(config).shape.ring
    stored = versions.init(jax.numpy.zeros(1), ring.length)
    for version in range(1, ring.length + 3):
        stored = versions.publish(stored, version, jax.numpy.full(1, float(version)))  # type: ignore[arg-type]
    newest = ring.length + 2
    for age in range(ring.length):
        slot = ring.slot(np.int32(newest - age))
        assert float(versions.fetch(stored, slot)[0]) == newest - age
        assert int(versions.behind(stored, newest, slot)) == age  # type: ignore[arg-type]
    assert float(versions.previous(stored, newest)[0]) == newest - 1  # type: ignore[arg-type]
