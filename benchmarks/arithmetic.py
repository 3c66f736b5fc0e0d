"""Arithmetic and bytes of a JAX function, counted from its jaxpr: loops as often as they go round.

XLA's own analysis of a compiled program counts the body of a loop once. What is counted here is the least that has to
be done, so that time at the machine's rates is a limit:

- matrix products and convolutions take two operations for every product of numbers in them;
- everything else takes one for every number it makes, tanh, exp and the like as well, or, of a reduction, it reads;
- bytes are those that products, indexing and sorting read and write, and the carry of a loop in every round of it.
  Elementwise operations are fused with what comes before or after them, and move nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive

PRODUCTS = ("dot_general", "conv_general_dilated")
INDEXING = {"gather": None, "dynamic_slice": None, "dynamic_update_slice": 1, "scatter": 2, "scatter-add": 2}
"""Primitives that read or write a part of an array, and the operand that is that part; `None`: the result."""
MOVES = {
    *INDEXING, "bitcast_convert_type", "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "copy_p",
    "device_put", "iota", "optimization_barrier", "pad", "platform_index", "random_unwrap", "random_wrap", "reshape",
    "reshard", "rev", "slice", "sort", "split", "squeeze", "stack", "stop_gradient", "tile", "transpose", "unstack",
}  # fmt: skip
"""Primitives that move numbers and compute none."""
RANDOM = ("random_bits", "random_fold_in", "random_split")
THREEFRY = 58
"""Operations for 4 random bytes: 20 rounds of Threefry-2x32 of 5 each, and 5 injections of the key, make 8."""
CALLS = ("jaxpr", "call_jaxpr", "call")
"""How primitives that call a function name it among their parameters."""


class Product(NamedTuple):
    """A matrix product or a convolution, of operands of given shapes and types.

    operands: shape and type of each. parameters: of the primitive. result: shape.
    """

    primitive: Primitive
    operands: tuple[tuple[tuple[int, ...], str], ...]
    parameters: tuple[tuple[str, Any], ...]
    result: tuple[int, ...]

    @classmethod
    def of(cls, eqn: JaxprEqn) -> Product:
        """The product that an equation is."""
        arrays: list[Any] = [var.aval for var in (*eqn.invars, *eqn.outvars)]
        *operands, result = [(array.shape, str(array.dtype)) for array in arrays]
        return cls(eqn.primitive, tuple(operands), tuple(sorted(eqn.params.items())), result[0])

    @property
    def flops(self) -> float:
        """Multiplications and additions in it."""
        (left, _), (right, _) = self.operands
        parameters = dict(self.parameters)
        if self.primitive.name == "dot_general":
            (contracted, _), _ = parameters["dimension_numbers"]
            return 2.0 * math.prod(self.result) * math.prod(left[axis] for axis in contracted)
        features = right[parameters["dimension_numbers"].rhs_spec[0]]
        return 2.0 * math.prod(self.result) * math.prod(right) / features

    @property
    def label(self) -> str:
        """The operands' shapes in words."""
        return " x ".join("[" + ",".join(map(str, shape)) + "]" for shape, _ in self.operands)

    def bind(self, *operands: jax.Array) -> jax.Array:
        """The result of such a product."""
        result: jax.Array = self.primitive.bind(*operands, **dict(self.parameters))
        return result


@dataclass(frozen=True)
class Work:
    """products: how often each is done. elementwise: operations beside them. moved: bytes read and written."""

    products: Mapping[Product, float] = field(default_factory=dict)
    elementwise: float = 0.0
    moved: float = 0.0

    @property
    def product_flops(self) -> float:
        """Operations of all products."""
        return sum(times * product.flops for product, times in self.products.items())

    @property
    def flops(self) -> float:
        """All operations."""
        return self.product_flops + self.elementwise

    def __add__(self, other: Work) -> Work:
        products = dict(self.products)
        for product, times in other.products.items():
            products[product] = products.get(product, 0.0) + times
        return Work(products, self.elementwise + other.elementwise, self.moved + other.moved)

    def __mul__(self, times: float) -> Work:
        products = {product: number * times for product, number in self.products.items()}
        return Work(products, self.elementwise * times, self.moved * times)


Pick = Callable[[Iterable[float]], float]


def work_of(function: Callable[..., Any], *arguments: Any, trips: float = 1.0, pick: Pick = min) -> Work:
    """The work of one call of a function.

    Args:
      function: what is traced; nothing of it is computed.
      arguments: arrays, or their shapes and types.
      trips: how often the loops go round of which only the data know that, on average.
      pick: which of the branches counts that only the data choose, by their operations: `min` or `max`.
    """
    return _of(_plain(jax.make_jaxpr(function)(*arguments)), trips, pick)


def size(tree: Any) -> float:
    """Bytes of all arrays of a tree."""
    return float(sum(_bytes(leaf) for leaf in jax.tree.leaves(tree)))


def _of(jaxpr: Jaxpr, trips: float, pick: Pick) -> Work:
    return sum((_of_equation(eqn, trips, pick) for eqn in jaxpr.eqns), Work())


def _plain(jaxpr: ClosedJaxpr | Jaxpr) -> Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def _of_equation(eqn: JaxprEqn, trips: float, pick: Pick) -> Work:
    name, params = eqn.primitive.name, eqn.params
    results: list[Any] = [var.aval for var in eqn.outvars]
    if name in PRODUCTS:
        return Work({Product.of(eqn): 1.0}, moved=_moved(eqn))
    if name == "scan":
        body = _plain(params["jaxpr"])
        # Of what a round returns, the carry is as large as what the loop returns; the rest is stacked.
        pairs: list[tuple[Any, Any]] = [(var.aval, whole) for var, whole in zip(body.outvars, results, strict=True)]
        carried = sum(_bytes(one) for one, whole in pairs if one.ndim == whole.ndim)
        return (_of(body, trips, pick) + Work(moved=2.0 * carried)) * params["length"]
    if name == "while":
        parts = (_plain(params["cond_jaxpr"]), _plain(params["body_jaxpr"]))
        return sum((_of(part, trips, pick) for part in parts), Work()) * trips
    if name == "cond":
        branches = [_of(_plain(branch), trips, pick) for branch in params["branches"]]
        chosen = pick(branch.flops for branch in branches)
        return next(branch for branch in branches if branch.flops == chosen)
    for call in CALLS:
        if isinstance(inner := params.get(call), ClosedJaxpr | Jaxpr):
            return _of(_plain(inner), trips, pick)
    if name in RANDOM:
        return Work(elementwise=THREEFRY * sum(map(_bytes, results)) / 4)
    if name in INDEXING:
        operand = INDEXING[name]
        part = results[0] if operand is None else eqn.invars[operand].aval
        return Work(elementwise=_numbers(part) * (name == "scatter-add"), moved=2.0 * _bytes(part))
    if name == "sort":
        return Work(moved=_moved(eqn))
    if name in MOVES:
        return Work()
    reduces = name.startswith(("reduce_", "arg", "cum"))
    return Work(elementwise=float(_numbers(eqn.invars[0].aval if reduces else results[0])))


def _moved(eqn: JaxprEqn) -> float:
    return float(sum(_bytes(var.aval) for var in [*eqn.invars, *eqn.outvars]))


def _numbers(array: Any) -> int:
    return math.prod(getattr(array, "shape", ()))


def _bytes(array: Any) -> int:
    return _numbers(array) * array.dtype.itemsize if hasattr(array, "dtype") else 0
