"""ONNX: the graph of our own networks, written node by node, for any size of batch.

No converter: what there is for JAX asks for older packages than training does (docs/architecture.md).
Input `observation`; outputs `action`, `distribution`, `value`, see `Outputs`. The metadata is the model's property
`stellaris_jax`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from stellaris_jax.config.schema import ConfigError
from stellaris_jax.training.export.artefact import ExportedPolicy, Metadata, Outputs

if TYPE_CHECKING:
    from stellaris_jax.training.policy import Policy

PROPERTY = "stellaris_jax"
OPSET, IR = 17, 8
"""Versions of operators and of the file, which every runtime since 2022 reads."""
SUGGESTION = "pip install 'stellaris-jax[onnx]'"


def write(policy: Policy, metadata: Metadata) -> bytes:
    """The file of a policy. Raises ConfigError for a torso that is not ours."""
    try:
        import onnx
    except ImportError:
        raise ConfigError(f"--to onnx needs ONNX: {SUGGESTION}.") from None
    from stellaris_jax.training.export.graph import Graph, policy_graph

    graph = Graph()
    policy_graph(graph, policy)
    space, actions = policy.network.observation_space, policy.network.action_space
    kinds = {"float32": onnx.TensorProto.FLOAT, "int32": onnx.TensorProto.INT32, "uint8": onnx.TensorProto.UINT8}

    def tensor(name: str, dtype: str, *shape: int) -> Any:
        return onnx.helper.make_tensor_value_info(name, kinds[dtype], ["batch", *shape])

    outputs = [
        tensor("action", actions.dtype, *actions.shape),
        tensor("distribution", "float32", policy.network.distribution.size),
        tensor("value", "float32"),
    ]
    inputs = [tensor("observation", space.dtype, *space.shape)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants),
        producer_name=PROPERTY,
        ir_version=IR,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
    )
    onnx.helper.set_model_props(model, {PROPERTY: metadata.to_json()})
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


def read(data: bytes) -> ExportedPolicy:
    """The policy in a file, run by onnxruntime, or else by ONNX's own reference, which is slow.

    Raises ValueError, or what these raise, where there is none.
    """
    text, run = _opened(data)
    metadata = Metadata.from_json(text)

    def forward(obs: np.ndarray) -> Outputs:
        return Outputs(*run(list(Outputs._fields), {"observation": obs}))

    return ExportedPolicy(metadata, forward)


def _opened(data: bytes) -> tuple[str, Callable[..., Any]]:
    """A model's metadata, and what runs it."""
    try:
        import onnxruntime
    except ImportError:
        return _reference(data)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.get_modelmeta().custom_metadata_map[PROPERTY], session.run


def _reference(data: bytes) -> tuple[str, Callable[..., Any]]:
    try:
        import onnx
        from onnx.reference import ReferenceEvaluator
    except ImportError:
        raise ConfigError(f"a .onnx file needs onnxruntime: pip install onnxruntime, or else {SUGGESTION}.") from None
    model = onnx.load_model_from_string(data)
    properties = {prop.key: prop.value for prop in model.metadata_props}
    return properties[PROPERTY], ReferenceEvaluator(model).run
