"""Strict reader of the part of ONNX's protobuf messages that `onnx.write` writes. Plain Python.

Protobuf parsers skip unknown fields and merge duplicate ones, so two programs can read two different models from one
file. Here every message has a list of fields; an unknown or duplicate field is an error. So no tensor outside the file,
no function, no sparse tensor, and no attribute that is a graph reaches onnxruntime.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

MOST_FIELDS = 200_000
"""Largest number of fields of all messages of a file; 64 layers have some thousands."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""


class Field(NamedTuple):
    """Field of a message.

    Attributes:
      name: name in ONNX's schema.
      kind: int, float, text or bytes, or the message that it holds, a key of `MESSAGES`.
      repeated: whether it may come more than once.
    """

    name: str
    kind: str
    repeated: bool = False


MESSAGES = {
    "model": {
        1: Field("ir_version", "int"),
        2: Field("producer_name", "text"),
        7: Field("graph", "graph"),
        8: Field("opset_import", "opset", repeated=True),
        14: Field("metadata_props", "property", repeated=True),
    },
    "opset": {1: Field("domain", "text"), 2: Field("version", "int")},
    "property": {1: Field("key", "text"), 2: Field("value", "text")},
    "graph": {
        1: Field("node", "node", repeated=True),
        2: Field("name", "text"),
        5: Field("initializer", "tensor", repeated=True),
        11: Field("input", "value", repeated=True),
        12: Field("output", "value", repeated=True),
    },
    "node": {
        1: Field("input", "text", repeated=True),
        2: Field("output", "text", repeated=True),
        3: Field("name", "text"),
        4: Field("op_type", "text"),
        5: Field("attribute", "attribute", repeated=True),
        7: Field("domain", "text"),
    },
    "attribute": {
        1: Field("name", "text"),
        3: Field("i", "int"),
        8: Field("ints", "int", repeated=True),
        20: Field("type", "int"),
    },
    "tensor": {
        1: Field("dims", "int", repeated=True),
        2: Field("data_type", "int"),
        8: Field("name", "text"),
        9: Field("raw_data", "bytes"),
    },
    "value": {1: Field("name", "text"), 2: Field("type", "type")},
    "type": {1: Field("tensor_type", "tensor_type")},
    "tensor_type": {1: Field("elem_type", "int"), 2: Field("shape", "shape")},
    "shape": {1: Field("dim", "dimension", repeated=True)},
    "dimension": {1: Field("dim_value", "int"), 2: Field("dim_param", "text")},
}
"""Accepted fields, keyed by message and number (onnx.proto)."""
OTHERS = {
    ("model", 20): "training_info",
    ("model", 25): "functions",
    ("graph", 15): "sparse_initializer",
    ("attribute", 5): "t, a tensor",
    ("attribute", 6): "g, a graph",
    ("attribute", 11): "graphs",
    ("attribute", 21): "ref_attr_name",
    ("attribute", 22): "sparse_tensor",
    ("tensor", 13): "external_data, a tensor outside the file",
    ("tensor", 14): "data_location, of a tensor outside the file",
}
"""Names of some refused fields, for error messages."""
DEFAULTS: dict[str, Any] = {"int": 0, "text": "", "bytes": memoryview(b"")}


def read_model(data: bytes) -> dict[str, Any]:
    """Read the fields of an ONNX model, messages as dictionaries; absent ones have protobuf's defaults.

    Args:
      data: contents of the file.

    Returns:
      Fields, keyed by name: integers, texts, memoryviews of bytes, dictionaries, and lists of these for repeated
      fields. An absent message is None.

    Raises:
      ValueError: the bytes are no such model, or have too many fields or fields that no exported policy has.
    """
    try:
        return _Reader(memoryview(data)).message("model", 0, len(data))
    except (IndexError, struct.error, UnicodeDecodeError):
        raise ValueError("it is no ONNX model, or is cut off") from None


class _Reader:
    """Reader of one file that counts fields."""

    def __init__(self, data: memoryview):
        self.data, self.fields = data, 0

    def message(self, kind: str, at: int, end: int) -> dict[str, Any]:
        """Read the message in the bytes from `at` to `end`."""
        known = MESSAGES[kind]
        result: dict[str, Any] = {
            field.name: [] if field.repeated else DEFAULTS.get(field.kind) for field in known.values()
        }
        seen = set()
        while at < end:
            tag, at = self.varint(at, end)
            number, wire = tag >> 3, tag & 7
            field = known.get(number)
            if field is None:
                raise ValueError(f"its {kind} has {_called(kind, number)}, which no exported policy has")
            if number in seen and not field.repeated:
                raise ValueError(f"its {kind} has the field {field.name} twice")
            seen.add(number)
            values, at = self.values(field, wire, at, end)
            if field.repeated:
                result[field.name] += values
            else:
                (result[field.name],) = values
        return result

    def values(self, field: Field, wire: int, at: int, end: int) -> tuple[list[Any], int]:
        """Read the values of a field and return the next position too; repeated integers may be packed."""
        self.count()
        if field.kind == "int" and wire == VARINT:
            value, at = self.varint(at, end)
            return [_signed(value)], at
        if wire != BYTES or (field.kind == "int" and not field.repeated):
            raise ValueError(f"its field {field.name} has wire type {wire}, which is not that of its kind")
        length, at = self.varint(at, end)
        if length > end - at:
            raise ValueError(f"its field {field.name} is cut off")
        last = at + length
        if field.kind == "int":
            numbers = []
            while at < last:
                self.count()
                value, at = self.varint(at, last)
                numbers.append(_signed(value))
            return numbers, last
        if field.kind in MESSAGES:
            return [self.message(field.kind, at, last)], last
        part = self.data[at:last]
        return [str(part, "utf-8") if field.kind == "text" else part], last

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """Read an unsigned integer of at most 64 bits; returns it and the position after it."""
        value = 0
        for i in range(10):
            if at + i >= end:
                raise IndexError
            byte = self.data[at + i]
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                if value >= 2**64:
                    raise IndexError
                return value, at + i + 1
        raise IndexError

    def count(self) -> None:
        """Count a field, or an element of one."""
        self.fields += 1
        if self.fields > MOST_FIELDS:
            raise ValueError(f"it has more than {MOST_FIELDS} fields, the most that are read")


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _called(kind: str, number: int) -> str:
    name = OTHERS.get((kind, number))
    return f"the field {name}" if name else f"a field of number {number}"
