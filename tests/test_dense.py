"""Both forms of dense products are one function, for gradients and for what is made of gradients."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris_jax.agent.networks import ActorCritic, dense
from stellaris_jax.config.sections import NetworkConfig
from stellaris_jax.engine.curvature import hessian_vector_product
from stellaris_jax.envs.base import Box, Discrete

Product = Callable[[jax.Array, jax.Array], jax.Array]


def normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def plain(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return x @ kernel


def error(product: Product) -> Product:
    """A loss, neither linear nor of one sign."""
    return lambda x, kernel: jnp.sum(jnp.sin(product(x, kernel)) * jnp.arange(1.0, kernel.shape[-1] + 1))


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 64, 1), (5, 3, 3), (128, 64, 6), (1000, 17, 16)])
def test_values_and_gradients_are_those_of_a_plain_product(rows: int, inputs: int, outputs: int) -> None:
    x, kernel = normal(rows, inputs, seed=0), normal(inputs, outputs, seed=1)
    found, expected = (
        jax.jit(jax.value_and_grad(error(product), argnums=(0, 1)))(x, kernel)
        for product in (dense.product_of_few, plain)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected)


def test_so_are_gradients_of_several_kernels_at_once() -> None:
    x, kernels = normal(7, 5, seed=0), normal(3, 5, 2, seed=1)
    for over in ((0, 0), (None, 0)):
        rows = np.stack([x, 2 * x, -x]) if over[0] == 0 else x
        found, expected = (
            jax.jit(jax.vmap(jax.grad(error(product), argnums=(0, 1)), over))(rows, kernels)
            for product in (dense.product_of_few, plain)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)


def test_a_hessian_may_be_taken_of_it() -> None:
    """Nitro's curvature differentiates gradients forwards."""
    x, kernel, vector = normal(9, 4, seed=0), normal(12, seed=1), normal(12, seed=2)

    def product_of_hessian(product: Product) -> jax.Array:
        return hessian_vector_product(lambda flat: error(product)(x, flat.reshape(4, 3)), kernel, vector)

    found, expected = (jax.jit(lambda p=p: product_of_hessian(p))() for p in (dense.product_of_few, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_it_has_no_derivative_forwards() -> None:
    """As docs/limits.md has it."""
    x, kernel = normal(9, 4, seed=0), normal(4, 3, seed=1)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda kernel: dense.product_of_few(x, kernel), (kernel,), (kernel,))


@pytest.mark.parametrize(("actions", "transposed"), [(dense.FEW, 2), (dense.FEW + 1, 1)])
def test_the_form_is_that_of_layers_of_few_outputs(actions: int, transposed: int) -> None:
    """The critic's output layer always, the policy's where it has few outputs."""
    network = ActorCritic(Box((3,), (0.0,) * 3, (1.0,) * 3), Discrete(actions), NetworkConfig(hidden=(32, 32)))
    tree = network.unravel(network.init(jax.random.key(0)))

    def loss(tree: dict) -> jax.Array:
        policy, value = network.evaluate(tree, jnp.ones((4, 3))).values()
        return jnp.sum(policy) + jnp.sum(value)

    program = str(jax.make_jaxpr(jax.grad(loss))(tree))
    assert program.count("optimization_barrier") == 2 * transposed
