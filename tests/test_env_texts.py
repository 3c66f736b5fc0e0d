"""Environments of a stored run: what their arguments open, import or download needs consent; no log is written."""

from __future__ import annotations

import shutil
import subprocess
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from commands import call, said
from hostile_files import MIB, SPECIAL, sparse

from stellaris_jax import ConfigError
from stellaris_jax.config import downloads, trust
from stellaris_jax.config.env_texts import check_files
from stellaris_jax.config.schema import plain
from stellaris_jax.config.stored import from_yaml, to_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.envs import make
from stellaris_jax.envs.mujoco_warnings import PRINTED


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has allowed nothing, in a folder of their own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)


def config_of(name: str, **kwargs: Any) -> Config:
    return Config().replace({"env.name": name, "env.kwargs": kwargs})


def stored(config: Config, place: Path) -> Path:
    place.mkdir(exist_ok=True)
    (place / "config.yaml").write_text(to_yaml(config))
    return place


LEADING: list[dict[str, Any]] = [
    {"xml_file": "/a/evil.xml"}, {"xml_file": "./evil.xml"}, {"xml_file": "~/evil.xml"}, {"xml_file": ".evil.xml"},
    {"xml_file": "a/../../evil.xml"}, {"xml_file": "a\\evil.xml"}, {"env_id": "evil:Env-v0"}, {"make": "os:system"},
    {"vzd_path": "evil"}, {"game_args": "+logfile evil"}, {"lmp_save_dir": "evil"}, {"motion_file": "evil.npz"},
    {"nested": {"deep": ["fine", {"model": "/a/evil"}]}},
]  # fmt: skip
PLAIN: list[dict[str, Any]] = [
    {"xml_file": "ant.xml"}, {"map_name": "8x8", "is_slippery": True}, {"desc": ["SFFF", "FHFH"]}, {"xml_file": ""},
    {"wrappers": ["gymnasium.wrappers.ClipAction"]}, {"reward_config": {"scales": {"energy": 0.1}}}, {"vzd_path": ""},
]  # fmt: skip


@pytest.mark.parametrize("kwargs", LEADING)
@pytest.mark.parametrize("name", ["gymnasium/Ant-v5", "GYM-nasium/GymV26Environment-v0", "envpool/Ant-v4"])
def test_texts_that_lead_to_code_or_files_need_consent(name: str, kwargs: dict[str, Any], tmp_path: Path) -> None:
    run = stored(config_of(name, **kwargs), tmp_path / "run")
    config = from_yaml(run / "config.yaml")
    with pytest.raises(ConfigError, match=r"lets its environment open env\.kwargs\.\S+=.*, which you have not allowed"):
        trust.admit(config, run / "config.yaml")
    assert trust.admit(config, run / "config.yaml", trust=True) == config
    assert trust.admit(config, run / "config.yaml") == config, "it is remembered"
    with pytest.raises(ConfigError, match=r"names env\.kwargs\."):
        trust.check_adds_nothing(config, config_of(name), "the space")


@pytest.mark.parametrize("kwargs", PLAIN)
def test_other_texts_need_none(kwargs: dict[str, Any]) -> None:
    assert trust.code_of(config_of("gymnasium/Ant-v5", **kwargs)) == []
    check_files(plain(kwargs))


def test_consent_covers_the_file(tmp_path: Path) -> None:
    """A changed file needs consent again, as changed code does; so does the module of `module:id`."""
    (tmp_path / "a.xml").write_text("<mujoco/>")
    (tmp_path / "evil_of_texts.py").write_text("")
    for source, text in (("a.xml", f"{tmp_path}/a.xml"), ("evil_of_texts.py", "evil_of_texts:Env-v0")):
        run = stored(config_of("gymnasium/Ant-v5", xml_file=text), tmp_path / "run")
        config, path = from_yaml(run / "config.yaml"), run / "config.yaml"
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(tmp_path))
            trust.admit(config, path, trust=[text])
            trust.admit(config, path)
            (tmp_path / source).write_text("# changed")
            with pytest.raises(ConfigError, match="or which changed since"):
                trust.admit(config, path)


def test_a_text_is_told_of_on_one_line(tmp_path: Path) -> None:
    run = stored(config_of("gymnasium/Ant-v5", xml_file="/a\nb;c" * 200), tmp_path / "run")
    ended = call("evaluate.py", run)
    assert ended.returncode == 2 and len(said(ended.stderr)) == 1 and len(ended.stderr) < 1200, ended.stderr


