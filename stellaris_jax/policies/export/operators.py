"""Operators of an exported ONNX graph, and type inference. Plain Python.

An exported policy consists of `OPERATORS`, each with the attributes that `graph` writes. Types of all tensors are
computed from those of the observation and the constants, before onnxruntime sees the file. The first axis is the batch,
written `None`; all others are known. This bounds the graph's memory and checks its outputs against the spaces.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

ELEMENTS = {1: "float32", 2: "uint8", 6: "int32", 7: "int64", 9: "bool"}
"""Element types, keyed by ONNX's number."""
SIZES = {"float32": 4, "int64": 8}
"""Bytes per element of a constant."""
INT, INTS = 2, 7
"""Numbers of attribute types."""
MOST_NODES = 5_000
"""Largest number of nodes of a graph."""
MOST_ELEMENTS = 2**28
"""Largest number of elements of all tensors of a graph for one observation, without constants."""

Shape = tuple[int | None, ...]


class Tensor(NamedTuple):
    """Type of a tensor: element type and shape.

    Attributes:
      dtype: element type.
      shape: sizes of axes; the first is None for the batch.
      values: integers of a constant vector, such as the sizes of `Split`.
      of: for an output of operator `Shape`: the shape that the tensor holds.
    """

    dtype: str
    shape: Shape
    values: tuple[int, ...] = ()
    of: Shape | None = None


Attributes = dict[str, Any]
Operator = Callable[[Sequence[Tensor], Attributes], list[Tensor]]


def constant(tensor: dict[str, Any]) -> Tensor:
    """Type of a constant, a message `tensor` of `protobuf`. Raises ValueError if its bytes do not match the type."""
    dims, data = tensor["dims"], tensor["raw_data"]
    dtype = ELEMENTS.get(tensor["data_type"], "")
    _require(dtype in SIZES, f"a constant has element type {dtype or tensor['data_type']}")
    _require(all(size >= 0 for size in dims), f"a constant has the shape {dims}")
    _require(math.prod(dims) * SIZES[dtype] == len(data), f"a constant of shape {dims} has {len(data)} bytes")
    few = dtype == "int64" and len(dims) == 1
    return Tensor(dtype, tuple(dims), struct.unpack(f"<{dims[0]}q", data) if few else ())


def infer(graph: dict[str, Any], observation: Tensor) -> dict[str, Tensor]:
    """Infer the types of all tensors of a graph.

    Args:
      graph: message `graph` of `protobuf`.
      observation: type of the graph's input.

    Returns:
      Types, keyed by the names of tensors.

    Raises:
      ValueError: the graph is too large, has an operator that no exported policy has, or inputs do not match.
    """
    _require(len(graph["node"]) <= MOST_NODES, f"it has more than {MOST_NODES} nodes")
    tensors = {"observation": observation}
    for initializer in graph["initializer"]:
        _add(tensors, initializer["name"], constant(initializer))
    elements = 0
    for node in graph["node"]:
        name = node["op_type"]
        if node["domain"] or name not in OPERATORS:
            operator = f"{node['domain']}.{name}" if node["domain"] else name
            raise ValueError(f"it has the operator {operator}; accepted: {', '.join(OPERATORS)}")
        rule, count, accepted = OPERATORS[name]
        attributes = _attributes(node, accepted)
        unknown = [tensor for tensor in node["input"] if tensor not in tensors]
        _require(
            not unknown, f"its operator {name} reads {unknown[0] if unknown else ''}, which nothing before it makes"
        )
        _require(len(node["input"]) in count, f"its operator {name} has {len(node['input'])} inputs")
        inputs = [tensors[tensor] for tensor in node["input"]]
        if name not in ("Expand", "Squeeze"):
            _require(all(tensor.of is None for tensor in inputs), f"its operator {name} reads the shape of a tensor")
        outputs = rule(inputs, attributes)
        _require(len(node["output"]) == len(outputs), f"its operator {name} has {len(node['output'])} outputs")
        for output, tensor in zip(node["output"], outputs, strict=True):
            batched = tensor.of is not None or (tensor.shape[:1] == (None,) and None not in tensor.shape[1:])
            _require(batched, f"its operator {name} makes a tensor whose first axis alone is not the batch")
            elements += math.prod(size or 1 for size in tensor.shape)
            _require(elements <= MOST_ELEMENTS, f"its tensors have more than {MOST_ELEMENTS} elements")
            _add(tensors, output, tensor)
    return tensors


