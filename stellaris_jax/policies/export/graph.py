"""Graph of a policy in ONNX operators: normalizer, torso, dense layers and outputs.

Images are `[B, C, H, W]` in ONNX and `[B, H, W, C]` in JAX. They are transposed before a torso and back after it, so
that dense layers receive their inputs in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from stellaris_jax.agent.networks import squashed_gaussian
from stellaris_jax.agent.networks.actor_critic import LOG_STD_RANGE, ActorCritic
from stellaris_jax.agent.networks.convolution import extent
from stellaris_jax.agent.networks.normalizer import CLIP, EPSILON
from stellaris_jax.agent.networks.policy_network import PolicyNetwork
from stellaris_jax.agent.networks.q_network import NEVER, QNetwork
from stellaris_jax.agent.networks.squashed_gaussian import SquashedGaussianTwinQ
from stellaris_jax.agent.networks.torsos import IMPALA_FEATURES, Impala, Layer, Stack, torso
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.envs.base import Box, Discrete, MultiDiscrete
from stellaris_jax.policies.policy import Policy

Tree = dict[str, Any]
Input = str | np.ndarray | np.floating
Writer = Callable[["Graph", Policy, Tree, str], None]
ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu"}
LARGEST = np.finfo(np.float32).max


class Graph:
    """Builder of an ONNX graph: collects nodes and constants."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def __call__(self, operator: str, *inputs: Input, name: str = "", **attributes: Any) -> str:
        """Add a node; returns its name, which is also the name of its output."""
        name = name or f"{operator.lower()}_{len(self.nodes)}"
        given = [x if isinstance(x, str) else self._constant(x) for x in inputs]
        self.nodes.append(helper.make_node(operator, given, [name], name, **attributes))
        return name

    def split(self, x: str, sizes: list[int]) -> list[str]:
        """Split the columns of a matrix into parts of the given sizes."""
        names = [f"split_{len(self.nodes)}_{i}" for i in range(len(sizes))]
        self.nodes.append(helper.make_node("Split", [x, self._constant(np.array(sizes))], names, axis=-1))
        return names

    def _constant(self, array: np.ndarray | np.floating) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name


def policy_graph(graph: Graph, policy: Policy) -> None:
    """Add a policy, from `observation` to `action`, `distribution` and `value`.

    Raises ConfigError for a plug-in's policy or torso.
    """
    network = policy.network
    writer = WRITERS.get(type(network))
    if writer is None:
        known = ", ".join(name for name, kind in register.policy.items() if kind in WRITERS)
        raise ConfigError(
            f"--to onnx knows the policies {known}, not network.policy={network.config.policy}; stablehlo and flax "
            "take any."
        )
    tree = jax.tree.map(np.asarray, jax.device_get(network.unravel(policy.params)))
    writer(graph, policy, tree, _observed(graph, policy))


def _actor_critic(graph: Graph, policy: Policy, tree: Tree, features: str) -> None:
    network: Any = policy.network
    if "body" in tree:
        features = _mlp(graph, network, tree["body"], features, linear=False)
    outputs = _mlp(graph, network, tree["actor"], features)
    if network.free_log_std:
        shape = graph("Shape", outputs)
        outputs = graph("Concat", outputs, graph("Expand", tree["log_std"], shape), axis=-1)
    elif isinstance(network.action_space, Box):
        outputs = _clipped(graph, outputs, network.action_space.size, LOG_STD_RANGE)
    _action(graph, policy, graph("Identity", outputs, name="distribution"))
    graph("Squeeze", _mlp(graph, network, tree["critic"], features), np.array([1]), name="value")


def _clipped(graph: Graph, outputs: str, size: int, bounds: tuple[float, float]) -> str:
    """Means and log-deviations, these within bounds."""
    mean, log_std = graph.split(outputs, [size] * 2)
    return graph("Concat", mean, graph("Clip", log_std, *map(np.float32, bounds)), axis=-1)


