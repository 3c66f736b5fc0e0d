"""Films: what is on them, how long they are, that they repeat, and sentences for what cannot be filmed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from commands import REPOSITORY, call

pytest.importorskip("imageio")
pytest.importorskip("imageio_ffmpeg")

import imageio.v3 as iio

from stellaris_jax import Trainer, load_config
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs import drawing
from stellaris_jax.envs.registry import make
from stellaris_jax.execute.run import train
from stellaris_jax.policies.video import film

BLUE, ORANGE = (0, 114, 178), (213, 94, 0)  # the drawings' body and accent


def trainer(env: str, *overrides: str) -> Trainer:
    """An untrained policy, which acts all the same."""
    small = ["env.num_envs=8", "algorithm.rollout_length=32", "network.hidden=[8]"]
    return Trainer(load_config([f"env={env}", *small, *overrides]))


def centre(picture: np.ndarray, colour: tuple[int, int, int]) -> tuple[float, float]:
    """Mean column and row (counted upwards) of a colour, as fractions of the picture."""
    rows, columns = np.nonzero((picture == colour).all(-1))
    height, width = picture.shape[:2]
    return float(columns.mean()) / width, 1 - float(rows.mean()) / height


@pytest.fixture(scope="module")
def cartpole() -> Trainer:
    return trainer("gymnax/cartpole")


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_film_shows_every_other_step_of_whole_episodes(cartpole: Trainer, tmp_path: Path, suffix: str) -> None:
    """50 steps a second become 25 frames; an episode of n steps shows states 0, 2, 4, ... and always the n-th."""
    before = jax.device_get((cartpole.state.params, cartpole.state.normalizers))
    played = film(cartpole, tmp_path / "new" / f"film{suffix}", episodes=2, stream=3)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"film{suffix}"]
    frames = iio.imread(tmp_path / "new" / f"film{suffix}")
    assert played.returns.shape == played.lengths.shape == (1, 2)
    np.testing.assert_array_equal(played.returns, played.lengths)
    shown = sum(n // 2 + 1 + n % 2 for n in played.lengths[0])
    assert frames.shape == (shown, 320, 640, 3)
    assert all((a != b).any() for a, b in itertools.pairwise(frames[:4]))
    if suffix == ".mp4":
        assert iio.immeta(tmp_path / "new" / "film.mp4")["fps"] == 25
    after = jax.device_get((cartpole.state.params, cartpole.state.normalizers))
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_seed_decides(cartpole: Trainer, tmp_path: Path) -> None:
    films = []
    for name, stream in [("a", 1), ("b", 1), ("c", 2)]:
        film(cartpole, tmp_path / f"{name}.gif", stream=stream)
        films.append(iio.imread(tmp_path / f"{name}.gif"))
    np.testing.assert_array_equal(films[0], films[1])
    assert films[0].shape != films[2].shape or (films[0] != films[2]).any()


def test_host_film_is_the_evaluation(tmp_path: Path) -> None:
    """The episodes of a film return what an evaluation of one episode of that seed in the same streams returns."""
    pytest.importorskip("envpool")
    mine = trainer("envpool/cartpole", "num_seeds=2", "seed=3")
    played = film(mine, tmp_path / "film.gif", episodes=2, stream=5, seed=4)
    expected = [mine.evaluate(1, stream=stream).returns[1, 0] for stream in (5, 6)]
    assert played.returns[0].tolist() == expected
    frames = iio.imread(tmp_path / "film.gif")
    assert frames.shape[1:] == (400, 600, 3) and (frames[0] != frames[-1]).any()
    mine.close()


def test_boards_are_enlarged_cell_by_cell(tmp_path: Path) -> None:
    mine = trainer("gymnax/breakout_minatar")
    played = film(mine, tmp_path / "film.gif")
    frames = iio.imread(tmp_path / "film.gif")
    assert frames.shape == (played.lengths[0, 0] + 1, 320, 320, 3)
    cells = frames[:, 16::32, 16::32]
    np.testing.assert_array_equal(cells.repeat(32, 1).repeat(32, 2), frames)
    assert (cells[0, 1:3] == cells[0, 1, 0]).all() and cells[0, 1, 0].any() and not cells[0, 0].any()  # rows of bricks


def test_board_draws_the_first_channel_on_top() -> None:
    cells = np.zeros((2, 3, 2))
    cells[0, 0] = 1, 1
    cells[1, 2, 1] = 1
    picture = drawing.board(cells)
    assert picture.shape == (2, 3, 3) and picture.dtype == np.uint8
    assert len({tuple(picture[where]) for where in [(0, 0), (1, 2), (0, 1)]}) == 3
    cells[0, 0] = 1, 0
    np.testing.assert_array_equal(drawing.board(cells), picture)


def test_drawings_of_classic_control() -> None:
    """Angles and positions point where the equations of motion say."""
    names = ("cartpole", "acrobot", "pendulum", "mountain_car")
    params = {name: make(f"gymnax/{name}", {})._params for name in names}

    def draw(name: str, **state: float) -> np.ndarray:
        picture = getattr(drawing, name)(SimpleNamespace(**state), params[name])
        assert picture.dtype == np.uint8 and picture.shape[0] == 320 and picture.shape[1] % 2 == 0
        return picture

    left, right = (draw("cartpole", x=x, theta=theta) for x, theta in [(-1.2, 0.2), (1.2, -0.2)])
    assert centre(left, BLUE)[0] == pytest.approx(0.5 - 1.2 / 5.28, abs=0.01)
    assert centre(left, ORANGE)[0] > centre(left, BLUE)[0] and centre(right, ORANGE)[0] < centre(right, BLUE)[0]

    hanging = draw("acrobot", joint_angle1=0.0, joint_angle2=0.0)
    assert centre(hanging, ORANGE)[1] < centre(hanging, BLUE)[1] < 0.5
    bent = draw("acrobot", joint_angle1=np.pi / 2, joint_angle2=np.pi / 2)
    assert centre(bent, BLUE)[0] > 0.58 and centre(bent, ORANGE)[1] > 0.55

    upright, sideways = (draw("pendulum", theta=theta, last_u=0.0) for theta in (0.0, np.pi / 2))
    assert centre(upright, ORANGE)[1] > 0.6 and abs(centre(upright, ORANGE)[0] - 0.5) < 0.01
    assert centre(sideways, ORANGE)[0] < 0.4 and abs(centre(sideways, ORANGE)[1] - 0.5) < 0.01

    valley, hill = (draw("mountain_car", position=x) for x in (-np.pi / 6, 0.3))
    assert centre(valley, ORANGE)[1] < 0.2 < 0.6 < centre(hill, ORANGE)[1]
    assert centre(valley, ORANGE)[0] < centre(hill, ORANGE)[0]


BALL = """<mujoco><worldbody><camera pos='0 -3 0' xyaxes='1 0 0 0 0 1'/><body><joint type='slide' axis='1 0 0'/>
<joint type='slide' axis='0 0 1'/><geom size='0.2' rgba='1 0 0 1'/></body></worldbody></mujoco>"""


def test_mujoco_draws_bodies_where_they_are() -> None:
    mujoco = pytest.importorskip("mujoco")
    try:
        renderer = drawing.mujoco_renderer(mujoco.MjModel.from_xml_string(BALL), lambda state: state, 30.0)
    except ConfigError as error:
        pytest.skip(str(error))
    middle, right, up = (renderer.draw(np.array(qpos)) for qpos in [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5)])
    for picture, x, y in [(middle, 0, 0), (right, 1, 0), (up, 0, 1)]:
        assert picture.shape == (480, 480, 3) and picture.dtype == np.uint8
        rows, columns = np.nonzero(picture[..., 0] > 50)
        shift = 0.5 / 3 / (2 * np.tan(np.radians(22.5))) * 480  # of a field of view of 45 degrees, 3 metres away
        assert columns.mean() - 240 == pytest.approx(x * shift, abs=4)
        assert 240 - rows.mean() == pytest.approx(y * shift, abs=4)

    for qpos in [(0.0, 0.0), (0.5, 0.0)]:  # replacing a renderer, as another film does, harms none
        renderer = drawing.mujoco_renderer(mujoco.MjModel.from_xml_string(BALL), lambda state: state, 30.0)
        np.testing.assert_array_equal(renderer.draw(np.array(qpos)), middle if qpos[0] == 0 else right)


def test_pace_of_envpool_is_gymnasiums() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("mujoco")
    envpool = pytest.importorskip("stellaris_jax.envs.suites.envpool")
    for task in envpool.TIMESTEP:
        reference = gymnasium.make(f"{task}-v5").unwrapped
        assert make(f"envpool/{task}-v5", {}).steps_per_second == pytest.approx(1 / reference.dt), task
    assert make("envpool/Pong-v5", {}).steps_per_second == pytest.approx(15)


def refused(sentence: str, mine: Trainer, path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        film(mine, path)
    assert "\n" not in str(caught.value)
    assert list(path.parent.glob(f"*{path.stem}*{path.suffix}*")) == []


def test_mistakes_are_one_sentence(cartpole: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(r"must end in \.mp4 or \.gif", cartpole, tmp_path / "film.avi")
    refused("diagnostic/.* cannot be drawn", trainer("diagnostic/action_reward"), tmp_path / "film.gif")
    refused("PointRobot-misc cannot be drawn", trainer("gymnax/PointRobot-misc"), tmp_path / "film.gif")
    stacked = trainer("diagnostic/action_reward", "env.frame_stack=2")
    refused("diagnostic/.* cannot be drawn", stacked, tmp_path / "film.gif")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "imageio_ffmpeg", None)
        refused(r"pip install 'stellaris-jax\[video\]'", cartpole, tmp_path / "film.mp4")


def test_envpool_tasks_without_pictures(tmp_path: Path) -> None:
    """envpool says so at the first picture: a film of that name from before stays."""
    pytest.importorskip("envpool")
    mine = trainer("envpool/Blackjack-v1")
    (tmp_path / "film.gif").write_text("old")
    with pytest.raises(ConfigError, match=r"envpool/Blackjack-v1 cannot be drawn: render not implemented"):
        film(mine, tmp_path / "film.gif")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("film.gif", "old")]
    mine.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is OpenGL without EGL")
def test_missing_opengl_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    mujoco = pytest.importorskip("mujoco")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setitem(sys.modules, "mujoco.egl", None)
    with pytest.raises(ConfigError, match="apt-get install libegl1"):
        drawing.mujoco_renderer(mujoco.MjModel.from_xml_string(BALL), lambda state: state, 30.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "every", "shape"),
    [
        ("envpool/Hopper-v4", 4, (480, 480, 3)),
        ("envpool/SpaceInvaders-v5", 1, (420, 320, 3)),
        ("brax/inverted_pendulum", 2, (480, 480, 3)),
    ],
)
def test_simulators_are_filmed(tmp_path: Path, env: str, every: int, shape: tuple[int, ...]) -> None:
    pytest.importorskip(env.partition("/")[0])
    mine = trainer(env)
    played = film(mine, tmp_path / "film.mp4")
    frames = iio.imread(tmp_path / "film.mp4")
    assert frames.shape == (1 + -(-played.lengths[0, 0] // every), *shape)
    assert (frames[0] != frames[-1]).any()
    mine.close()


def test_script_evaluates_and_films_a_run(tmp_path: Path) -> None:
    run_dir, out = tmp_path / "run", tmp_path / "film.mp4"
    settings = ["env=gymnax/cartpole", "env.num_envs=8", "algorithm.rollout_length=32", "network.hidden=[8]"]
    settings += ["evaluation.greedy=false", "total_steps=256", "run.progress=false", f"run.dir={run_dir}"]
    train(load_config(settings))

    # Actions are chosen as the run's own evaluations choose them, unless a flag says otherwise.
    own, sampled, greedy = (
        call("evaluate.py", run_dir, "--episodes", 8, "--json", *flags).stdout
        for flags in ([], ["--sample"], ["--greedy"])
    )
    assert own == sampled != greedy and json.loads(own)["episodes"] == json.loads(greedy)["episodes"] == 8

    command = [sys.executable, "scripts/evaluate.py", str(run_dir), "--video", str(out), "--video-episodes", "2"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 0 and "fork" not in result.stderr
    where, *episodes = result.stdout.splitlines()
    assert where.endswith(str(out)) and len(iio.imread(out)) > 2
    lengths = [int(line.rpartition(" ")[2]) for line in episodes]
    assert episodes == [f"return {length:.2f}, length {length}" for length in lengths] and len(lengths) == 2

    result = call("evaluate.py", run_dir, "--video", tmp_path / "film.avi")
    assert result.returncode == 2 and result.stderr == f"error: --video={tmp_path}/film.avi must end in .mp4 or .gif.\n"
