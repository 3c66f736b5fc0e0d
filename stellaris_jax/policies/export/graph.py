"""Graph of a policy in ONNX operators: normalizer, torso, dense layers and outputs.

Images are `[B, C, H, W]` in ONNX and `[B, H, W, C]` in JAX. They are transposed before a torso and back after it, so
that dense layers receive their inputs in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from stellaris_jax.agent.networks.actor_critic import LOG_STD_RANGE, ActorCritic
from stellaris_jax.agent.networks.convolution import extent
from stellaris_jax.agent.networks.normalizer import CLIP, EPSILON
from stellaris_jax.agent.networks.torsos import IMPALA_FEATURES, Impala, Layer, Stack, torso
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs.base import Box, Discrete, MultiDiscrete
from stellaris_jax.policies.policy import Policy

Tree = dict[str, Any]
Input = str | np.ndarray | np.floating
ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu"}


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
    if type(network) is not ActorCritic:
        named = f"network.policy={network.config.policy}"
        raise ConfigError(f"--to onnx knows network.policy=actor_critic, not {named}; stablehlo and flax take any.")
    tree = jax.tree.map(np.asarray, jax.device_get(network.unravel(policy.params)))
    features = _observed(graph, policy)
    if "body" in tree:
        features = _mlp(graph, network, tree["body"], features, linear=False)
    outputs = _mlp(graph, network, tree["actor"], features)
    if network.free_log_std:
        shape = graph("Shape", outputs)
        outputs = graph("Concat", outputs, graph("Expand", tree["log_std"], shape), axis=-1)
    elif isinstance(network.action_space, Box):
        mean, log_std = graph.split(outputs, [network.action_space.size] * 2)
        low, high = (np.float32(bound) for bound in LOG_STD_RANGE)
        outputs = graph("Concat", mean, graph("Clip", log_std, low, high), axis=-1)
    _action(graph, policy, graph("Identity", outputs, name="distribution"))
    graph("Squeeze", _mlp(graph, network, tree["critic"], features), np.array([1]), name="value")


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


def _mlp(graph: Graph, network: ActorCritic, tree: Tree, x: str, linear: bool = True) -> str:
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


def _torso(graph: Graph, network: ActorCritic, tree: Tree, x: str) -> str:
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
        low, high = (np.array(bound, np.float32) for bound in (space.low, space.high))
        if policy.own is not None:
            unit = graph("Max", graph("Min", mean, high), low)
            low, high = (np.array(bound, np.float32) for bound in (policy.own.low, policy.own.high))
            mean = graph("Add", graph("Mul", unit, high / 2 - low / 2), high / 2 + low / 2)
        graph("Max", graph("Min", mean, high), low, name="action")
        return
    if isinstance(space, Discrete):
        chosen = graph("ArgMax", distribution, axis=-1, keepdims=0)
    elif isinstance(space, MultiDiscrete):
        parts = [graph("ArgMax", part, axis=-1, keepdims=1) for part in graph.split(distribution, list(space.nvec))]
        chosen = graph("Concat", *parts, axis=-1)
    else:
        chosen = graph("Greater", distribution, np.float32(0.0))
    graph("Cast", chosen, name="action", to=TensorProto.INT32)