def _add(tensors: dict[str, Tensor], name: str, tensor: Tensor) -> None:
    _require(bool(name) and name not in tensors, f"it has two tensors of the name {name!r}")
    tensors[name] = tensor


def _attributes(node: dict[str, Any], accepted: set[str]) -> Attributes:
    """Attributes of a node, keyed by name: integers and lists of integers."""
    attributes: Attributes = {}
    for attribute in node["attribute"]:
        name, kind = attribute["name"], attribute["type"]
        is_valid = name in accepted and name not in attributes and kind in (INT, INTS)
        _require(is_valid, f"its operator {node['op_type']} has the attribute {name!r} of type {kind}")
        attributes[name] = attribute["i"] if kind == INT else attribute["ints"]
    return attributes


def _same(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    return [inputs[0]]


def _cast(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    to = ELEMENTS.get(attributes.get("to", 0))
    _require(to in ("float32", "int32"), f"its operator Cast makes elements of type {attributes.get('to')}")
    return [Tensor(str(to), inputs[0].shape)]


def _clip(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    _require(all(bound.shape == () for bound in inputs[1:]), "its operator Clip has bounds that are no scalars")
    return [inputs[0]]


def _broadcast(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    first, second = inputs
    _require(first.dtype == second.dtype, f"an operator joins {first.dtype} and {second.dtype}")
    return [Tensor(first.dtype, broadcast(first.shape, second.shape))]


def _greater(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    return [Tensor("bool", _broadcast(inputs, attributes)[0].shape)]


def _transpose(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    (x,), perm = inputs, attributes.get("perm", [])
    _require(sorted(perm) == list(range(len(x.shape))), f"its operator Transpose has perm={perm}")
    return [Tensor(x.dtype, tuple(x.shape[axis] for axis in perm))]


def _flatten(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    (x,) = inputs
    _require(x.shape[:1] == (None,), "its operator Flatten reads no batch")
    return [Tensor(x.dtype, (None, math.prod(size or 0 for size in x.shape[1:])))]


def _gemm(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    x, kernel, bias = inputs
    fits = len(x.shape) == len(kernel.shape) == 2 and x.shape[1] == kernel.shape[0] and bias.shape == kernel.shape[1:]
    _require(fits, f"its operator Gemm multiplies {x.shape} by {kernel.shape} and adds {bias.shape}")
    return [Tensor(x.dtype, (x.shape[0], kernel.shape[1]))]


def _conv(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    x, kernel, bias = inputs
    fits = len(x.shape) == len(kernel.shape) == 4 and x.shape[1] == kernel.shape[1]
    fits = fits and bias.shape == kernel.shape[:1] and list(kernel.shape[2:]) == attributes.get("kernel_shape")
    _require(fits, f"its operator Conv has images {x.shape}, a kernel {kernel.shape} and a bias {bias.shape}")
    return [Tensor(x.dtype, (x.shape[0], kernel.shape[0], *_windows(x.shape, attributes)))]


def _pool(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    (x,) = inputs
    _require(len(x.shape) == 4, f"its operator MaxPool has images {x.shape}")
    return [Tensor(x.dtype, (*x.shape[:2], *_windows(x.shape, attributes)))]


def _windows(shape: Shape, attributes: Attributes) -> list[int]:
    """Number of windows along height and width of images `[B, C, H, W]`."""
    kernel, strides, pads = (attributes.get(name) or [] for name in ("kernel_shape", "strides", "pads"))
    fits = [type(value) for value in (kernel, strides, pads)] == [list] * 3
    fits = fits and (len(kernel), len(strides), len(pads)) == (2, 2, 4)
    fits = fits and min(kernel + strides) > 0 and all(0 <= pad < kernel[i % 2] for i, pad in enumerate(pads))
    _require(fits, "its windows do not fit")
    sides = [(shape[2 + i] or 0) + pads[i] + pads[2 + i] - kernel[i] for i in range(2)]
    _require(min(sides) >= 0, "its windows are larger than its images")
    return [side // stride + 1 for side, stride in zip(sides, strides, strict=True)]


def _shape(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    (x,) = inputs
    return [Tensor("int64", (len(x.shape),), of=x.shape)]


def _expand(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    x, shape = inputs
    if shape.of is None:
        raise ValueError("its operator Expand has a shape that is not that of a tensor")
    return [Tensor(x.dtype, broadcast(x.shape, shape.of))]


def _concat(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    _require(attributes == {"axis": -1}, f"its operator Concat has {attributes}")
    first = inputs[0]
    fits = all(len(x.shape) > 1 and x.shape[:-1] == first.shape[:-1] and x.dtype == first.dtype for x in inputs)
    _require(fits, f"its operator Concat joins {', '.join(str(x.shape) for x in inputs)}")
    return [Tensor(first.dtype, (*first.shape[:-1], sum(x.shape[-1] or 0 for x in inputs)))]


def _split(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    x, sizes = inputs
    _require(attributes == {"axis": -1}, f"its operator Split has {attributes}")
    fits = len(x.shape) > 1 and len(sizes.values) > 0 and min(sizes.values) > 0 and sum(sizes.values) == x.shape[-1]
    _require(fits, f"its operator Split cuts {x.shape} into {len(sizes.values)} parts that do not fit")
    return [Tensor(x.dtype, (*x.shape[:-1], size)) for size in sizes.values]


def _squeeze(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    x, axes = inputs
    _require(axes.values == (1,) and x.shape == (None, 1), f"its operator Squeeze reads {x.shape}")
    return [Tensor(x.dtype, (None,))]


def _argmax(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    (x,) = inputs
    keep = attributes.get("keepdims")
    _require(
        attributes.get("axis") == -1 and keep in (0, 1) and len(x.shape) == 2, f"its operator ArgMax reads {x.shape}"
    )
    return [Tensor("int64", (*x.shape[:-1], 1) if keep else x.shape[:-1])]


def _largest(inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    (x,) = inputs
    fits = attributes == {"axes": [-1], "keepdims": 1} and len(x.shape) == 2
    _require(fits, f"its operator ReduceMax reads {x.shape} with {attributes}")
    return [Tensor(x.dtype, (*x.shape[:-1], 1))]


OPERATORS: dict[str, tuple[Operator, Sequence[int], set[str]]] = {
    "Add": (_broadcast, [2], set()),
    "ArgMax": (_argmax, [1], {"axis", "keepdims"}),
    "Cast": (_cast, [1], {"to"}),
    "Clip": (_clip, [3], set()),
    "Concat": (_concat, range(1, MOST_NODES), {"axis"}),
    "Conv": (_conv, [3], {"kernel_shape", "strides", "pads"}),
    "Div": (_broadcast, [2], set()),
    "Expand": (_expand, [2], set()),
    "Flatten": (_flatten, [1], set()),
    "Gemm": (_gemm, [3], set()),
    "Greater": (_greater, [2], set()),
    "Identity": (_same, [1], set()),
    "Max": (_broadcast, [2], set()),
    "MaxPool": (_pool, [1], {"kernel_shape", "strides", "pads"}),
    "Min": (_broadcast, [2], set()),
    "Mul": (_broadcast, [2], set()),
    "ReduceMax": (_largest, [1], {"axes", "keepdims"}),
    "Relu": (_same, [1], set()),
    "Shape": (_shape, [1], set()),
    "Split": (_split, [2], {"axis"}),
    "Squeeze": (_squeeze, [2], set()),
    "Sub": (_broadcast, [2], set()),
    "Tanh": (_same, [1], set()),
    "Transpose": (_transpose, [1], {"perm"}),
}
"""Type rule, accepted numbers of inputs, and attributes of each operator."""


def broadcast(first: Shape, second: Shape) -> Shape:
    """Broadcast two shapes. Raises ValueError if they do not match."""
    rank = max(len(first), len(second))
    pairs = zip((1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second, strict=True)
    sizes: list[int | None] = []
    for left, right in pairs:
        _require(left == right or 1 in (left, right), f"the shapes {first} and {second} do not fit")
        sizes.append(right if left == 1 else left)
    return tuple(sizes)


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise ValueError(fault)
