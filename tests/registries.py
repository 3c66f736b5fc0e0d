"""Registries that forget what a test enters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stellaris_jax import register


@contextmanager
def forgetting(*kinds: str) -> Iterator[pytest.MonkeyPatch]:
    """Context after which the named kinds have the entries that they had before it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in kinds:
            kind = register[name]
            list(kind)
            for attribute in ("_entries", "_places"):
                patch.setattr(kind, attribute, dict(getattr(kind, attribute)))
        yield patch