@pytest.mark.parametrize("kind", [kind for kind in SPECIAL if kind != "a directory"])
@pytest.mark.parametrize("suite", ["gymnasium/HalfCheetah-v5", "envpool/HalfCheetah-v4"])
def test_a_model_that_is_no_regular_file_is_not_opened(suite: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip(suite.partition("/")[0])
    SPECIAL[kind](tmp_path / "model.xml")
    with pytest.raises(ConfigError, match=r"env\.kwargs\.xml_file=.*model\.xml cannot be used: "):
        make(suite, {"xml_file": str(tmp_path / "model.xml")})


def test_a_model_that_is_too_large_is_not_opened(tmp_path: Path) -> None:
    sparse(tmp_path / "model.xml", 17 * MIB)
    with pytest.raises(ConfigError, match="it holds more than 16 MiB"):
        check_files({"xml_file": "./model.xml"})


def test_an_own_model_is_used(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    from gymnasium.envs import mujoco as tasks

    shutil.copy(Path(tasks.__file__).parent / "assets" / "half_cheetah.xml", tmp_path / "mine.xml")
    assert make("gymnasium/HalfCheetah-v5", {"xml_file": str(tmp_path / "mine.xml")}).observation_space.shape == (17,)


# Downloads


def test_models_that_are_downloaded_need_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every command, and only while they are missing."""
    spec = ModuleSpec("mujoco_playground", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "library")]
    monkeypatch.setattr(downloads, "find_spec", lambda name: spec)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("something is downloaded"))
    run = stored(config_of("play-GROUND/go1_joystick_flat_terrain"), tmp_path / "run")
    for command in ("evaluate.py", "export.py"):
        ended = call(command, run, *(["--to", "flax"] if command == "export.py" else []))
        assert ended.returncode == 2 and len(said(ended.stderr)) == 1
        assert "downloads the models of env.name=play-GROUND/go1_joystick_flat_terrain, which you have" in ended.stderr
    (tmp_path / "library" / downloads.MODELS).mkdir(parents=True)
    assert trust.code_of(from_yaml(run / "config.yaml")) == []


def test_tasks_that_are_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco_playground")
    from mujoco_playground import dm_control_suite, locomotion, manipulation

    monkeypatch.setattr(downloads, "MODELS", Path("missing"))
    assert not any(downloads.downloads(f"playground/{name}") for name in dm_control_suite.ALL_ENVS)
    assert all(downloads.downloads(f"playground/{name}") for name in (*locomotion.ALL_ENVS, *manipulation.ALL_ENVS))
    assert not downloads.downloads("mine/Go1Getup") and downloads.downloads("Play_Ground/go1-getup")


# MuJoCo's log

UNSTABLE = '<mujoco><worldbody><body><freejoint/><geom size="1"/></body></worldbody></mujoco>'


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user's, to which the log of MuJoCo's warnings leads."""
    mujoco = pytest.importorskip("mujoco")
    mujoco.set_mju_user_warning(None)
    path = tmp_path / "victim"
    path.write_text("precious")
    (tmp_path / "MUJOCO_LOG.TXT").symlink_to(path)
    return path


@pytest.mark.parametrize(
    "name", ["gymnasium/HalfCheetah-v5", "mjx/HalfCheetah", "brax/fast", "playground/CartpoleBalance"]
)
def test_mujoco_writes_no_log(name: str, victim: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import mujoco

    suite = name.partition("/")[0]
    pytest.importorskip({"mjx": "mujoco.mjx", "playground": "mujoco_playground"}.get(suite, suite))
    make(name, {})
    model = mujoco.MjModel.from_xml_string(UNSTABLE)
    for _ in range(2):
        data = mujoco.MjData(model)
        data.qpos[:] = float("nan")
        mujoco.mj_step(model, data)
    assert victim.read_text() == "precious" and capfd.readouterr().err.count("The simulation is unstable") <= 1


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_pools_write_no_log(mode: str, victim: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    PRINTED.clear()
    env: Any = make("gymnasium/HalfCheetah-v5", {"vectorization_mode": mode, "reset_noise_scale": 1e300})
    pool = env.open(2, seed=0)
    for _ in range(2):
        pool.recv()
        pool.send(np.zeros((2, 6), np.float32))
    pool.recv()
    pool.close()
    assert victim.read_text() == "precious"
    assert capfd.readouterr().err.count("The simulation is unstable") in ((1,) if mode == "sync" else (1, 2))


def test_a_log_of_envpool_is_no_link(victim: Path) -> None:
    pytest.importorskip("envpool")
    with pytest.raises(ConfigError, match=r"cannot be used in this folder: MUJOCO_LOG\.TXT is a link"):
        make("envpool/HalfCheetah-v4", {})
