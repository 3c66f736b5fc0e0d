"""Curvature of the policy's objective (Nitro, section 5): extreme Hessian eigenvalues and their ratio R.

Nitro adds actors where the maximised surrogate objective J is nearly concave: where R is low. The released code uses
the Hessian of the minimised loss instead, and pads both eigenvalues by 0.01. Negation swaps the two eigenvalues,
so without the padding one R would be the reciprocal of the other.

- `paper`: the Hessian of J, R = -lambda_max / lambda_min.
- `artifact`: the Hessian of the loss, R = -(lambda_max + 0.01) / (lambda_min - 0.01).
"""

from __future__ import annotations

import math

MODES = ("paper", "artifact")
PAD = 0.01
"""Padding of the spectrum in the released code, on either side: the margin of its smoothed eigenvalue density."""


def curvature_ratio(smallest: float, largest: float, mode: str) -> float:
    """Nitro's R of the extreme eigenvalues (Eq. 2 in the paper): convexity of the objective relative to its concavity.

    Args:
      smallest: lambda_min of the objective's Hessian in mode `paper`, or of the loss's in mode `artifact`.
      largest: lambda_max of the same Hessian.
      mode: one of `MODES`.

    Returns:
      R for all numbers: nan if one is not finite; +inf if no direction is curved downwards (`paper`: lambda_min >= 0,
      `artifact`: lambda_min >= 0.01); 0 in mode `paper` if none is curved upwards. In mode `artifact` R is negative if
      lambda_max < -0.01, as in the released code.

    Raises:
      ValueError: the mode is unknown.
    """
    if mode not in MODES:
        raise ValueError(f"curvature mode {mode!r} is unknown; accepted: {', '.join(MODES)}")
    low, high = float(smallest), float(largest)
    if not (math.isfinite(low) and math.isfinite(high)):
        return math.nan
    if mode == "artifact":
        low, high = low - PAD, high + PAD
    if low >= 0.0:
        return math.inf
    if mode == "paper" and high <= 0.0:
        return 0.0
    return -high / low
