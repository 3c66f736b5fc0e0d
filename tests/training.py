"""Jobs small enough for tests, and what it takes for two trainers to be the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from host_env import Clockwork

from stellaris_jax import Config, Population, Trainer, load_config
from stellaris_jax.envs.registry import register
from stellaris_jax.runs.checkpoint import Checkpoints, to_host

OPTION = "system.data_admission_options"
T = 16
"""Steps of a rollout in all of these jobs."""
HOST_ENVS = 6
"""Environments of `clockwork`."""
ACTORS, EACH = 8, 2
"""Actors of `scalable`, and the environments of each."""
COMMON = [
    "env.normalize_observation=true", "network.hidden=[8]", f"algorithm.rollout_length={T}", "algorithm.epochs=2",
    "algorithm.minibatches=4", "system.learners=3", "system.versions=8",
]  # fmt: skip
"""Settings of all of these jobs."""
TINY = [
    *COMMON, "env=gymnax/cartpole", "env.num_envs=8", "env.normalize_reward=true", "algorithm.kl_coefficient=0.2",
    "algorithm.anneal=false", "system.actors=pipelined", "delays.failure=0.1", "evaluation.episodes=4",
    "evaluation.points=1", "run.progress=false",
]  # fmt: skip
SHORT = ["evaluation.episodes=2", "evaluation.points=1"]
LONG = ["algorithm.rollout_length=2", f"total_steps={6 * 2 * HOST_ENVS}"]
"""Six rounds of fragments that are shorter than any episode of the clockwork."""
register("test/clockwork", Clockwork)


def tiny(*overrides: str) -> Config:
    """Eight environments, and as much as possible of what trainers have to remember."""
    return load_config([*TINY, *overrides])


def steps(rounds: int) -> str:
    """The override that gives `tiny` that many rounds."""
    return f"total_steps={rounds * 8 * 16}"


def clockwork(*overrides: str, rounds: int = 6) -> Config:
    """Six of the tests' own host environments."""
    own = ["env.name=test/clockwork", f"env.num_envs={HOST_ENVS}", "env.normalize_reward=true"]
    return load_config([*COMMON, *own, *SHORT, f"total_steps={rounds * T * HOST_ENVS}", *overrides])


def scalable(*overrides: str, rounds: int = 6) -> Config:
    """Eight actors of two environments each."""
    envs = ACTORS * EACH
    own = ["env=gymnax/cartpole", f"env.num_envs={envs}", f"scaling.maximum={ACTORS}", "algorithm.kl_coefficient=0.2"]
    return load_config([*COMMON, *own, *SHORT, f"total_steps={rounds * T * envs}", *overrides])


def leaves(trainer: Trainer) -> list[np.ndarray]:
    """All of the engine's state."""
    return to_host(trainer.state)


def again(trainer: Trainer) -> Trainer:
    """Another trainer of the same configuration, at its start; it shares the first one's compiled programs."""
    other = Trainer(trainer.config, programs=trainer.programs)
    other.source.evaluator = trainer.source.evaluator  # type: ignore[method-assign]
    return other


def assert_identical(one: Trainer, other: Trainer) -> None:
    """Bit for bit, engine state and timelines."""
    for a, b in zip(leaves(one), leaves(other), strict=True):
        assert a.tobytes() == b.tobytes()
    assert json.dumps(one.metadata()["timelines"]) == json.dumps(other.metadata()["timelines"])


def assert_resumes(whole: Trainer, tmp_path: Path) -> None:
    """A run saved after its third round and taken up by another trainer ends as the uninterrupted one has."""
    first = again(whole)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    first.run(3)
    first.save(checkpoints)
    checkpoints.wait()
    first.close()
    second = again(whole)
    assert second.restore(checkpoints) == 3
    second.run()
    second.close()
    assert_identical(whole, second)
    assert whole.metadata()["scalings"] == second.metadata()["scalings"]
    checkpoints.close()


def known(trainer: Trainer) -> Any:
    """State with the newest policy in the version ring, and without the store's last row, whose data nobody needs.

    The engine writes the newest policy into the ring when it next reads from it.
    """
    state = trainer.state
    kept = jax.tree.map(lambda x: x[:, :-1], state.store._replace(statistics=None))
    state = state._replace(store=kept._replace(statistics=state.store.statistics))
    slots = np.asarray(state.version) % state.ring.shape[1]
    return state._replace(ring=state.ring.at[np.arange(len(slots)), slots].set(state.params))


def assert_close(one: Trainer, other: Trainer) -> None:
    """States are equal up to rounding, timelines to the bit."""
    for (path, a), b in zip(jax.tree.leaves_with_path(known(one)), jax.tree.leaves(known(other)), strict=True):
        if jax.numpy.issubdtype(a.dtype, jax.numpy.floating):
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4, err_msg=jax.tree_util.keystr(path))
        elif jax.numpy.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(jax.random.key_data(a), jax.random.key_data(b))
        else:
            np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))
    assert json.dumps([state["usage"] for state in one.schedule.states]) == json.dumps(
        [state["usage"] for state in other.schedule.states]
    )


def check_population(configs: list[Config]) -> None:
    """Runs of a population are what they are alone, to the bit."""
    population = Population(configs)
    population.run()
    for config, trainer in zip(configs, population.trainers, strict=True):
        alone = Trainer(config)
        alone.run()
        assert_identical(trainer, alone)
    population.close()
