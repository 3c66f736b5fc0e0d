"""Convolutional torsos against NumPy, the two forms of convolution and pooling, shared networks, initialisation."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris_jax.agent.networks import ActorCritic, convolution
from stellaris_jax.agent.networks.actor_critic import LOG_STD_RANGE
from stellaris_jax.agent.networks.torsos import Convolutions
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.config.compose import choices, compose_config
from stellaris_jax.config.sections import NetworkConfig
from stellaris_jax.config.tree import knobs
from stellaris_jax.envs.base import Box, Discrete, Space

TORSOS = [torso for torso in knobs()["network.torso"].names if torso != "mlp"]
SIDES = {"rllib_cnn": 81, "nature_cnn": 36, "impala_cnn": 1, "minatar_cnn": 3}
JOINTS = Box((3,), (-1.0,) * 3, (1.0,) * 3)


def box(*shape: int, dtype: str = "float32") -> Box:
    size = int(np.prod(shape))
    return Box(shape, (0.0,) * size, (1.0,) * size, dtype)


def build(observation: Box, action: Space, scale: float = 0.1, **config: Any) -> tuple[ActorCritic, dict[str, Any]]:
    """A network and random parameters for it, biases included."""
    network = ActorCritic(observation, action, NetworkConfig(**config))
    flat = jax.eval_shape(network.init, jax.random.key(0))
    return network, jax.jit(network.unravel)(scale * images(*flat.shape))


def initial(observation: Box, action: Space, **config: Any) -> dict[str, Any]:
    network = ActorCritic(observation, action, NetworkConfig(**config))
    return jax.jit(lambda key: network.unravel(network.init(key)))(jax.random.key(0))


def images(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# Architectures


@pytest.mark.parametrize(
    ("choice", "observation", "action", "size"),
    [
        # DQN has 1,687,206 parameters for six actions; a value output has 513.
        ("nature_cnn", box(84, 84, 4), Discrete(6), 1_687_206 + 513),
        # The published count of IMPALA's network for Procgen, policy and value.
        ("impala_cnn", box(64, 64, 3), Discrete(15), 626_256),
        ("minatar_cnn", box(10, 10, 4), Discrete(6), (3 * 3 * 4 + 1) * 16 + (8 * 8 * 16 + 1) * 128 + 129 * 7),
        (
            "rllib_cnn",
            box(84, 84, 4),
            Discrete(6),
            2 * ((8 * 8 * 4 + 1) * 16 + (4 * 4 * 16 + 1) * 32 + (11 * 11 * 32 + 1) * 256) + 257 * 7,
        ),
        ("rllib_mlp", box(11), JOINTS, 2 * (12 * 256 + 257 * 256) + 257 * 7),
        ("mlp", box(11), JOINTS, 2 * (12 * 64 + 65 * 64) + 65 * 4 + 3),
    ],
)
def test_parameters_of_every_network_file(choice: str, observation: Box, action: Space, size: int) -> None:
    network = ActorCritic(observation, action, compose_config([f"network={choice}"]).network)
    assert network.size == size
    flat = jax.eval_shape(network.init, jax.random.key(0))
    outputs = jax.eval_shape(
        lambda flat, obs: network.evaluate(network.unravel(flat), obs), flat, jnp.zeros((2, *observation.shape))
    )
    assert [x.shape for x in outputs.values()] == [(2, network.distribution.size), (2,)]


def test_every_network_file_is_tested() -> None:
    (mark,) = test_parameters_of_every_network_file.pytestmark  # type: ignore[attr-defined]
    with_memory = {"gru", "lstm"}  # in tests/test_recurrent.py
    assert {row[0] for row in mark.args[1]} == set(choices("network")) - with_memory


def reference_windows(x: np.ndarray, size: int, stride: int, same: bool, fill: float) -> np.ndarray:
    """Windows `[B, H', W', C, size, size]`; SAME padding puts the odd pixel behind."""
    for axis in (1, 2) if same else ():
        missing = max(-(-x.shape[axis] // stride) * stride - stride + size - x.shape[axis], 0)
        edges = [(0, 0)] * 4
        edges[axis] = (missing // 2, missing - missing // 2)
        x = np.pad(x, edges, constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))[:, ::stride, ::stride]


def reference_conv(x: np.ndarray, layer: dict[str, Any], stride: int = 1, same: bool = True) -> np.ndarray:
    kernel = np.asarray(layer["kernel"], np.float64)
    windows = reference_windows(x, kernel.shape[0], stride, same, 0.0)
    return np.tensordot(windows, kernel, [(3, 4, 5), (2, 0, 1)]) + np.asarray(layer["bias"])


def reference_torso(name: str, x: np.ndarray, tree: dict[str, Any]) -> np.ndarray:
    layers = iter(tree[f"Conv_{i}"] for i in range(len(tree)))
    strides = {"rllib_cnn": [(4, True), (2, True), (1, False)], "minatar_cnn": [(1, False)]}
    if name == "impala_cnn":
        for _ in range(3):
            x = reference_windows(reference_conv(x, next(layers)), 3, 2, True, -np.inf).max((-1, -2))
            for _ in range(2):
                inner = reference_conv(np.maximum(x, 0.0), next(layers))
                x = x + reference_conv(np.maximum(inner, 0.0), next(layers))
        return np.maximum(x, 0.0)
    for stride, same in strides.get(name, [(4, False), (2, False), (1, False)]):
        x = np.maximum(reference_conv(x, next(layers), stride, same), 0.0)
    return x


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("torso", "observation"),
    [
        ("rllib_cnn", box(84, 84, 1, dtype="uint8")),
        ("nature_cnn", box(44, 40, 3, dtype="uint8")),
        ("impala_cnn", box(21, 16, 3, dtype="uint8")),
        ("minatar_cnn", box(10, 10, 4)),
    ],
    ids=TORSOS,
)
def test_forward_pass_against_numpy(torso: str, observation: Box, shared: bool) -> None:
    network, tree = build(observation, Discrete(3), torso=torso, hidden=[8], activation="tanh", shared=shared)
    x: np.ndarray = np.random.default_rng(1).integers(0, 256, (2, *observation.shape), dtype=np.uint8)
    if observation.dtype == "float32":
        x = (x > 127).astype(np.float32)
    outputs = jax.jit(network.evaluate)(tree, x)
    for part, ours in (("actor", outputs["distribution"]), ("critic", outputs["value"][:, None])):
        body = tree["body" if shared else part]
        (features,) = (layers for name, layers in body.items() if not name.startswith("Dense"))
        y = reference_torso(torso, x / 255.0 if x.dtype == np.uint8 else x, features).reshape(2, -1)
        y = np.tanh(y @ body["Dense_0"]["kernel"] + body["Dense_0"]["bias"])
        last = tree[part]["Dense_0" if shared else "Dense_1"]
        np.testing.assert_allclose(ours, y @ last["kernel"] + last["bias"], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(jax.jit(network.policy)(tree, x), outputs["distribution"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jax.jit(network.value)(tree, x), outputs["value"], rtol=1e-4, atol=1e-5)


# Two forms of one function

STACKS = [torso for _, torso in register.torso.items() if isinstance(torso, Convolutions)]
SHAPES = {(layer.kernel, layer.stride, layer.padding): (21, 25) for stack in STACKS for layer in stack.layers}
SHAPES |= {
    (3, 1, "SAME"): (11, 6),
    (11, 1, "VALID"): (11, 11),  # a single patch
    (8, 4, "VALID"): (22, 15),  # a rest that no patch reaches
    (3, 2, "SAME"): (7, 10),  # kernels that are no multiple of the stride
    (5, 3, "VALID"): (12, 9),
    (1, 2, "SAME"): (5, 6),  # a stride beyond the kernel
}


def pulled(function: Any, *x: np.ndarray) -> Any:
    """A function's output, and the gradients of `x` for random errors in it."""
    error = images(*jax.eval_shape(function, *x).shape, seed=2)

    @jax.jit
    def both(*x: jax.Array) -> Any:
        y, pull = jax.vjp(function, *x)
        return y, pull(error)

    return both(*x)


