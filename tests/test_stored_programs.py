"""Compiled programs kept on disk: found again, the same to the bit, never wrong and never a stranger's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris_jax import load_config
from stellaris_jax.base.checked_files import write_checked
from stellaris_jax.engine import program_identity as identity
from stellaris_jax.engine import stored_programs as module
from stellaris_jax.engine.mesh import compile_plainly
from stellaris_jax.engine.program_identity import Code, Untold, text_of
from stellaris_jax.engine.stored_programs import StoredPrograms, parts_of

REPOSITORY = Path(__file__).parent.parent
SMALL = [
    "env.num_envs=4",
    "algorithm.rollout_length=16",
    "network.hidden=[8]",
    "total_steps=256",
    "evaluation.episodes=2",
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of JAX's cache, whose programs are to be told by what they are made from alone."""
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    monkeypatch.setattr(module, "foreign_modules", lambda: iter(()))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def files(cache: Path) -> list[Path]:
    return sorted((cache / module.FOLDER).iterdir())


class Lowering:
    """Function that is lowered, and counts how often."""

    def __init__(self, factor: float = 2.0):
        self.calls, self.factor = 0, factor

    def __call__(self) -> jax.stages.Lowered:
        self.calls += 1
        return jax.jit(lambda x: {"y": jnp.tanh(x * self.factor) @ x.T}).lower(np.ones((3, 3), np.float32))

    def run(self, stored: StoredPrograms, name: str = "f", shape: tuple[int, int] = (3, 3)) -> np.ndarray:
        program = stored.compiled(name, np.ones(shape, np.float32), self)
        return np.asarray(program(np.full((3, 3), 0.3, np.float32))["y"])


def test_a_program_is_lowered_once_and_computes_the_same(cache: Path) -> None:
    lowering = Lowering()
    first, second = (lowering.run(StoredPrograms(("parts",))) for _ in range(2))
    assert lowering.calls == 1 and len(files(cache)) == 1
    assert np.array_equal(first, second)
    assert files(cache)[0].parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("other", ["parts", "name", "shape", "variable", "configuration", "code"])
def test_another_program_is_not_taken_for_it(
    cache: Path, other: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    Lowering().run(StoredPrograms(("parts",)))
    parts, name, shape = ("parts",), "f", (3, 3)
    if other == "parts":
        parts = ("others",)
    elif other == "name":
        name = "g"
    elif other == "shape":
        shape = (3, 4)
    elif other == "variable":
        monkeypatch.setenv("XLA_FLAGS", f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_enable_fast_math=false")
    elif other == "configuration":
        jax.config.update("jax_default_matmul_precision", "highest")
        request.addfinalizer(lambda: jax.config.update("jax_default_matmul_precision", None))
    else:
        monkeypatch.setattr(identity, "code", lambda: Code("others", [], []))
    lowering = Lowering()
    lowering.run(StoredPrograms(parts), name, shape)
    assert lowering.calls == 1 and len(files(cache)) == 2


@pytest.mark.parametrize("damage", ["short", "changed", "other", "empty", "moved"])
def test_a_damaged_program_is_compiled_again(cache: Path, damage: str) -> None:
    lowering = Lowering()
    wanted = lowering.run(StoredPrograms(("parts",)))
    (path,) = files(cache)
    data = path.read_bytes()
    if damage == "moved":  # the intact program of another function
        Lowering(-5.0).run(StoredPrograms(("others",)))
        (other,) = {*files(cache)} - {path}
        other.rename(path)
    elif damage == "other":  # a checksum of its own
        write_checked(path, b"no pickle")
    else:
        path.write_bytes({"short": data[:-100], "changed": data[:500] + b"X" + data[501:], "empty": b""}[damage])
    assert np.array_equal(lowering.run(StoredPrograms(("parts",))), wanted)
    assert lowering.calls == 2 and files(cache)[0].stat().st_size > 1000
    lowering.run(StoredPrograms(("parts",)))
    assert lowering.calls == 2


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o702])
def test_a_folder_that_others_can_open_is_not_used(cache: Path, mode: int) -> None:
    (cache / module.FOLDER).mkdir()
    (cache / module.FOLDER).chmod(mode)
    lowering = Lowering()
    for _ in range(2):
        lowering.run(StoredPrograms(("parts",)))
    assert lowering.calls == 2 and not files(cache)


