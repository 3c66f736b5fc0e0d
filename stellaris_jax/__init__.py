"""Stellaris in JAX: asynchronous deep reinforcement learning with staleness-aware learners.

Asynchrony is planned first and executed second: a timeline decides from delays and rules which learner computes which
gradient on which policy version, and one compiled program carries the plan out.
"""

from __future__ import annotations

__version__ = "0.1.0.dev0"
