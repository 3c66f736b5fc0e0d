"""ONNX format: the graph of this package's networks, written node by node, for any batch size.

No converter is used: converters for JAX need older packages than training does (docs/architecture.md). Input
`observation`; outputs `action`, `distribution`, `value`, see `Outputs`. The metadata is the model's property
`stellaris_jax`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.schema import shown
from stellaris_jax.policies.export.artefact import ExportedPolicy, Metadata, Outputs
from stellaris_jax.policies.export.operators import ELEMENTS, Tensor, infer
from stellaris_jax.policies.export.protobuf import read_model

if TYPE_CHECKING:
    from stellaris_jax.policies.policy import Policy

PROPERTY = "stellaris_jax"
OPSET, IR = 17, 8
"""Versions of operators and of the file format; every runtime since 2022 reads them."""
SUGGESTION = "pip install 'stellaris-jax[onnx]'"


def write(policy: Policy, metadata: Metadata) -> bytes:
    """Contents of a policy's file. Raises ConfigError for a plug-in's policy or torso."""
    try:
        import onnx
    except ImportError:
        raise ConfigError(f"--to onnx needs ONNX: {SUGGESTION}.") from None
    from stellaris_jax.policies.export.graph import Graph, policy_graph

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
    check(data)  # never write a file that cannot be read
    return data


def read(data: bytes) -> ExportedPolicy:
    """Read the policy in a file; it runs in onnxruntime, or else in ONNX's slow reference implementation.

    Both see the file only after `check`. Raises ValueError, or an error of theirs, if the file holds no policy.
    """
    metadata = check(data)
    run = _runner(data)

    def forward(obs: np.ndarray) -> Outputs:
        return Outputs(*run(list(Outputs._fields), {"observation": obs}))

    return ExportedPolicy(metadata, forward)


def check(data: bytes) -> Metadata:
    """Check a model; returns its metadata.

    The model must be self-contained, use only the operators of exported policies and match its spaces. Raises
    ValueError otherwise.
    """
    model = read_model(data)
    versions = [(opset["domain"], opset["version"]) for opset in model["opset_import"]]
    if model["ir_version"] != IR or versions != [("", OPSET)]:
        actual = f"IR version {model['ir_version']} and the operators {shown(versions)}"
        raise ValueError(f"it has {actual}; accepted: IR version {IR} and the operators {[('', OPSET)]}")
    properties = model["metadata_props"]
    if model["producer_name"] != PROPERTY or [item["key"] for item in properties] != [PROPERTY]:
        raise ValueError("it is no policy that was exported here")
    metadata = Metadata.from_json(properties[0]["value"])
    if model["graph"] is None:
        raise ValueError("it has no graph")
    inputs = {"observation": (metadata.observation_space["dtype"], tuple(metadata.observation_space["shape"]))}
    tensors = infer(model["graph"], Tensor(inputs["observation"][0], (None, *inputs["observation"][1])))
    for key, types in (("input", inputs), ("output", metadata.outputs())):
        declared = {value["name"]: _declared(value) for value in model["graph"][key]}
        for name, (dtype, shape) in types.items():
            tensor = tensors.get(name)
            if (
                declared.get(name) != (dtype, shape)
                or tensor is None
                or (tensor.dtype, tensor.shape) != (dtype, (None, *shape))
            ):
                raise ValueError(f"its {key} {name} is not of {dtype} {list(shape)}, as its spaces say")
        if len(model["graph"][key]) != len(types):
            raise ValueError(f"its {key}s are {', '.join(declared)}; accepted: {', '.join(types)}")
    return metadata


def _declared(value: dict[str, Any]) -> tuple[str, tuple[int, ...]] | None:
    """Element type and shape without the batch axis, as an input or output declares them; None without a batch axis."""
    tensor = (value["type"] or {}).get("tensor_type")
    dims = (tensor["shape"] or {}).get("dim") if tensor else None
    if not tensor or not dims or not dims[0]["dim_param"] or any(dim["dim_param"] for dim in dims[1:]):
        return None
    return ELEMENTS.get(tensor["elem_type"], ""), tuple(dim["dim_value"] for dim in dims[1:])


def _runner(data: bytes) -> Callable[..., Any]:
    """Function that runs a model, given names of outputs and a dictionary of inputs."""
    try:
        import onnxruntime
    except ImportError:
        return _reference(data)
    options = onnxruntime.SessionOptions()
    # Otherwise onnxruntime reads bytes that look like its own format as that format.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run


def _reference(data: bytes) -> Callable[..., Any]:
    try:
        import onnx
        from onnx.reference import ReferenceEvaluator
    except ImportError:
        raise ConfigError(f"a .onnx file needs onnxruntime: pip install onnxruntime, or else {SUGGESTION}.") from None
    return ReferenceEvaluator(onnx.load_model_from_string(data)).run
