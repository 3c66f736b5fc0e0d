"""Optimizers of agents: of the whole policy, of parts of it, and of plug-ins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from registries import forgetting
from training import TINY, steps, tiny

from stellaris_jax import ConfigError, Trainer, load_config, register
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.optimizers import SGD, Optimizer, optimizer_of
from stellaris_jax.config.tree import Config

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture
def kinds() -> Iterator[None]:
    """Registry that forgets what a test enters."""
    with forgetting("optimizer"):
        yield


def test_gradient_descent_takes_the_step_of_equation_4() -> None:
    hyper = Hyper.of(Config().replace({"algorithm.max_grad_norm": 0, "algorithm.optimizer": "sgd"}))
    optimizer = optimizer_of(SGD(), hyper, None)  # type: ignore[arg-type]
    gradient = jnp.array([1.0, -2.0])
    updates, _ = optimizer.update(gradient, optimizer.init(gradient), gradient)
    np.testing.assert_allclose(updates, -hyper.learning_rate * gradient)


@pytest.mark.parametrize("overrides", [[], ["system.aggregation=fractional"], ["system.corrections=[less_momentum]"]])
def test_parts_of_a_policy_have_learning_rates_of_their_own(overrides: list[str]) -> None:
    """The critic's parameters do not move at a tiny rate, and the actor's move as far as without it."""
    plain, own = (
        Trainer(tiny(steps(3), *overrides, *rates)) for rates in ([], ["algorithm.learning_rates.critic=1e-20"])
    )
    start = plain.network.unravel(np.asarray(plain.state.params[0]))
    plain.run()
    own.run()
    before, after = (trainer.network.unravel(trainer.state.params[0]) for trainer in (plain, own))
    for name in before:
        leaves = zip(*map(jax.tree.leaves, (start[name], after[name])), strict=True)
        changed = [not np.allclose(x, y, rtol=0.0, atol=1e-9) for x, y in leaves]
        assert any(changed) == (name != "critic"), name
    first, alone, beside = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree["actor"])]) for tree in (start, before, after)
    )
    assert np.linalg.norm(beside - first) == pytest.approx(np.linalg.norm(alone - first), rel=0.05)
    assert Trainer(tiny(steps(1), "algorithm.learning_rates.critic=3e-3")).spec.parts == ("critic",)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("algorithm.learning_rates.critics=1e-3", "algorithm.learning_rates.critics belongs to no part of the policy"),
        ("algorithm.learning_rates.critic=0", "algorithm.learning_rates.critic must be greater than 0"),
        ("algorithm.learning_rates.critic=fast", "algorithm.learning_rates.critic must be a number, not 'fast'"),
        ("algorithm.learning_rates.critic=1e-50", "must be greater than 0, not 1e-50: 0 in 32 bits"),
        ("algorithm.learning_rates.critic=1e30", "times algorithm.learning_rate=0.001"),
    ],
)
def test_learning_rates_of_parts_are_checked(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Trainer(tiny(override))


@pytest.mark.usefixtures("kinds")
def test_an_optimizer_of_matrices_sees_them() -> None:
    shapes: list[Any] = []

    @register.optimizer("test/matrices")
    class Matrices(Optimizer):
        elementwise = False

        def transformation(self, hyper: Hyper) -> optax.GradientTransformation:
            def update(gradient: Any, state: Any, params: Any = None) -> Any:
                shapes.append(jax.tree.map(jnp.shape, gradient))
                return jax.tree.map(lambda g: -0.01 * jnp.sign(g), gradient), state

            return optax.GradientTransformation(lambda params: (), update)  # type: ignore[arg-type]

    trainer = Trainer(tiny("algorithm.optimizer=test/matrices", steps(2)))
    before = np.asarray(trainer.state.params)
    trainer.run()
    assert shapes[0]["actor"]["Dense_0"]["kernel"] == (4, 8)
    assert not np.array_equal(before, trainer.state.params)


# Optimizers of parts of the policy -----------------------------------------------------------------------------------


def updated(*overrides: str) -> dict[str, Any]:
    """Parameters after two rounds, as a tree of parts."""
    trainer = Trainer(tiny(steps(2), *overrides, "network.shared=false", "algorithm.kl_coefficient=0"))
    trainer.run()
    tree = trainer.network.unravel(trainer.state.params[0])
    return {name: np.concatenate([np.ravel(x) for x in jax.tree.leaves(part)]) for name, part in tree.items()}


@pytest.mark.parametrize("aggregation", ["factored", "sequential"])
def test_parts_have_the_steps_of_their_own_optimizers(aggregation: str) -> None:
    """Actor and critic share nothing here but the norm of the gradient: each is as under its optimizer alone."""
    common = [f"system.aggregation={aggregation}", "algorithm.max_grad_norm=0", "algorithm.learning_rate=1e-2"]
    common += ["system.actors=barrier", "algorithm.value_coefficient=0.5"]
    first = [*common, "algorithm.epochs=1", "algorithm.minibatches=1", "system.learners=1", "total_steps=128"]
    both = updated(*first, "algorithm.optimizers={critic: {name: sgd, momentum: 0.5}}")
    adam = updated(*first)
    sgd = updated(*first, "algorithm.optimizer=sgd", "algorithm.optimizer_options.momentum=0.5")
    np.testing.assert_array_equal(both["actor"], adam["actor"])
    assert (both["critic"] != adam["critic"]).any() and (sgd["actor"] != adam["actor"]).any()
    np.testing.assert_array_equal(both["critic"], sgd["critic"])


def test_an_optimizer_of_all_parts_is_the_optimizer() -> None:
    parts = "algorithm.optimizers={critic: adam, actor: adam}"
    for name, part in updated(parts).items():
        np.testing.assert_array_equal(part, updated()[name])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.optimizers={critic: sdg}"],
            "algorithm.optimizers.critic='sdg' is not registered; accepted: adam, sgd, rmsprop",
        ),
        (["algorithm.optimizers={critic: 3}"], "algorithm.optimizers.critic=3 must be a name, or a mapping with"),
        (
            ["algorithm.optimizers={critic: {name: sgd, mass: 1}}"],
            "critic.mass is no option of sgd; accepted: momentum.",
        ),
        (["algorithm.optimizers={critic: {name: sgd, momentum: 2}}"], "algorithm.optimizers.critic.momentum must be"),
        (["algorithm.optimizers={crtic: sgd}"], "algorithm.optimizers.crtic belongs to no part of the policy"),
        (
            ["algorithm.optimizers={critic: sgd}", "system.aggregation=fractional"],
            "system.aggregation=fractional is not possible with algorithm.optimizers.critic",
        ),
    ],
)
def test_optimizers_of_parts_that_cannot_be(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Trainer(tiny(*overrides))
    assert message in str(caught.value)


def test_momentum_that_varies_is_corrected_where_it_is() -> None:
    """Adam's bias correction for a varying beta_1 is Adam's: a part under SGD takes its steps as they are."""
    trainer = Trainer(tiny("algorithm.optimizers={critic: sgd}", "network.shared=false", "algorithm.max_grad_norm=0"))
    network, spec, hyper = trainer.network, trainer.spec, Hyper.of(trainer.config)
    gradient = network.ravel(jax.tree.map(jnp.ones_like, network.unravel(network.init(jax.random.key(0)))))
    state, steps_of = None, []
    for momentum in (0.9, 0.5, 0.1):
        own = hyper._replace(adam_b1=jnp.float32(momentum))
        optimizer = optimizer_of(spec.optimizer, own, network, "factored", True, spec.part_optimizers)
        state = optimizer.init(gradient) if state is None else state
        updates, state = optimizer.update(gradient, state, gradient)
        tree = network.unravel(updates)
        steps_of.append([np.unique(np.round(jax.tree.leaves(tree[name])[0], 7)) for name in ("actor", "critic")])
    rate = np.float32(hyper.learning_rate)
    for actor, critic in steps_of:  # of equal gradients every step of both is the learning rate
        np.testing.assert_allclose(actor, -rate, rtol=1e-3)
        np.testing.assert_allclose(critic, -rate, rtol=1e-6)


def test_momentum_is_lowered_where_a_part_has_it() -> None:
    lowered = ["system.corrections=[less_momentum]", "network.shared=false"]
    load_config([*TINY, *lowered, "algorithm.optimizer=sgd", "algorithm.optimizers={critic: adam}"])
    with pytest.raises(ConfigError, match="lowers algorithm"):
        load_config([*TINY, *lowered, "algorithm.optimizer=sgd", "algorithm.optimizers={critic: rmsprop}"])


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("key", ["algorithm.optimizer=test/bad", "algorithm.optimizers={critic: test/bad}"])
def test_an_optimizer_of_a_plugin_is_checked_wherever_it_stands(key: str) -> None:
    @register.optimizer("test/bad")
    class Bad(Optimizer):
        def transformation(self, hyper: Hyper) -> optax.GradientTransformation:
            return optax.GradientTransformation(lambda params: (), lambda *_: (jnp.zeros(3), ()))

        @classmethod
        def conditions(cls, config: Config, section: str) -> Any:
            yield from super().conditions(config, section)
            yield config.algorithm.anneal, f"algorithm.optimizer={config.algorithm.optimizer} needs anneal"

    named = "algorithm.optimizer=test/bad" if "optimizer=" in key else "algorithm.optimizers.critic=test/bad"
    with pytest.raises(ConfigError, match=f"{named} needs anneal"):
        load_config([*TINY, "network.shared=false", key])
    with pytest.raises(ConfigError, match=rf"{named} \(.*a step"):
        Trainer(tiny("network.shared=false", "algorithm.anneal=true", key))
