"""The machine's best rates: matrix products, and arrays read and written, inside caches and beyond them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.arithmetic import Product, Work, work_of
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.machine import cores
from stellaris_jax.engine.mesh import compile_for_backend

SQUARES = (512, 1024, 2048)
"""Rows and columns of the matrices of which one product is the fastest arithmetic there is."""
ARRAYS = (2**18, 2**20, 2**22, 2**24, 2**28)
"""Bytes of the arrays that every core copies: from what its own cache holds to what none does."""
LEAST = 0.02
"""Seconds that are told apart from the clock's own and those of a call."""
TIMES = 5

Figures = dict[str, Any]


def machine() -> Figures:
    """Operations per second of large products in float32, and bytes per second, read and written, of copies.

    All cores take part, and each rate is the best of several. Raises ConfigError on another platform than a CPU.
    """
    if jax.default_backend() != "cpu":
        raise ConfigError(f"Rates are measured of a CPU, and JAX runs on {jax.default_backend()}: JAX_PLATFORMS=cpu.")
    matrices = [jax.ShapeDtypeStruct((rows, rows), jnp.float32) for rows in SQUARES]
    squares = [product for matrix in matrices for product in work_of(jnp.matmul, matrix, matrix).products]
    return {
        "product_flops_per_second": max(product.flops / product_seconds(product) for product in squares),
        "bytes_per_second": {str(size): _copied(size) for size in ARRAYS},
    }


def bytes_per_second(machine: Figures, held: float) -> float:
    """The rate of the smallest of `ARRAYS` that is as large as `held` bytes."""
    fitting = [size for size in ARRAYS if size >= held] or ARRAYS[-1:]
    rate: float = machine["bytes_per_second"][str(fitting[0])]
    return rate


def limit_seconds(machine: Figures, work: Work, held: float) -> float:
    """Seconds below which no program does this work on arrays of `held` bytes: the roofline."""
    return max(work.flops / machine["product_flops_per_second"], work.moved / bytes_per_second(machine, held))


def product_seconds(product: Product) -> float:
    """Seconds of such a product, many of them one after the other in one program."""
    keys = jax.random.split(jax.random.key(0), len(product.operands))
    shapes = zip(keys, product.operands, strict=True)
    operands = [jax.random.normal(key, shape).astype(dtype) for key, (shape, dtype) in shapes]

    def one(_: jax.Array, carry: Any) -> Any:
        (first, *rest), result = carry
        # A number of the last result, so that the next one has to wait for it.
        first = first.at[(0,) * first.ndim].set(1e-3 * result[(0,) * result.ndim])
        return [first, *rest], product.bind(first, *rest)

    return _looped(one, (operands, product.bind(*operands)))


def _copied(size: int) -> float:
    """Bytes per second, read and written, of all cores that copy arrays of so many bytes, two to each of them."""
    passes = max(1, 2 * max(ARRAYS) // size)
    pairs = [(np.ones(size, np.uint8), np.zeros(size, np.uint8)) for _ in range(cores())]

    def copy(source: np.ndarray, target: np.ndarray) -> None:
        for _ in range(passes):
            np.copyto(target, source)

    def all_copy() -> None:
        list(threads.map(copy, *zip(*pairs, strict=True)))

    with ThreadPoolExecutor(len(pairs)) as threads:
        return 2 * size * passes * len(pairs) / min(_seconds(all_copy) for _ in range(TIMES))


def _looped(one: Callable[[jax.Array, Any], Any], carry: Any) -> float:
    """Seconds of one round of a loop, the fastest of several loops that are long enough to be timed."""

    def loop(rounds: jax.Array, carry: Any) -> Any:
        return jax.lax.fori_loop(0, rounds, one, carry)

    program = compile_for_backend(jax.jit(loop).lower(jnp.int32(0), carry))
    rounds = 1
    while (seconds := _seconds(partial(program, jnp.int32(rounds), carry))) < LEAST:
        rounds = 2 * rounds if seconds == 0.0 else max(2 * rounds, min(int(rounds * LEAST / seconds), 100 * rounds))
    return min(_seconds(partial(program, jnp.int32(rounds), carry)) for _ in range(TIMES)) / rounds


def _seconds(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - begin
