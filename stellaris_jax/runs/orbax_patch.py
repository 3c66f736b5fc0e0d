"""Work-around for a leak of TensorStore: it never frees the strings of specifications that it converts to JSON.

Orbax converts one for every array of every checkpoint, although it made the specification from JSON. Each conversion
leaks about 270 bytes (TensorStore 0.1.86, Orbax 0.12.8), some 10 kB per checkpoint of a small run. The work-around
returns Orbax's own mapping instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorstore


class _FileSpec:
    """Specification of files below a path; its JSON is the mapping it was made from."""

    def __init__(self, spec: Mapping[str, Any]):
        self._spec = spec

    def to_json(self) -> dict[str, Any]:
        return dict(self._spec)


class _KvStore:
    """Proxy of `tensorstore.KvStore` that replaces specifications of plain files."""

    def Spec(self, spec: Any) -> Any:
        plain = isinstance(spec, Mapping) and set(spec) == {"driver", "path"} and spec["driver"] == "file"
        return _FileSpec(spec) if plain else tensorstore.KvStore.Spec(spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(tensorstore.KvStore, name)


class _TensorStore:
    """Proxy of module `tensorstore` with the other `KvStore`."""

    KvStore = _KvStore()

    def __getattr__(self, name: str) -> Any:
        return getattr(tensorstore, name)


def plug_leak() -> None:
    """Install the work-around in Orbax; does nothing if Orbax's code has changed."""
    try:
        from orbax.checkpoint._src.serialization import tensorstore_utils
    except ImportError:
        return
    if getattr(tensorstore_utils, "ts", None) is tensorstore:
        tensorstore_utils.ts = _TensorStore()
