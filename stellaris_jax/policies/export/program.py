"""Checks of a StableHLO program: its operations against a list, its types and its size.

An exported program only computes. `OPERATIONS` lists pure arithmetic on arrays. The list leaves out calls of functions
outside the program, which could run any code, and communication with the host or other devices. It also leaves out
random numbers and loops without a bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir

NUMERIC = """
    abs add and atan2 bitcast_convert broadcast broadcast_in_dim case cbrt ceil clamp compare concatenate constant
    convert convolution cosine count_leading_zeros divide dot dot_general dynamic_broadcast_in_dim dynamic_conv
    dynamic_gather dynamic_iota dynamic_pad dynamic_reshape dynamic_slice dynamic_update_slice exponential
    exponential_minus_one floor gather get_dimension_size if iota is_finite log log_plus_one logistic map maximum
    minimum multiply negate not optimization_barrier or pad popcnt power real_dynamic_slice reduce reduce_precision
    reduce_window remainder reshape return reverse round_nearest_afz round_nearest_even rsqrt scatter select shift_left
    shift_right_arithmetic shift_right_logical sign sine slice sort sqrt subtract tan tanh transpose xor
"""
OPERATIONS = {f"stablehlo.{name}" for name in NUMERIC.split()} | {"func.call", "func.return"}
"""Operations that a function of an exported program may have, besides the custom call `ASSERTION`."""
ASSERTION = "shape_assertion"
"""Target of the only custom call: JAX's check of sizes, which JAX removes before it compiles."""
ASSERTION_ATTRIBUTES = {"api_version", "call_target_name", "error_message", "has_side_effect"}
MOST_OPERATIONS = 20_000
"""Largest number of operations, those of a function counted at each call; 64 layers have some thousands."""
MOST_ELEMENTS = 2**28
"""Largest number of elements of all results for one observation, without those made of parameters."""
PER_BYTE = 8
"""Elements of results made of parameters, per byte of the file: slices, other shapes, one for each platform."""
MOST_CALLERS = 100
"""Largest depth of nested calls."""
DEEPEST = 8
"""Largest depth of nested regions."""


def check_program(module: ir.Module, arguments: list[str], results: list[str], held: int) -> None:
    """Raise ValueError unless a program consists of `OPERATIONS`, and its function `main` has the right types.

    Args:
      module: the program, before its shapes are refined.
      arguments, results: types of `main` as MLIR writes them.
      held: size of the file in bytes.
    """
    functions: dict[str, Any] = {}
    for operation in module.body.operations:
        function = operation.operation
        if function.name != "func.func":
            raise ValueError(f"it has the operation {function.name} outside of functions, which no exported policy has")
        _check_attributes(function)
        functions[_text(function.attributes["sym_name"])] = function
    if "main" not in functions:
        raise ValueError("it has no function main")
    kind = ir.FunctionType(ir.TypeAttr(functions["main"].attributes["function_type"]).value)
    if [str(type_) for type_ in kind.inputs] != arguments or [str(type_) for type_ in kind.results] != results:
        raise ValueError(f"its program is of type {kind}; accepted: ({', '.join(arguments)}) -> ({', '.join(results)})")
    counts: dict[str, int] = {}
    for name in functions:  # unused functions too, because compilers read them
        _expanded(name, functions, counts, [])
    check_sizes(module, held)


def check_sizes(module: ir.Module, held: int, batch: int = 1) -> None:
    """Raise ValueError if a program makes more or larger arrays than an exported policy does.

    Args:
      module: the program; axes of unknown size count as 1. A program refined for a batch has none.
      held: size of the file in bytes.
      batch: number of observations.
    """
    most = MOST_ELEMENTS * batch + PER_BYTE * held
    elements = 0
    for operation in _walk(module.operation, 0):
        for result in operation.results:
            if not isinstance(result.type, ir.RankedTensorType):
                raise ValueError(f"its operation {operation.name} makes {result.type}; accepted: arrays of known rank")
            elements += math.prod(max(size, 1) for size in result.type.shape)  # unknown sizes are negative
            if elements > most:
                raise ValueError(f"its program makes arrays of more than {most} elements for {batch} observations")


def _expanded(name: str, functions: dict[str, Any], counts: dict[str, int], callers: list[str]) -> int:
    """Number of operations of a function and of all that it calls, each checked. Raises ValueError."""
    if name in counts:
        return counts[name]
    if name in callers or len(callers) > MOST_CALLERS:
        raise ValueError(f"its function {name} calls itself, or is called by too many that call one another")
    if name not in functions:
        raise ValueError(f"it calls {name}, which it does not have")
    total = 0
    for operation in _walk(functions[name], 0):
        if operation.name == "func.func":
            continue
        total += 1
        _check_operation(operation)
        if operation.name == "func.call":
            callee = ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
            total += _expanded(callee, functions, counts, [*callers, name])
        if total > MOST_OPERATIONS:
            raise ValueError(f"its program has more than {MOST_OPERATIONS} operations")
    counts[name] = total
    return total


def _check_operation(operation: Any) -> None:
    name, attributes = operation.name, operation.attributes
    if name == "stablehlo.custom_call":
        target = _text(attributes["call_target_name"])
        if target != ASSERTION:
            raise ValueError(f"it calls {target}, which no exported policy does")
        if not set(_names(operation)) <= ASSERTION_ATTRIBUTES or list(operation.results):
            raise ValueError(f"it calls {target} as no exported policy does")
    elif name not in OPERATIONS:
        raise ValueError(f"it has the operation {name}, which no exported policy has")
    _check_attributes(operation)
    if name == "stablehlo.constant" and not isinstance(attributes["value"], ir.DenseElementsAttr):
        raise ValueError("it has a constant whose elements do not stand in it")


def _check_attributes(operation: Any) -> None:
    """Raise ValueError for attributes of another dialect: they make compilers shard, place or call."""
    foreign = [name for name in _names(operation) if "." in name or name.startswith("_")]
    if foreign:
        raise ValueError(f"its operation {operation.name} has the attribute {foreign[0]}, which no exported policy has")


def _walk(operation: Any, depth: int) -> Iterator[Any]:
    """Operation and all operations in its regions. Raises ValueError if regions are nested too deeply."""
    if depth > DEEPEST:
        raise ValueError(f"its operations stand more than {DEEPEST} deep in one another")
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _walk(inner.operation, depth + 1)


def _names(operation: Any) -> list[str]:
    """Names of an operation's attributes; iteration yields names, or in older versions of JAX attributes."""
    return [getattr(attribute, "name", attribute) for attribute in operation.attributes]


def _text(attribute: Any) -> str:
    return ir.StringAttr(attribute).value
