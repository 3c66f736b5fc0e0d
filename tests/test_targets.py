"""Target networks made of the parameters: Polyak averages, and the policy that a run starts from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
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
    for version, params in enumerate(policies):
        average += 0.2 * (params - average)
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


def test_live_runs_are_refused() -> None:
    with pytest.raises(ConfigError, match="accepted: executor=simulated"):
        Trainer(tiny(*METHOD, steps(1), "executor=live", "live.pool=threads", "num_seeds=1"))


def test_an_unknown_kind_is_refused() -> None:
    with forgetting("algorithm"):

        class Odd(PolicyObjective):
            target = "newest"

        register.algorithm("odd")(Odd)
        with pytest.raises(ConfigError, match="target must be one of none, version, polyak, reference"):
            tiny("algorithm.name=odd")
