"""Target networks made of the parameters: Polyak averages, and the policy that a run starts from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from live_runs import left, live, params, replayed
from registries import forgetting
from training import assert_resumes, steps, tiny

from stellaris_jax import ConfigError, Trainer, register
from stellaris_jax.agent.losses import PolicyObjective, PolyakTarget
from stellaris_jax.agent.losses.common import METRICS, LossInputs, Metrics, mean

pytestmark = pytest.mark.usefixtures("shared_programs")
METHOD = ["algorithm.name=towards", "system.versions=64", "system.actors=barrier", "algorithm.kl_coefficient=0"]


@pytest.fixture(autouse=True)
def towards() -> Iterator[None]:
    """Algorithms whose metric `divergence` is KL(target network || policy), and enters their loss."""
    with forgetting("algorithm"):

        class Towards(PolyakTarget, PolicyObjective):
            metrics: ClassVar[Mapping[str, str]] = {**METRICS, "divergence": "KL from the target network, in nats"}

            def objective(self, ratio: jax.Array, inputs: LossInputs) -> jax.Array:
                return ratio * inputs.batch.advantage

            def loss(self, inputs: LossInputs) -> tuple[jax.Array, Metrics]:
                loss, metrics = super().loss(inputs)
                assert inputs.batch.target_policy is not None
                divergence = mean(
                    inputs.distribution.kl(inputs.batch.target_policy, inputs.parameters), inputs.batch.valid
                )
                return loss + divergence, {**metrics, "divergence": jax.lax.stop_gradient(divergence)}

        class Start(Towards):
            target = "reference"

        register.algorithm("towards")(Towards)
        register.algorithm("start")(Start)
        yield


def trained(*overrides: str, rounds: int = 3) -> tuple[Trainer, list[dict[str, Any]]]:
    trainer = Trainer(tiny(*METHOD, steps(rounds), *overrides))
    return trainer, trainer.run()


@pytest.mark.parametrize("system", ["async", "stellaris"])
@pytest.mark.parametrize("actors", ["barrier", "independent"])
def test_a_polyak_average_of_all_versions(system: str, actors: str) -> None:
    overrides = ["algorithm.options.target_rate=0.2", f"system={system}", f"system.actors={actors}"]
    trainer, _ = trained(*overrides, "system.truncation=none", "system.versions=64")
    before = np.asarray(Trainer(tiny(*METHOD, steps(3), *overrides)).state.params)[0]
    state = jax.device_get(trainer.state)
    newest = int(state.version[0])
    assert 8 <= newest < 64
    policies = [before, *(np.asarray(state.ring[0, version]) for version in range(1, newest)), state.params[0]]
    average = before.astype(np.float64)
    for version, policy in enumerate(policies):
        average += 0.2 * (policy - average)
        if 0 < version < newest:
            np.testing.assert_allclose(state.targets.ring[0, version], average, atol=1e-6)
    np.testing.assert_allclose(state.targets.newest[0], average, atol=1e-6)


def test_a_learner_has_the_target_of_its_own_version() -> None:
    """With a rate of 1 each version's target network is that version, however stale its gradients are."""
    _, records = trained("algorithm.options.target_rate=1", "system=async", "system.truncation=none")
    assert max(record["staleness_max"] for record in records) > 0
    assert all(abs(record["divergence"]) < 1e-9 for record in records)
    _, records = trained("algorithm.options.target_rate=0.01", "system=async", "system.truncation=none")
    assert records[-1]["divergence"] > 1e-6


def test_a_rate_of_0_keeps_the_policy_that_the_run_starts_from() -> None:
    still, _ = trained("algorithm.options.target_rate=0")
    start, _ = trained("algorithm.name=start")
    np.testing.assert_array_equal(still.state.params, start.state.params)
    assert start.state.targets is not None and start.state.targets.ring is None


def test_a_restored_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    whole, _ = trained("algorithm.options.target_rate=0.1", "engine.chunk_rounds=3", rounds=6)
    assert_resumes(whole, tmp_path)


@pytest.mark.parametrize("method", [("algorithm.options.target_rate=0.1",), ("algorithm.name=start",)])
def test_the_engine_repeats_a_live_run(method: tuple[str, ...], tmp_path: Path) -> None:
    config = tiny(*METHOD, *method, steps(4), "executor=live", "live.actors=2", "system=async", "system.learners=3",
                  "system.truncation=none", "num_seeds=1")  # fmt: skip
    trainer = live(config)
    records = trainer.run()
    trainer.close()
    assert records[-1]["staleness_max"] > 0
    again = replayed(config, left(trainer, config, tmp_path))
    np.testing.assert_allclose(params(again), params(trainer), atol=1e-5)
    assert records[-1]["divergence"] > 1e-9


def test_an_unknown_kind_is_refused() -> None:
    with forgetting("algorithm"):

        class Odd(PolicyObjective):
            target = "newest"

        register.algorithm("odd")(Odd)
        with pytest.raises(ConfigError, match="target must be one of none, version, polyak, reference"):
            tiny("algorithm.name=odd")