@pytest.mark.parametrize("kind", SHAPES, ids="{0[0]}-{0[1]}-{0[2]}".format)
@pytest.mark.parametrize("features", [2, 20], ids=["images are larger", "errors are larger"])
def test_convolution_by_blocks_is_that_of_the_library(kind: tuple[int, int, str], features: int) -> None:
    """Values and gradients, of images and kernels; more images than are laid out at a time."""
    size, stride, padding = kind
    x, kernel = images(convolution.IMAGES + 2, *SHAPES[kind], 3), images(size, size, 3, features, seed=1)
    both = (convolution.convolve_library, convolution.convolve_blocks)
    forms = [partial(form, stride=stride, padding=padding) for form in both]
    (expected, gradients), (ours, our_gradients) = (pulled(f, x, kernel) for f in forms)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)
    for gradient, our_gradient in zip(gradients, our_gradients, strict=True):
        np.testing.assert_allclose(our_gradient, gradient, rtol=1e-4, atol=1e-3)


def test_convolutions_of_several_networks_at_once() -> None:
    """Mapped over seeds, images and kernels or kernels alone: each is as by itself."""
    x, kernels = images(2, 3, 9, 8, 3), images(2, 4, 4, 3, 5, seed=1)

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(convolution.convolve_blocks(x, kernel, 2, "SAME")))

    both = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    for axes, own in (((0, 0), x), ((None, 0), [x[0], x[0]])):
        mapped = jax.jit(jax.vmap(both, in_axes=axes))(x if axes[0] == 0 else x[0], kernels)
        for i in range(2):
            expected = both(own[i], kernels[i])
            ours = jax.tree.map(lambda z: z[i], mapped)  # noqa: B023
            jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), ours, expected)


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (11, 6), (84, 21)])
@pytest.mark.parametrize(("size", "stride"), [(3, 2), (2, 2), (3, 1)])
def test_pooling_by_slices_is_that_of_the_library(shape: tuple[int, int], size: int, stride: int) -> None:
    """Values and gradients; images of few colours have windows with several greatest pixels."""
    x = np.random.default_rng(0).integers(-2, 1, (2, *shape, 3)).astype(np.float32)
    forms = [convolution.max_pool_library, convolution.max_pool_slices]
    (expected, (gradient,)), (ours, (our_gradient,)) = (pulled(lambda x, f=f: f(x, size, stride), x) for f in forms)
    np.testing.assert_array_equal(ours, expected)
    np.testing.assert_allclose(our_gradient, gradient, rtol=1e-5, atol=1e-6)