def test_a_folder_that_is_a_link_or_cannot_be_made_is_not_used(cache: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    (cache / module.FOLDER).symlink_to(elsewhere)
    Lowering().run(StoredPrograms(("parts",)))
    assert not [*elsewhere.iterdir()]
    (cache / module.FOLDER).unlink()
    (cache / module.FOLDER).write_text("a file")
    Lowering().run(StoredPrograms(("parts",)))


def test_nothing_is_kept_if_a_source_changes_while_a_program_is_compiled(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowering, sources = Lowering(), identity._sources()

    def lower() -> jax.stages.Lowered:
        monkeypatch.setattr(identity, "_sources", lambda: [*sources[1:], (sources[0][0], 1, 1)])
        return lowering()

    StoredPrograms(("parts",)).compiled("f", np.ones((3, 3), np.float32), lower)
    assert not files(cache)


def test_a_cache_that_cannot_be_written_is_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lowering = Lowering()
    lowering.run(StoredPrograms(("parts",)))

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(os, "unlink", refuse)
    lowering.run(StoredPrograms(("parts",)))
    assert lowering.calls == 1


def test_files_that_vanish_meanwhile_stop_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Lowering().run(StoredPrograms(("parts",)))
    monkeypatch.setattr(module, "LARGEST", 0)
    (cache / module.FOLDER / "a folder").mkdir()
    (cache / module.FOLDER / "nowhere").symlink_to("nowhere at all")
    module._bound(cache / module.FOLDER)
    module._bound(cache / "nowhere")


def test_another_users_file_is_not_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lowering, own = Lowering(), os.geteuid()
    lowering.run(StoredPrograms(("parts",)))
    monkeypatch.setattr(module, "_folder", lambda: cache / module.FOLDER)
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    lowering.run(StoredPrograms(("parts",)))
    assert lowering.calls == 2


def test_programs_and_evaluations_compile_side_by_side(cache: Path) -> None:
    """The locks of compilation and of the switch of JAX's cache are always taken in one order."""
    threads = []
    for number in range(8):
        compiler = (module.compile_for_backend, compile_plainly)[number % 2]
        arguments = (f"f{number}", np.ones((3, 3), np.float32), Lowering(number), compiler)
        threads.append(threading.Thread(target=StoredPrograms((number,)).compiled, args=arguments, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert len(files(cache)) == 8


def test_a_full_disk_stops_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stellaris_jax.base.checked_files.write_atomically", full)
    lowering = Lowering()
    assert np.array_equal(lowering.run(StoredPrograms(("parts",))), lowering.run(StoredPrograms(("parts",))))
    assert lowering.calls == 2


def test_the_least_recently_used_programs_are_deleted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        Lowering().run(StoredPrograms((number,)))
        for age, path in enumerate(sorted(files(cache), key=lambda path: path.stat().st_mtime_ns)):
            os.utime(path, (age, age))
    monkeypatch.setattr(module, "LARGEST", 2 * files(cache)[0].stat().st_size + 100)
    lowering = Lowering()
    lowering.run(StoredPrograms((0,)))  # used now, so another is the oldest
    Lowering().run(StoredPrograms((3,)))
    assert lowering.calls == 0 and len(files(cache)) == 2
    lowering.run(StoredPrograms((0,)))
    assert lowering.calls == 0


def test_a_program_that_calls_lapack_is_not_kept(cache: Path) -> None:
    def lower() -> jax.stages.Lowered:
        return jax.jit(jnp.linalg.qr).lower(np.eye(3, dtype=np.float32))

    StoredPrograms(("parts",)).compiled("qr", np.eye(3, dtype=np.float32), lower)
    assert not files(cache)


def test_rows_are_made_once_for_the_same_keys(cache: Path) -> None:
    made: list[int] = []

    def rows(keys: list[int]) -> Any:
        def make() -> jax.Array:
            made.append(len(keys))
            return jnp.arange(6.0).reshape(2, 3) + keys[0]

        return np.asarray(StoredPrograms(("parts",)).rows("parameters", keys, make))

    assert np.array_equal(rows([1, 2]), rows([1, 2])) and made == [2]
    assert not np.array_equal(rows([1, 2]), rows([2, 1])) and made == [2, 2]


# What is told ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [lambda: 1, object(), np.ones(2), {"a": {1}}])
def test_what_cannot_be_told_keeps_nothing(cache: Path, value: Any) -> None:
    with pytest.raises(Untold):
        text_of(value)
    assert not StoredPrograms((value,))


def test_plugins_files_and_switched_off_caches_keep_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(SMALL)
    assert parts_of(config) is not None
    assert parts_of(config.replace({"engine.compile_cache": False})) is None
    assert parts_of(config.replace({"plugins": ("own.py",)})) is None
    assert parts_of(config.replace({"env.kwargs": {"xml_file": "/a/b.xml"}})) is None
    assert parts_of(config.replace({"env.name": "gymnasium/own:Env-v0"})) is None
    assert parts_of(config.replace({"env.name": "job/training"})) is None
    monkeypatch.setattr(module, "foreign_modules", lambda: iter(("own",)))
    assert parts_of(config) is None


def test_a_user_can_switch_the_store_off(cache: Path, request: pytest.FixtureRequest) -> None:
    before = jax.config.values["jax_enable_compilation_cache"]
    request.addfinalizer(lambda: jax.config.update("jax_enable_compilation_cache", before))
    lowering = Lowering()
    for enabled in (True, False, True):
        jax.config.update("jax_enable_compilation_cache", enabled)
        lowering.run(StoredPrograms(("parts",)))
    assert lowering.calls == 2 and len(files(cache)) == 1


def test_what_a_killed_process_left_is_deleted(cache: Path) -> None:
    Lowering().run(StoredPrograms((1,)))
    for name, age in {".f-1.tmp": 7200, ".f-2.tmp": 60}.items():
        (cache / module.FOLDER / name).touch()
        os.utime(cache / module.FOLDER / name, (time.time() - age,) * 2)
    Lowering().run(StoredPrograms((2,)))
    assert [path.name for path in files(cache) if path.name.startswith(".")] == [".f-2.tmp"]


# Commands -------------------------------------------------------------------------------------------------------------


TIMED = {"wall_seconds", "steps_per_second", "check"}
"""Parts of a record that depend on real time; the last is a digest of them all."""


def command(cache: Path, script: str, *arguments: str) -> None:
    """Run a command with its own cache."""
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache), "XLA_FLAGS": ""}
    called = [sys.executable, f"scripts/{script}.py", *arguments]
    subprocess.run(called, cwd=REPOSITORY, env=environment, check=True, capture_output=True)


def trained(folder: Path, cache: Path, *overrides: str) -> list[dict[str, Any]]:
    """Records of a run by the command, without its times."""
    command(cache, "train", *SMALL, *overrides, f"run.dir={folder}")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in TIMED} for record in records]


