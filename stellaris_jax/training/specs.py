"""Work-around for a leak of TensorStore: the strings of every specification that it turns into JSON are never freed.

Orbax turns one into JSON for every array of every checkpoint, though it has made it of JSON: about 270 bytes each time
(TensorStore 0.1.86, Orbax 0.12.8), some 10 kB per checkpoint of a small run. Here Orbax gets its own mapping back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorstore


class _FileSpec:
    """Specification of files below a path; its JSON is what it was made of."""

    def __init__(self, spec: Mapping[str, Any]):
        self._spec = spec

    def to_json(self) -> dict[str, Any]:
        return dict(self._spec)


class _KvStore:
    """`tensorstore.KvStore`, but for specifications of plain files."""

    def Spec(self, spec: Any) -> Any:
        plain = isinstance(spec, Mapping) and set(spec) == {"driver", "path"} and spec["driver"] == "file"
        return _FileSpec(spec) if plain else tensorstore.KvStore.Spec(spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(tensorstore.KvStore, name)


class _TensorStore:
    """The module `tensorstore` with another `KvStore`."""

    KvStore = _KvStore()

    def __getattr__(self, name: str) -> Any:
        return getattr(tensorstore, name)


def plug_leak() -> None:
    """Have Orbax keep its specifications; nothing where another version of Orbax is built otherwise."""
    try:
        from orbax.checkpoint._src.serialization import tensorstore_utils
    except ImportError:
        return
    if getattr(tensorstore_utils, "ts", None) is tensorstore:
        tensorstore_utils.ts = _TensorStore()
