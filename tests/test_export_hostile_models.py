"""Hostile ONNX models: each is refused in a sentence, before onnxruntime sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_policies import real, refusal

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("flatbuffers")

import onnx

from stellaris_jax.policies.export import protobuf


def with_model(edit: Callable[[Any], None]) -> bytes:
    """A file whose model is edited."""
    model = onnx.load_model_from_string(real("onnx"))
    edit(model)
    data: bytes = model.SerializeToString()
    return data


def at(message: Any, path: str) -> Any:
    """Part of a message, at a dotted path of fields and indices."""
    for part in filter(None, path.split(".")):
        message = message[int(part)] if part.isdigit() else getattr(message, part)
    return message


def changed(path: str, value: Any) -> Callable[[Any], None]:
    """An edit that sets one field, or replaces the first values of a repeated one."""

    def edit(model: Any) -> None:
        parent, _, name = path.rpartition(".")
        if isinstance(value, list):
            at(model, path)[: len(value)] = value
        else:
            setattr(at(model, parent), name, value)

    return edit


def added(path: str, **fields: Any) -> Callable[[Any], None]:
    """An edit that adds a message to a repeated field."""
    return lambda model: at(model, path).add(**fields)


def external(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "secret.bin"


def domain(model: Any) -> None:
    model.graph.node[0].domain = "com.evil"
    model.opset_import.add().domain = "com.evil"


def graph_attribute(model: Any) -> None:
    attribute = model.graph.node[0].attribute.add()
    attribute.name, attribute.type = "body", onnx.AttributeProto.GRAPH
    attribute.g.name = "body"


def tensor_attribute(model: Any) -> None:
    attribute = model.graph.node[0].attribute.add()
    attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
    attribute.t.data_location = onnx.TensorProto.EXTERNAL


def expanding(model: Any) -> None:
    """Terabytes, from a hundred bytes."""
    sizes = onnx.numpy_helper.from_array(np.array([10**6, 10**6]), "sizes")
    one = onnx.numpy_helper.from_array(np.float32(1.0).reshape(1, 1), "one")
    model.graph.initializer.extend([sizes, one])
    model.graph.node.append(onnx.helper.make_node("Expand", ["one", "sizes"], ["big"], "big"))


def doubling(model: Any) -> None:
    last = "observation"
    for i in range(40):
        model.graph.node.append(onnx.helper.make_node("Concat", [last, last], [f"x{i}"], f"x{i}", axis=-1))
        last = f"x{i}"


def outer(model: Any) -> None:
    """Products of all observations with one another."""
    nodes = [
        onnx.helper.make_node("ArgMax", ["distribution"], ["row"], "row", axis=-1, keepdims=0),
        onnx.helper.make_node("ArgMax", ["distribution"], ["column"], "column", axis=-1, keepdims=1),
        onnx.helper.make_node("Add", ["row", "column"], ["table"], "table"),
    ]
    model.graph.node.extend(nodes)


def layers(model: Any) -> None:
    for i in range(20_000):
        model.graph.node.append(onnx.helper.make_node("Identity", ["observation"], [f"i{i}"]))


def extra_output(model: Any) -> None:
    output = model.graph.output.add()
    output.CopyFrom(model.graph.output[0])
    output.name = "distribution2"


MODELS = {
    "external": (
        external,
        "its tensor has the field external_data, a tensor outside the file, which no exported policy has",
    ),
    "external_entries": (
        added("graph.initializer.0.external_data", key="location"),
        "its tensor has the field external_data, a tensor outside the file, which no exported policy has",
    ),
    "location_alone": (
        changed("graph.initializer.0.data_location", onnx.TensorProto.EXTERNAL),
        "its tensor has the field data_location, of a tensor outside the file",
    ),
    "sparse": (
        added("graph.sparse_initializer", dims=[4]),
        "its graph has the field sparse_initializer, which no exported policy has",
    ),
    "function": (added("functions", name="Tanh"), "its model has the field functions, which no exported policy has"),
    "domain": (domain, "accepted: IR version 8 and the operators [('', 17)]"),
    "node_domain": (changed("graph.node.0.domain", "com.microsoft"), "it has the operator com.microsoft."),
    "operator": (changed("graph.node.0.op_type", "Loop"), "it has the operator Loop; accepted: Add, ArgMax,"),
    "graph_attribute": (graph_attribute, "its attribute has the field g, a graph, which no exported policy has"),
    "tensor_attribute": (tensor_attribute, "its attribute has the field t, a tensor, which no exported policy has"),
    "attribute": (
        added("graph.node.0.attribute", name="axis", type=onnx.AttributeProto.INT, i=1),
        "has the attribute 'axis' of type 2",
    ),
    "training": (added("training_info"), "its model has the field training_info, which no exported policy has"),
    "options": (
        added("metadata_props", key="ort_config", value='{"session_options": {"profile_file_prefix": "x"}}'),
        "it is no policy that was exported here",
    ),
    "version": (changed("ir_version", 99), "it has IR version 99 and the operators [('', 17)]; accepted: IR version 8"),
    "operator_version": (
        changed("opset_import.0.version", 9),
        "it has IR version 8 and the operators [('', 9)]; accepted: IR version 8",
    ),
    "producer": (changed("producer_name", "other"), "it is no policy that was exported here"),
    "expanding": (expanding, "its operator Expand has a shape that is not that of a tensor"),
    "doubling": (doubling, "its tensors have more than 268435456 elements"),
    "outer": (outer, "makes a tensor whose first axis alone is not the batch"),
    "wide": (changed("graph.initializer.0.dims", [2**62, 4]), "a constant of shape [4611686018427387904, 4] has"),
    "negative": (changed("graph.initializer.0.dims", [-1, -4]), "a constant has the shape [-1, -4]"),
    "text_tensor": (changed("graph.initializer.0.data_type", onnx.TensorProto.STRING), "a constant has element type 8"),
    "layers": (layers, "it has more than 5000 nodes"),
    "extra_output": (
        extra_output,
        "its outputs are action, distribution, value, distribution2; accepted: action, distribution, value",
    ),
    "other_output": (
        changed("graph.output.0.type.tensor_type.elem_type", onnx.TensorProto.DOUBLE),
        "its output action is not of float32 [3], as its spaces say",
    ),
    "endless": (changed("graph.node.0.input", ["value"]), "reads value, which nothing before it makes"),
    "twice": (lambda model: model.graph.node.add().CopyFrom(model.graph.node[0]), "it has two tensors of the name"),
}


@pytest.mark.parametrize(("edit", "sentence"), MODELS.values(), ids=MODELS)
def test_models_that_are_more_than_a_policy(edit: Callable[[Any], None], sentence: str, tmp_path: Path) -> None:
    """A file of the name in them lies beside the model, and is not read."""
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    assert sentence in refusal("onnx", with_model(edit), tmp_path)


@pytest.mark.parametrize("runtime", ["onnxruntime", "onnx"])
def test_external_tensors_are_refused_without_help_of_a_runtime(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = with_model(external)
    monkeypatch.setattr("onnxruntime.InferenceSession", lambda *_, **__: pytest.fail("it was loaded"))
    monkeypatch.setattr("onnx.load_model_from_string", lambda *_, **__: pytest.fail("it was loaded"))
    monkeypatch.setitem(sys.modules, runtime, None)
    assert "a tensor outside the file" in refusal("onnx", data, tmp_path)


def test_messages_that_parsers_read_differently(tmp_path: Path) -> None:
    data = real("onnx")
    assert "its model has the field graph twice" in refusal("onnx", data + b"\x3a\x00", tmp_path)
    assert "its model has a field of number 99, which" in refusal("onnx", data + b"\x9a\x06\x00", tmp_path)
    assert "its field ir_version has wire type 2" in refusal("onnx", b"\x0a\x00" + data[2:], tmp_path)
    assert "it is no ONNX model, or is cut off" in refusal("onnx", data + b"\x80", tmp_path)


def test_fields_of_messages_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "MOST_FIELDS", 50)
    with pytest.raises(ValueError, match="it has more than 50 fields, the most that are read"):
        protobuf.read_model(b"\x3a\x64" + b"\x0a\x00" * 50)  # a graph of nodes with nothing in them