def _q_network(graph: Graph, policy: Policy, tree: Tree, x: str) -> None:
    """Add action values and the policy of the largest (`QNetwork`)."""
    network: Any = policy.network
    if "q" in tree:
        values = _mlp(graph, network, tree["q"], x)
    else:
        features = _mlp(graph, network, tree["body"], x, linear=False)
        advantage, number = _mlp(graph, network, tree["advantage"], features), network.action_space.n
        centred = np.eye(number, dtype=np.float32) - np.float32(1 / number)
        centred_advantage = graph("Gemm", advantage, centred, np.zeros(number, np.float32))
        values = graph("Add", _mlp(graph, network, tree["value"], features), centred_advantage)
    behind = graph("Sub", values, graph("ReduceMax", values, axes=[-1], keepdims=1))
    # 0 for the largest value, and NEVER for all others, whatever their difference.
    logits = graph("Clip", graph("Mul", behind, LARGEST), np.float32(NEVER), np.float32(0.0))
    _action(graph, policy, graph("Identity", logits, name="distribution"))
    _no_value(graph, values, network.action_space.n)


def _squashed(graph: Graph, policy: Policy, tree: Tree, x: str) -> None:
    """Add the policy of SAC (`SquashedGaussianTwinQ`), whose most likely action lies within the bounds."""
    network: Any = policy.network
    size, distribution = network.action_space.size, network.distribution
    outputs = _clipped(graph, _mlp(graph, network, tree["actor"], x), size, squashed_gaussian.LOG_STD_RANGE)
    mean, _ = graph.split(graph("Identity", outputs, name="distribution"), [size] * 2)
    scaled = graph("Add", graph("Tanh", mean), np.float32(1.0))
    _bounded(graph, policy, graph("Add", graph("Mul", scaled, distribution.span), distribution.low))
    _no_value(graph, mean, size)


def _no_value(graph: Graph, x: str, size: int) -> None:
    """Add the output `value` of a policy that has none: NaN."""
    nothing = graph("Gemm", x, np.zeros((size, 1), np.float32), np.full(1, np.nan, np.float32))
    graph("Squeeze", nothing, np.array([1]), name="value")


def _observed(graph: Graph, policy: Policy) -> str:
    """Observations as the network reads them (`engine.rollout.view`): normalized, or bytes scaled by their unit."""
    x, bytes_ = "observation", policy.network.observation_space.dtype == "uint8"
    if bytes_:
        x = graph("Cast", x, to=TensorProto.FLOAT)
    if policy.config.env.normalize_observation:
        statistics = policy.normalizers.obs
        scale = 1.0 / np.sqrt(np.asarray(statistics.variance) + np.float32(EPSILON))
        x = graph("Mul", graph("Sub", x, np.asarray(statistics.mean)), scale)
        return graph("Clip", x, np.float32(-CLIP), np.float32(CLIP))
    return graph("Div", x, np.float32(policy.network.observation_space.unit)) if bytes_ else x


def _mlp(graph: Graph, network: PolicyNetwork, tree: Tree, x: str, linear: bool = True) -> str:
    """Add torso and dense layers (`actor_critic.MLP`); with `linear` the last layer has no activation."""
    for name in tree:
        if not name.startswith("Dense_"):
            x = graph("Transpose", x, perm=[0, 3, 1, 2])
            x = _torso(graph, network, tree[name], x)
            x = graph("Transpose", x, perm=[0, 2, 3, 1])
    x = graph("Flatten", x)
    layers = [tree[f"Dense_{i}"] for i in range(sum(name.startswith("Dense_") for name in tree))]
    for i, layer in enumerate(layers):
        x = graph("Gemm", x, layer["kernel"], layer["bias"])
        if i + 1 < len(layers) or not linear:
            x = graph(ACTIVATIONS[network.config.activation], x)
    return x