SLOW_ON_CPU = ("reduce_window", "select_and_scatter")
FAST_ON_CPU = ("window_strides=(1, 1)", "lhs_dilation=(1, 1)", "rhs_dilation=(1, 1)", "feature_group_count=1")


@pytest.mark.parametrize("torso", TORSOS)
def test_processor_decides_the_form_alone(torso: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPU every convolution of gradients is one its fast kernels take; parameters and results are equal."""
    shape = (84, 84, 1) if torso == "rllib_cnn" else (40, 40, 1)
    obs, programs, parameters, values = jnp.asarray(images(2, *shape)), {}, {}, {}
    for processor in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda processor=processor: processor)
        network, tree = build(box(*shape), Discrete(2), torso=torso)
        of_seeds = jax.vmap(jax.grad(lambda tree: network.value(tree, obs)[0]))  # noqa: B023
        programs[processor] = str(jax.make_jaxpr(of_seeds)(jax.tree.map(lambda x: jnp.stack([x, x]), tree)))
        parameters[processor], values[processor] = tree, jax.jit(network.value)(tree, obs)
    assert not any(word in programs["cpu"] for word in SLOW_ON_CPU)
    convolutions = {
        processor: re.findall(r"conv_general_dilated\[(.*?)\n\s*\]", program, re.DOTALL)
        for processor, program in programs.items()
    }
    assert all(convolutions.values())
    assert all(f"{setting}\n" in f"{one}\n" for one in convolutions["cpu"] for setting in FAST_ON_CPU)
    jax.tree.map(np.testing.assert_array_equal, parameters["cpu"], parameters["gpu"])
    np.testing.assert_allclose(values["cpu"], values["gpu"], rtol=1e-3, atol=1e-4)


# Shared and separate critics


@pytest.mark.parametrize("action", [Discrete(3), JOINTS], ids=["discrete", "box"])
def test_shared_critic(action: Space) -> None:
    config = {"torso": "minatar_cnn", "hidden": [8], "activation": "relu"}
    network, tree = build(box(5, 5, 2), action, shared=True, **config)
    separate, _ = build(box(5, 5, 2), action, **config)
    body = (3 * 3 * 2 + 1) * 16 + (3 * 3 * 16 + 1) * 8
    assert separate.size - network.size == body
    obs = jnp.asarray(images(4, 5, 5, 2))
    of_value = jax.jit(jax.grad(lambda tree: jnp.sum(network.value(tree, obs))))(tree)
    of_policy = jax.jit(jax.grad(lambda tree: jnp.sum(jnp.square(network.policy(tree, obs)))))(tree)
    for gradient, own, other in ((of_value, "critic", "actor"), (of_policy, "actor", "critic")):
        assert all(np.any(leaf) for leaf in jax.tree.leaves((gradient["body"], gradient[own])))
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient[other]))


def test_shared_body_is_differentiated_once_for_both() -> None:
    """Matrix products of a gradient: three per layer, for the first layer two."""
    network, tree = build(box(4), Discrete(3), hidden=[8, 8], shared=True)
    obs = jnp.asarray(images(5, 4))

    def products(outputs: Any) -> int:
        def loss(tree: dict) -> jax.Array:
            policy, value = outputs(tree)
            return jnp.sum(jnp.square(policy)) + jnp.sum(jnp.square(value))

        return str(jax.make_jaxpr(jax.grad(loss))(tree)).count("dot_general")

    assert products(lambda tree: network.evaluate(tree, obs).values()) == 2 + 3 + 3 + 3
    assert products(lambda tree: (network.policy(tree, obs), network.value(tree, obs))) == 2 * (2 + 3) + 3 + 3


# Initialisation and log-deviations


def matrices(tree: dict[str, Any]) -> dict[str, np.ndarray]:
    """Every kernel as a matrix, a column per output; biases must be 0."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if path[-1].key == "bias":
            assert not np.any(leaf)
        elif path[-1].key == "kernel":
            found["/".join(entry.key for entry in path[:-1])] = np.reshape(leaf, (-1, leaf.shape[-1]))
    return found


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("torso", ["mlp", "minatar_cnn"])
def test_initialisations(torso: str, shared: bool) -> None:
    last = "Dense_0" if shared else "Dense_2"
    for init, inner, outputs in (("normc", 1.0, (0.01, 0.01)), ("orthogonal", 2**0.5, (0.01, 1.0))):
        config = {"torso": torso, "hidden": [16, 8], "init": init, "shared": shared}
        found = matrices(initial(box(6, 6, 2), Discrete(3), **config))
        convolutions = 0 if torso == "mlp" else 1
        assert len(found) == (convolutions + 2) * (1 if shared else 2) + 2
        gains = {f"actor/{last}": outputs[0], f"critic/{last}": outputs[1]}
        for path, matrix in found.items():
            scale = np.linalg.norm(matrix, axis=0) if init == "normc" else np.linalg.svd(matrix, compute_uv=False)
            np.testing.assert_allclose(scale, gains.get(path, inner), rtol=1e-4, err_msg=path)


def test_normc_is_a_normal_matrix_scaled() -> None:
    """Directions are uniform: of n weights each has mean 0 and variance 1/n."""
    kernel = np.asarray(initial(box(100), Discrete(2), hidden=[400], init="normc")["actor"]["Dense_0"]["kernel"])
    assert abs(kernel.mean()) < 4 * 0.1 / kernel.size**0.5
    assert abs(np.corrcoef(kernel[0], kernel[1])[0, 1]) < 0.2
    assert np.var(kernel) == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize("shared", [False, True])
def test_log_deviations_that_depend_on_the_state(shared: bool) -> None:
    config: dict[str, Any] = {"hidden": [8], "log_std": "state", "shared": shared}
    network, tree = build(box(4), JOINTS, **config)
    free, _ = build(box(4), JOINTS, hidden=[8], log_std="free", shared=shared)
    assert "log_std" not in tree and network.size == free.size - 3 + 9 * 3
    obs = images(50, 4)
    small = np.split(network.policy(initial(box(4), JOINTS, **config), obs), 2, axis=1)[1]
    assert small.std(axis=0).min() > 0.0 and np.abs(small).max() < 0.1  # deviations of about 1 at first
    large = jax.tree.map(lambda x: 50.0 * x, tree)
    mean, log_std = np.split(network.policy(large, obs), 2, axis=1)
    assert (log_std.min(), log_std.max()) == LOG_STD_RANGE
    assert mean.max() > LOG_STD_RANGE[1]


def test_log_deviations_mean_nothing_to_discrete_actions() -> None:
    sizes = {build(box(4), Discrete(3), hidden=[8], log_std=log_std)[0].size for log_std in ("free", "state")}
    assert sizes == {2 * 5 * 8 + 9 * 4}


# Spaces a torso cannot read


def test_smallest_images() -> None:
    assert {torso: register.torso[torso].smallest_image for torso in TORSOS} == SIDES


@pytest.mark.parametrize("torso", TORSOS)
def test_smallest_image_is_read_and_smaller_ones_are_refused(torso: str) -> None:
    side = SIDES[torso]
    network, _ = build(box(side, side, 1), Discrete(2), torso=torso, hidden=[4])
    assert network.size > 0
    refused = [(8,), (side, side), *([(side, side - 1, 1), (side - 1, side, 1)] if side > 1 else [])]
    for shape in refused:
        with pytest.raises(ConfigError) as caught:
            build(box(*shape), Discrete(2), torso=torso)
        message = str(caught.value)
        for part in (f"network.torso={torso}", f"{side}x{side}", str(list(shape)), "mlp"):
            assert part in message


def test_mlp_reads_images() -> None:
    network, tree = build(box(4, 5, 2, dtype="uint8"), Discrete(3), hidden=[8])
    obs = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 2), dtype=np.uint8)
    np.testing.assert_allclose(network.value(tree, obs), network.value(tree, obs / np.float32(255.0)), rtol=1e-5)
