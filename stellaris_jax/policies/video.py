"""Videos of a policy: the evaluator plays whole episodes while a camera records the environment."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import jax
import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import replacing
from stellaris_jax.engine.evaluate import Evaluation, HostEvaluator
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import Box, HostPool, HostStep, Space
from stellaris_jax.envs.drawing import Renderer, not_drawn

if TYPE_CHECKING:
    from stellaris_jax.execute.trainer import Trainer

FORMATS = (".mp4", ".gif")
MOST_FRAMES_PER_SECOND = 30.0
LEAST_HEIGHT = 320  # smaller pictures are enlarged by whole factors


class Stage(HostPool, Protocol):
    """Single environment with the interface of a pool and a camera."""

    def render(self) -> np.ndarray:
        """Picture `[H, W, 3]` uint8 of the state that `recv` returned last. Raises RuntimeError if there is none."""
        ...


@runtime_checkable
class Theatre(Protocol):
    """Environment that can be filmed: opens stages.

    Attributes:
      name: name of the environment.
      observation_space, action_space: spaces of the environment.
      max_episode_steps: time limit; `None` without one.
      steps_per_second: natural pace.
    """

    name: str
    observation_space: Box
    action_space: Space
    max_episode_steps: int | None
    steps_per_second: float

    def stage(self, seed: int) -> Stage: ...


def film(trainer: Trainer, path: str | Path, episodes: int = 1, stream: int = 0, seed: int | None = None) -> Evaluation:
    """Write a film of one seed's current policy; returns the evaluation of its episodes.

    Episodes are drawn from (seed, stream), (seed, stream + 1), ..., as in an evaluation; statistics are read, never
    updated. The film runs at the environment's own pace, with at most 30 frames a second, and shows each first and last
    state.

    Args:
      trainer: trainer of the run.
      path: file to write (.mp4 or .gif).
      episodes: number of episodes.
      stream: number of the first evaluation stream.
      seed: trained seed; the first by default.

    Raises:
      ConfigError: the seed is unknown, the file type is not supported, a package is missing, or the environment cannot
        be drawn.
    """
    path = checked(path)
    theatre = _theatre(trainer.env)
    place = trainer.place_of(seed)
    every = max(1, round(theatre.steps_per_second / MOST_FRAMES_PER_SECOND))
    params, normalizers = jax.tree.map(lambda x: x[place : place + 1], trainer.seed_states.learned)
    with _writer(path, theatre.steps_per_second / every) as write:
        evaluator = HostEvaluator(_Filmed(theatre, write, every), trainer.network, trainer.config, episodes=1)
        evaluations = [
            evaluator(params, normalizers, trainer.seeds[place : place + 1], stream + i) for i in range(episodes)
        ]
    return Evaluation(np.hstack([e.returns for e in evaluations]), np.hstack([e.lengths for e in evaluations]))


# Playing -----------------------------------------------------------------------------------------------------------


def _theatre(env: Any) -> Theatre:
    if isinstance(env, Theatre):
        return env
    if isinstance(env, AutoResetEnv):
        return _Drawn(env, env.renderer())
    raise not_drawn(env.name)


class _Drawn:
    """Theatre of a JAX environment, stepped singly and drawn from its states."""

    def __init__(self, env: AutoResetEnv, renderer: Renderer):
        self.name, self.max_episode_steps = env.name, env.max_episode_steps
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.draw, self.steps_per_second = renderer
        self.reset_one, self.step_one = jax.jit(env.reset_one), jax.jit(env.step_one)

    def stage(self, seed: int) -> Stage:
        return _DrawnStage(self, jax.random.key(seed))


class _DrawnStage:
    def __init__(self, theatre: _Drawn, key: jax.Array):
        self._theatre = theatre
        reset_key, self._key = jax.random.split(key)
        self._state, obs = theatre.reset_one(reset_key)
        self._result: tuple[Any, ...] = obs, 0.0, False, False

    def send(self, action: np.ndarray) -> None:
        self._key, key = jax.random.split(self._key)
        self._state, *self._result = self._theatre.step_one(key, self._state, action[0])

    def recv(self) -> HostStep:
        obs, reward, terminated, truncated = (np.asarray(x)[None] for x in self._result)
        return HostStep(obs.astype(np.float32), reward.astype(np.float32), terminated != 0, truncated != 0)

    def render(self) -> np.ndarray:
        return self._theatre.draw(self._state)

    def close(self) -> None:
        pass


class _Filmed:
    """`HostEnv` of one environment; its pools pass every `every`-th state's picture to `write`."""

    def __init__(self, theatre: Theatre, write: Callable[[np.ndarray], None], every: int):
        self.name, self.max_episode_steps = theatre.name, theatre.max_episode_steps
        self.observation_space, self.action_space = theatre.observation_space, theatre.action_space
        self._theatre, self._write, self._every = theatre, write, every

    def open(self, num_envs: int, seed: int, evaluation: bool = False) -> HostPool:
        return _FilmedPool(self._theatre.stage(seed), self._show, self._every)

    def _show(self, stage: Stage) -> None:
        try:
            picture = stage.render()
        except RuntimeError as error:
            raise ConfigError(f"env.name={self.name} cannot be drawn: {error}.") from error
        self._write(picture)


class _FilmedPool:
    def __init__(self, stage: Stage, show: Callable[[Stage], None], every: int):
        self._stage, self._show, self._every = stage, show, every
        self._steps = 0
        self.send, self.close = stage.send, stage.close

    def recv(self) -> HostStep:
        result = self._stage.recv()
        if self._steps % self._every == 0 or result.terminated[0] or result.truncated[0]:
            self._show(self._stage)
        self._steps += 1
        return result


# Writing -----------------------------------------------------------------------------------------------------------


def checked(path: str | Path) -> Path:
    """Path of a film, if it can be written; else raises ConfigError."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--video={path} must end in {' or '.join(FORMATS)}.")
    try:
        for package in ("imageio.v2", "imageio_ffmpeg", "PIL"):
            importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f"videos need the package {error.name}: pip install 'stellaris-jax[video]'") from error
    return path


@contextmanager
def _writer(path: Path, frames_per_second: float) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that appends a picture; the file appears once all are written."""
    import imageio.v2

    if path.suffix.lower() == ".gif":
        options: dict[str, Any] = {"mode": "I", "duration": 1000 / frames_per_second, "loop": 0, "bits": 8}
    else:
        options = {"fps": frames_per_second, "codec": "libx264", "macro_block_size": 2}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as fresh:
        writer: Any = imageio.v2.get_writer(fresh, **options)
        with warnings.catch_warnings(), writer as film:
            # The encoder is a separate process; the forked child only starts it.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            yield lambda picture: film.append_data(_enlarged(picture))


def _enlarged(picture: np.ndarray) -> np.ndarray:
    factor = -(-LEAST_HEIGHT // len(picture))
    return np.ascontiguousarray(picture.repeat(factor, axis=0).repeat(factor, axis=1))