def _torso(graph: Graph, network: PolicyNetwork, tree: Tree, x: str) -> str:
    """Add convolutions (`agent.networks.torsos`) on images `[B, C, H, W]`."""
    name = network.config.torso
    sides: Sequence[int] = network.observation_space.shape[:2]
    module = torso(name, nn.initializers.zeros)
    convolutions = (tree[f"Conv_{i}"] for i in range(len(tree)))
    if isinstance(module, Stack):
        for layer in module.layers:
            x, sides = _conv(graph, layer, next(convolutions), x, sides)
            x = graph("Relu", x)
        return x
    if not isinstance(module, Impala):
        raise ConfigError(f"--to onnx knows our own torsos, not network.torso={name}; stablehlo and flax take any.")
    for features in IMPALA_FEATURES:
        layer = Layer(features, 3, 1, "SAME")
        x, sides = _conv(graph, layer, next(convolutions), x, sides)
        pads, sides = _windows(sides, 3, 2, "SAME")
        x = graph("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=pads)
        for _ in range(2):
            inner, _ = _conv(graph, layer, next(convolutions), graph("Relu", x), sides)
            outer, _ = _conv(graph, layer, next(convolutions), graph("Relu", inner), sides)
            x = graph("Add", x, outer)
    return graph("Relu", x)


def _conv(graph: Graph, layer: Layer, weights: Tree, x: str, sides: Sequence[int]) -> tuple[str, Sequence[int]]:
    """Add a convolution of images with the given sides; returns its output and the output's sides."""
    pads, count = _windows(sides, layer.kernel, layer.stride, layer.padding)
    kernel = weights["kernel"].transpose(3, 2, 0, 1)
    shape, strides = [layer.kernel] * 2, [layer.stride] * 2
    return graph("Conv", x, kernel, weights["bias"], kernel_shape=shape, strides=strides, pads=pads), count


def _windows(sides: Sequence[int], size: int, stride: int, padding: str) -> tuple[list[int], list[int]]:
    """Padding `[top, left, bottom, right]`, and number of windows along each side."""
    counts, before = zip(*(extent(side, size, stride, padding) for side in sides), strict=True)
    spans = [max((count - 1) * stride + size - side, 0) for side, count in zip(sides, counts, strict=True)]
    after = [span - first for span, first in zip(spans, before, strict=True)]
    return [*before, *(after if padding == "SAME" else [0, 0])], list(counts)


def _action(graph: Graph, policy: Policy, distribution: str) -> None:
    """Add the most likely action, within the bounds of the environment's action space (`Policy.outputs`)."""
    space = policy.network.action_space
    if isinstance(space, Box):
        mean, _ = graph.split(distribution, [space.size] * 2)
        _bounded(graph, policy, mean)
        return
    if isinstance(space, Discrete):
        chosen = graph("ArgMax", distribution, axis=-1, keepdims=0)
    elif isinstance(space, MultiDiscrete):
        parts = [graph("ArgMax", part, axis=-1, keepdims=1) for part in graph.split(distribution, list(space.nvec))]
        chosen = graph("Concat", *parts, axis=-1)
    else:
        chosen = graph("Greater", distribution, np.float32(0.0))
    graph("Cast", chosen, name="action", to=TensorProto.INT32)


def _bounded(graph: Graph, policy: Policy, mean: str) -> None:
    """Add the output `action`: real numbers within the bounds of the environment's action space."""
    space: Any = policy.network.action_space
    low, high = (np.array(bound, np.float32) for bound in (space.low, space.high))
    if policy.own is not None:
        unit = graph("Max", graph("Min", mean, high), low)
        low, high = (np.array(bound, np.float32) for bound in (policy.own.low, policy.own.high))
        mean = graph("Add", graph("Mul", unit, high / 2 - low / 2), high / 2 + low / 2)
    graph("Max", graph("Min", mean, high), low, name="action")


WRITERS: dict[type, Writer] = {ActorCritic: _actor_critic, QNetwork: _q_network, SquashedGaussianTwinQ: _squashed}
"""Functions that add a policy, by the class of its network."""
