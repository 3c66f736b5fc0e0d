"""Extreme eigenvalues of a Hessian by Lanczos on Hessian-vector products (Nitro, VLDB'25, §4 and §5)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp


def hessian_vector_product(
    objective: Callable[[jax.Array], jax.Array], params: jax.Array, vector: jax.Array
) -> jax.Array:
    """The Hessian of `objective` (`[P]` -> scalar) at `params`, `[P]`, times `vector`, `[P]`: forward over reverse.

    One product costs a few gradients in time and memory, and the Hessian `[P, P]` is never formed (Pearlmutter 1994).
    """
    return jax.jvp(jax.grad(objective), (params,), (vector,))[1]


def extreme_eigenvalues(
    product: Callable[[jax.Array], jax.Array], key: jax.Array, size: int, steps: int
) -> tuple[jax.Array, jax.Array]:
    """The smallest and the largest eigenvalue of a symmetric operator, by Lanczos with full re-orthogonalisation.

    They are Ritz values: inside the spectrum up to rounding, and exact once the probe's Krylov space is exhausted. As
    in the released code the probe is Rademacher. It never sees an eigenvector that is exactly orthogonal to it, as
    (1, -1, 0, ..., 0) is to half of all vectors of signs; Hessians of networks have no such structure in general.

    Args:
      product: the operator, `[P]` -> `[P]`, linear and symmetric.
      key: draws the probe.
      size: P.
      steps: Lanczos steps, each one product; the basis takes `steps` x P numbers. The released code takes 100.

    Returns:
      (lambda_min, lambda_max), scalars; both nan where a product is not finite.
    """
    from matfree.decomp import tridiag_sym  # which Nitro alone asks for

    rows = min(steps, size)
    if rows < 1:
        raise ValueError(f"Lanczos takes at least one step on at least one parameter, not {steps} on {size}")
    lanczos = tridiag_sym(rows, custom_vjp=False, reortho="full", materialize=False)
    # TF32 products on a GPU would lose the end of the spectrum that is a thousandth of the other.
    with jax.default_matmul_precision("highest"):
        basis, (diagonal, off_diagonal), *_ = lanczos(product, jax.random.rademacher(key, (size,), dtype=float))
        overlap = jnp.abs(basis @ basis.T - jnp.eye(rows, dtype=basis.dtype))

    # A product that is not finite spoils T while its vector is sound; a breakdown (0 / 0) spoils the vector first.
    sound = jnp.all(jnp.isfinite(basis), axis=1)
    finite = jnp.all(jnp.where(sound, jnp.isfinite(diagonal), True))
    finite &= jnp.all(jnp.where(sound[1:], jnp.isfinite(off_diagonal), True))

    # When the Krylov space is exhausted the next vector is normalised rounding error. Where that happens to be
    # orthogonal to the others, Lanczos has restarted and T holds. Otherwise T is wrong from there on, and its
    # off-diagonal entry, an average with what should have been zero, need not be small: look at the basis instead.
    # T is wrong by about the overlap times the spectrum's range, hence a bound near what sums of P terms round to.
    rounding = 10.0 * float(jnp.finfo(basis.dtype).eps) * size**0.5
    kept = jnp.cumprod(sound & (jnp.max(jnp.tril(overlap), axis=1) <= rounding)).astype(bool)
    # The first diagonal entry is a Rayleigh quotient of what is kept: in its place a row adds nothing to the range.
    diagonal = jnp.where(kept & finite, diagonal, jnp.where(finite, diagonal[0], 0.0))
    off_diagonal = jnp.where(kept[1:] & finite, off_diagonal, 0.0)
    ritz = jnp.linalg.eigvalsh(jnp.diag(diagonal) + jnp.diag(off_diagonal, 1) + jnp.diag(off_diagonal, -1))
    return jnp.where(finite, ritz[0], jnp.nan), jnp.where(finite, ritz[-1], jnp.nan)
