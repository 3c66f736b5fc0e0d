"""Answers of staleness policies, which plug-ins may write: whether they are true or false, and who gave them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stellaris_jax.base.errors import RunError
from stellaris_jax.config.schema import shown


def is_truth(answer: Any) -> bool:
    """Whether an answer is true or false: a bool, or an array of one bool."""
    if isinstance(answer, bool):
        return True
    return getattr(answer, "shape", None) == () and getattr(answer, "dtype", None) == np.dtype(bool)


def is_count(answer: Any, least: int) -> bool:
    """Whether an answer is an integer of at least `least`."""
    if type(answer) is int:
        return answer >= least
    return isinstance(answer, int | np.integer) and not isinstance(answer, bool) and bool(answer >= least)


def decision(policy: object, method: str, answer: object) -> bool:
    """Answer of a policy as a bool.

    Args:
      policy: the policy.
      method: name of its method.
      answer: value that the method returned.

    Raises:
      RunError: the answer is neither true nor false.
    """
    if answer is True or answer is False:
        return answer
    if is_truth(answer):
        return bool(answer)
    raise RunError(f"{type(policy).__name__}.{method} must return true or false, not {shown(answer)}.")


def is_inherited(method: Callable[..., Any], default: Callable[..., Any]) -> bool:
    """Whether a method of an object is the base class's, not overridden."""
    return getattr(method, "__func__", None) is default
