"""Gradient noise scale of McCandlish et al. (2018), appendix A.1, by which KungFu adapts the number of workers."""

from __future__ import annotations

import math


def noise_scale(small_sq: float, big_sq: float, small: float, big: float) -> tuple[float, float, float]:
    """Gradient noise scale, estimated from gradients of two batch sizes of the same distribution.

        |G|^2 = (B_big |G_big|^2 - B_small |G_small|^2) / (B_big - B_small)
        S     = (|G_small|^2 - |G_big|^2) / (1 / B_small - 1 / B_big)

    Both estimates are unbiased, but their ratio S / |G|^2 is biased. With several estimates, average S and |G|^2 and
    divide the averages.

    Args:
      small_sq: |G_small|^2, the squared norm of the gradient averaged over `small` samples; better the mean over
        several such batches.
      big_sq: |G_big|^2, the same over `big` samples.
      small: B_small, in samples.
      big: B_big, in samples, different from B_small.

    Returns:
      (|G|^2, S, noise scale in samples). S is the trace of the covariance of one sample's gradient. Both estimates may
      be negative. The noise scale is nan if |G|^2 <= 0. It is 0 if only S < 0: a trace is at least 0, so the noise is
      too small to measure. All three are nan if the sizes are equal or not positive, or if a number is not finite.
    """
    if not (small > 0.0 and big > 0.0 and small != big):
        return math.nan, math.nan, math.nan
    squared = (big * big_sq - small * small_sq) / (big - small)
    # Equals the formula with 1 / B_small - 1 / B_big, which may round to 0.
    trace = (small_sq - big_sq) * small * big / (big - small)
    if not (math.isfinite(squared) and math.isfinite(trace)):
        return math.nan, math.nan, math.nan
    return squared, trace, max(trace, 0.0) / squared if squared > 0.0 else math.nan
