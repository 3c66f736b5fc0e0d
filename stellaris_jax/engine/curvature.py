"""Extreme eigenvalues of a Hessian by Lanczos on Hessian-vector products (Nitro, VLDB'25, §4 and §5)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp


def hessian_vector_product(
    objective: Callable[[jax.Array], jax.Array], params: jax.Array, vector: jax.Array
) -> jax.Array:
    """Product of the Hessian of `objective` (`[P]` -> scalar) at `params` `[P]` with `vector` `[P]`.

    The product is forward-over-reverse differentiation. It costs a few gradients in time and memory, and never forms
    the Hessian `[P, P]` (Pearlmutter 1994).
    """
    return jax.jvp(jax.grad(objective), (params,), (vector,))[1]


def extreme_eigenvalues(
    product: Callable[[jax.Array], jax.Array], key: jax.Array, size: int, steps: int
) -> tuple[jax.Array, jax.Array]:
    """Smallest and largest eigenvalue of a symmetric operator, by Lanczos with full re-orthogonalisation.

    Both are Ritz values: inside the spectrum up to rounding, and exact once the probe's Krylov space is exhausted. As
    in the released code, the probe is a Rademacher vector. Lanczos misses eigenvectors that are exactly orthogonal to
    the probe, as (1, -1, 0, ..., 0) is to half of all vectors of signs. Hessians of networks have no such structure in
    general.

    Args:
      product: the operator, `[P]` -> `[P]`, linear and symmetric.
      key: key of the probe.
      size: P.
      steps: Lanczos steps, one product each; the basis holds `steps` x P numbers. The released code uses 100.

    Returns:
      (lambda_min, lambda_max), scalars; both nan if a product is not finite.

    Raises:
      ValueError: `steps` or `size` is less than 1.
    """
    from matfree.decomp import tridiag_sym  # imported here because only Nitro needs it

    rows = min(steps, size)
    if rows < 1:
        raise ValueError(f"Lanczos takes at least one step on at least one parameter, not {steps} on {size}")
    lanczos = tridiag_sym(rows, custom_vjp=False, reortho="full", materialize=False)
    # TF32 products on a GPU would lose an extreme eigenvalue that is a thousandth of the other one.
    with jax.default_matmul_precision("highest"):
        basis, (diagonal, off_diagonal), *_ = lanczos(product, jax.random.rademacher(key, (size,), dtype=float))
        overlap = jnp.abs(basis @ basis.T - jnp.eye(rows, dtype=basis.dtype))

    # A non-finite product makes T non-finite while its basis vector is finite. A breakdown (0 / 0) makes the vector
    # non-finite first.
    sound = jnp.all(jnp.isfinite(basis), axis=1)
    finite = jnp.all(jnp.where(sound, jnp.isfinite(diagonal), True))
    finite &= jnp.all(jnp.where(sound[1:], jnp.isfinite(off_diagonal), True))

    # When the Krylov space is exhausted, the next vector is normalised rounding error. If it happens to be orthogonal
    # to the others, Lanczos has restarted and T is valid. Otherwise T is wrong from there on. Its off-diagonal entry
    # need not be small then, so check the basis instead. The error of T is about the overlap times the spectrum's
    # range, hence a bound near the rounding error of sums of P terms.
    rounding = 10.0 * float(jnp.finfo(basis.dtype).eps) * size**0.5
    is_exact = jnp.cumprod(sound & (jnp.max(jnp.tril(overlap), axis=1) <= rounding)).astype(bool)
    # Replace dropped rows by the first diagonal entry, a Rayleigh quotient inside the range: they do not extend it.
    diagonal = jnp.where(is_exact & finite, diagonal, jnp.where(finite, diagonal[0], 0.0))
    off_diagonal = jnp.where(is_exact[1:] & finite, off_diagonal, 0.0)
    ritz = jnp.linalg.eigvalsh(jnp.diag(diagonal) + jnp.diag(off_diagonal, 1) + jnp.diag(off_diagonal, -1))
    return jnp.where(finite, ritz[0], jnp.nan), jnp.where(finite, ritz[-1], jnp.nan)