def test_a_command_finds_its_programs_and_repeats_to_the_bit(tmp_path: Path) -> None:
    first = trained(tmp_path / "a", tmp_path / "cache")
    kept = {path.name: path.stat().st_mtime_ns for path in files(tmp_path / "cache")}
    assert {name.partition("-")[0] for name in kept} == {"chunk", "evaluation", "parameters", "state"}
    assert trained(tmp_path / "b", tmp_path / "cache") == first
    assert {"policy_loss", "train_return"} <= {*first[0]}
    assert {path.name for path in files(tmp_path / "cache")} == {*kept}
    assert any(path.stat().st_mtime_ns > kept[path.name] for path in files(tmp_path / "cache")), "nothing was loaded"
    # Values of options need no other program.
    trained(tmp_path / "c", tmp_path / "cache", "algorithm.learning_rate=0.1", "algorithm.options.clip=0.3")
    assert {path.name for path in files(tmp_path / "cache")} == {*kept}
    command(tmp_path / "cache", "evaluate", str(tmp_path / "a"), "--episodes", "2")
    assert {path.name for path in files(tmp_path / "cache")} == {*kept}, "it compiled the evaluation again"


def test_a_command_with_a_plugin_keeps_no_programs(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("FACTOR = 2.0\n")
    trained(tmp_path / "a", tmp_path / "cache", f"plugins=[{tmp_path / 'own.py'}]")
    assert not (tmp_path / "cache" / module.FOLDER).exists()
