"""Checkpoints of somebody else: arrays take no more memory than the run's own, whatever their documents say."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts
from hostile_files import MIB, pipe, sparse

from stellaris_jax.runs import checkpoint_arrays
from stellaris_jax.runs.checkpoint import CheckpointError, Checkpoints

STATE = {"x": jnp.arange(3.0), "key": jax.random.key(0), "y": jnp.ones((2, 4), jnp.bfloat16), "z": jnp.int8(3),
         "no": jnp.array(False)}  # fmt: skip


def abstract(state: Any = STATE) -> Any:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state)


# Brackets in its path keep Orbax from merging a checkpoint's files: then each document is a file.
@pytest.fixture(scope="module", params=["merged", "[plain]"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("made") / request.param / "checkpoints"
    checkpoints = Checkpoints(place, keep=1)
    checkpoints.save(1, STATE, {})
    checkpoints.close()
    return place


@pytest.fixture
def sent(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / made.parent.name / "checkpoints")
    return tmp_path / made.parent.name / "checkpoints"


def store(sent: Path) -> ts.KvStore:
    state = sent / "1" / "state"
    base: Any = {"driver": "file", "path": f"{state}/"}
    merged = (state / checkpoint_arrays.MANIFEST).exists()
    return ts.KvStore.open({"driver": "ocdbt", "base": base} if merged else base).result()


def opened(sent: Path) -> tuple[list[str], list[str]]:
    """Errors of a checkpoint that is not restored, by both ways to read it."""
    restoring, reading = list[str](), list[str]()
    checkpoints = Checkpoints(sent, keep=1, read_only=True)
    with pytest.raises(CheckpointError, match="there is no intact checkpoint"):
        checkpoints.restore(abstract(), restoring.append)
    with pytest.raises(CheckpointError, match="there is no intact checkpoint"):
        checkpoints.arrays(lambda size: None, reading.append)
    checkpoints.close()
    return restoring, reading


def test_own_arrays_are_read(sent: Path) -> None:
    checkpoints, sizes = Checkpoints(sent, keep=1, read_only=True), list[int]()
    _, state, _ = checkpoints.restore(abstract(), pytest.fail)
    leaves, _ = checkpoints.arrays(sizes.append, pytest.fail)
    checkpoints.close()
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(STATE), strict=True):
        assert one.dtype == other.dtype and (one == other).all()
    assert sizes == [sum(leaf.nbytes for leaf in leaves)] == [12 + 8 + 16 + 1 + 1]


CHANGES: dict[str, dict[str, Any]] = {
    "a large chunk": {"chunks": [2**28]},
    "many chunks": {"shape": [10**9], "chunks": [1]},
    "no chunk": {"chunks": [0]},
    "another compressor": {"compressor": {"id": "zlib", "level": 1}},
    "no compressor": {"compressor": None},
    "a filter": {"filters": [{"id": "delta"}]},
    "fields": {"dtype": [["a", "<f4", [2**20]]]},
    "objects": {"dtype": "|O"},
    "bytes": {"dtype": "|V1000000000"},
    "another rank": {"chunks": [1, 1]},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_document_that_asks_for_more_is_damage(change: str, sent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = store(sent)
    number = next(n for n in range(9) if json.loads(kept[f"{n}/.zarray"])["dtype"] == "<f4")
    document = json.loads(kept[f"{number}/.zarray"]) | CHANGES[change]
    kept[f"{number}/.zarray"] = json.dumps(document).encode()
    if change == "a large chunk":
        kept[f"{number}/0"] = zlib.compress(bytes(MIB))
    monkeypatch.setattr(ocp.CheckpointManager, "restore", lambda *_, **__: pytest.fail("Orbax has read it"))
    monkeypatch.setattr(ocp.CheckpointManager, "item_metadata", lambda *_, **__: pytest.fail("Orbax has read it"))
    for notes in opened(sent):
        reason = f"array {number} is not stored as checkpoints are"
        assert notes == [f"checkpoint of round 1 is damaged and passed over ({reason})"]


def test_arrays_of_another_shape_are_damage(sent: Path) -> None:
    kept = store(sent)
    number = next(n for n in range(9) if json.loads(kept[f"{n}/.zarray"])["dtype"] == "<f4")
    document = json.loads(kept[f"{number}/.zarray"])
    kept[f"{number}/.zarray"] = json.dumps(document | {"shape": [2**28], "chunks": [2**28]}).encode()
    assert f"(array {number} is float32[{2**28}], not float32[3])" in opened(sent)[0][0]


def test_other_documents_are_damage(sent: Path) -> None:
    """Too long a document, one of another format, an array too many or too few."""
    kept = store(sent)
    whole = kept["0/.zarray"]
    kept["0/zarr.json"] = b"{}"
    assert "array 0 has documents of two formats" in opened(sent)[0][0]
    del kept["0/.zarray"]
    assert "array 0 is not stored as checkpoints are" in opened(sent)[0][0]
    del kept["0/zarr.json"]
    assert "it holds 0 of 5 arrays" in opened(sent)[0][0]
    kept["0/.zarray"] = whole + b" " * MIB
    assert "holds more than 1 MiB" in opened(sent)[0][0]
    kept["0/.zarray"], kept["5/.zarray"] = whole, whole
    assert "it holds more than 5 arrays" in opened(sent)[0][0]


def test_files_that_are_longer_than_the_arrays_are_damage(sent: Path) -> None:
    sparse(sent / "1" / "long", 64 * MIB)
    assert "MiB, the most that is read" in opened(sent)[0][0]
    (sent / "1" / "long").unlink()
    pipe(sent / "1" / "pipe")
    assert all("it is a pipe, not a regular file" in notes[0] for notes in opened(sent))


def test_types_that_jax_adds() -> None:
    for name in ("bfloat16", "float8_e4m3fn", "int4", "|b1", "<f4", "<u4"):
        document = {"shape": [3, 0], "chunks": [3, 1], "dtype": name, "compressor": {"id": "zstd"}, "filters": None,
                    "zarr_format": 2}  # fmt: skip
        assert checkpoint_arrays._template(document).dtype == np.dtype(name)
