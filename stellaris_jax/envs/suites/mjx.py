"""Adapter of mjx: gymnasium's MuJoCo v5 tasks on MJX, MuJoCo's physics in JAX.

The models are gymnasium's files, and observations, rewards, health, reset noise and options follow its
`*-v5` classes. Differences:

- Physics is in float32. Every step is simulated at the origin of the ground plane and moved back afterwards, because
  precision would drop far from the origin. The physics does not depend on the position on the plane.
- Humanoid's model requests the solver PGS, which MJX lacks; here it uses Newton.
- A simulation that diverges ends its episode with zeros for observation and reward.
- MuJoCo 4 aligns the friction pyramid of a capsule on the ground with the capsule. MJX 3.17 does so only if the
  capsule lies flatter than 60 degrees. For motion in a plane both are the same. For Ant, and for Humanoid after a
  fall, friction depends differently on its direction.

The table has the largest error of one step from MuJoCo's own state, by limits on the solver's iterations / line
searches. Actions are random actions, sinusoids and trained gaits (Hopper at 3 m/s, Walker2d at 2.8 m/s, HalfCheetah at
3.9 m/s).

| task | error of | model's own | 8/16 | 4/8 | 2/4 |
|---|---|---|---|---|---|
| Hopper-v5 | observation | 1.1e-4 | 1.1e-4 | 1.1e-4 | – |
| | reward | 1.0e-5 | 1.0e-5 | 1.0e-5 | – |
| Walker2d-v5 | observation | – | – | 1.0e-4 | – |
| | reward | – | – | 3.6e-6 | – |
| HalfCheetah-v5 | observation | 2.7e-4 | – | 2.7e-4 | 7.6 |
| | reward | 5.6e-6 | – | 5.6e-6 | 0.17 |
| Ant-v5, elliptic cones | observation | – | 4.6e-2 | 1.3 | – |
| | reward | – | 1.4e-4 | 2.3e-3 | – |

A dash means not measured. Ant's largest errors are those of contact forces. With Ant's own friction pyramids, errors
reach 3.1, but half of the steps are within 2e-4 at 8/16. Humanoid at 4/8 differs by at most 2.4e-3 of 1 + |o| until it
falls. So 4/8 loses no accuracy for motion in a plane, and Ant needs more; the default is the model's own limits.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import Array, Box
from stellaris_jax.envs.drawing import Renderer, mujoco_renderer
from stellaris_jax.envs.mujoco_warnings import warn_once
from stellaris_jax.envs.names import check_options, like, positive_int


@dataclass(frozen=True)
class Task:
    """Definition of a task.

    Attributes:
      model: file among gymnasium's models.
      frame_skip: physics steps per environment step.
      ground: number of leading positions that place the robot on the ground: x, or x and y. The height follows.
      options: gymnasium's keyword arguments with its defaults. The task has no terms for missing options.
      forward: point whose x the forward reward measures: the root `joint`, the first `body`, or the `mass` centre.
      velocity_noise: distribution of the velocities at a reset, `uniform` or `normal`.
      velocity_limit: clip of observed velocities, in m/s and rad/s.
    """

    model: str
    frame_skip: int
    ground: int
    options: Mapping[str, Any]
    forward: str = "joint"
    velocity_noise: str = "uniform"
    velocity_limit: float = math.inf


SHARED = {"forward_reward_weight": 1.0, "exclude_current_positions_from_observation": True}
LEGGED = SHARED | {"healthy_reward": 1.0, "terminate_when_unhealthy": True}

TASKS = {
    "Hopper-v5": Task(
        model="hopper.xml",
        frame_skip=4,
        ground=1,
        velocity_limit=10.0,
        options=LEGGED
        | {
            "ctrl_cost_weight": 1e-3,
            "healthy_state_range": (-100.0, 100.0),
            "healthy_z_range": (0.7, math.inf),
            "healthy_angle_range": (-0.2, 0.2),
            "reset_noise_scale": 5e-3,
        },
    ),
    "Walker2d-v5": Task(
        model="walker2d_v5.xml",
        frame_skip=4,
        ground=1,
        velocity_limit=10.0,
        options=LEGGED
        | {
            "ctrl_cost_weight": 1e-3,
            "healthy_z_range": (0.8, 2.0),
            "healthy_angle_range": (-1.0, 1.0),
            "reset_noise_scale": 5e-3,
        },
    ),
    "HalfCheetah-v5": Task(
        model="half_cheetah.xml",
        frame_skip=5,
        ground=1,
        velocity_noise="normal",
        options=SHARED | {"ctrl_cost_weight": 0.1, "reset_noise_scale": 0.1},
    ),
    "Ant-v5": Task(
        model="ant.xml",
        frame_skip=5,
        ground=2,
        forward="body",
        velocity_noise="normal",
        options=LEGGED
        | {
            "ctrl_cost_weight": 0.5,
            "contact_cost_weight": 5e-4,
            "contact_force_range": (-1.0, 1.0),
            "healthy_z_range": (0.2, 1.0),
            "reset_noise_scale": 0.1,
            "include_cfrc_ext_in_observation": True,
        },
    ),
    "Humanoid-v5": Task(
        model="humanoid.xml",
        frame_skip=5,
        ground=2,
        forward="mass",
        options=LEGGED
        | {
            "forward_reward_weight": 1.25,
            "ctrl_cost_weight": 0.1,
            "contact_cost_weight": 5e-7,
            "contact_cost_range": (-math.inf, 10.0),
            "healthy_reward": 5.0,
            "healthy_z_range": (1.0, 2.0),
            "reset_noise_scale": 1e-2,
            "include_cinert_in_observation": True,
            "include_cvel_in_observation": True,
            "include_qfrc_actuator_in_observation": True,
            "include_cfrc_ext_in_observation": True,
        },
    ),
}

REFUSED: dict[str, str] = {}


def available() -> list[str]:
    """Names of the available tasks, as in gymnasium."""
    _library(), _models()
    return list(TASKS)


def make(name: str, **kwargs: Any) -> MjxEnv:
    """Task of a name; see `MjxEnv` for the arguments."""
    return MjxEnv(name, **kwargs)


class MjxState(NamedTuple):
    """Minimal state for the next step; MuJoCo derives the rest of its (large) state.

    Attributes:
      qpos: positions, `[nq]`.
      qvel: velocities, `[nv]`.
      warmstart: last accelerations, `[nv]`, from which the contact solver starts to save iterations.
      lead: x of the forward reward's point minus x of the root, in m. MuJoCo moves the bodies at the start of a
        physics step and the joints at its end, so this depends on earlier steps.
      steps: number of steps since the reset.
    """

    qpos: Array
    qvel: Array
    warmstart: Array
    lead: Array
    steps: Array


class MjxEnv(AutoResetEnv):
    """MJX version of a gymnasium MuJoCo task.

    Args:
      name: name in gymnasium, e.g. `Hopper-v5`.
      episode_length: steps after which an episode is truncated.
      start_pool: number of start states drawn per fragment.
      iterations: largest number of iterations of the contact solver; the model's by default.
      ls_iterations: largest number of iterations of the line search in each; the model's by default.
      frame_skip: physics steps per environment step.
      kwargs: gymnasium's arguments of the task (`healthy_reward`, `reset_noise_scale`, ...).

    Raises:
      ConfigError: an argument is unknown or has the wrong type.
    """

    max_episode_steps: int

    def __init__(
        self,
        name: str,
        *,
        episode_length: int = 1000,
        start_pool: int = 64,
        iterations: int | None = None,
        ls_iterations: int | None = None,
        frame_skip: int | None = None,
        **kwargs: Any,
    ):
        import mujoco

        self.name = f"mjx/{name}"
        self.max_episode_steps = positive_int("episode_length", episode_length)
        self.start_pool = positive_int("start_pool", start_pool)
        self._task = task = TASKS[name]
        options = ["episode_length", "start_pool", "iterations", "ls_iterations", "frame_skip"]
        check_options(self.name, kwargs, [*options, *task.options])
        given = {key: like(key, value, task.options[key]) for key, value in kwargs.items()}
        self._options = {**task.options, **given}
        self._frame_skip = task.frame_skip if frame_skip is None else positive_int("frame_skip", frame_skip)

        warn_once()
        model = mujoco.MjModel.from_xml_path(str(_models() / task.model))
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        if iterations is not None:
            model.opt.iterations = positive_int("iterations", iterations)
        if ls_iterations is not None:
            model.opt.ls_iterations = positive_int("ls_iterations", ls_iterations)
        self._mjx, self._drawn = _library(), model
        self._model = self._mjx.put_model(model, impl="jax")
        self._data = self._mjx.make_data(model, impl="jax")
        self._dt = self._frame_skip * model.opt.timestep

        size = jax.eval_shape(self.reset_one, jax.random.key(0))[1].size
        self.observation_space = Box((size,), (-math.inf,) * size, (math.inf,) * size)
        low, high = (tuple(bound.tolist()) for bound in model.actuator_ctrlrange.T)
        self.action_space = Box((model.nu,), low, high)

    def reset_one(self, key: Array) -> tuple[MjxState, Array]:
        positions, velocities = jax.random.split(key)
        scale = self._options["reset_noise_scale"]
        draw = jax.random.normal if self._task.velocity_noise == "normal" else _uniform
        qpos = self._model.qpos0 + scale * _uniform(positions, self._model.qpos0.shape)
        return self.begin(qpos, scale * draw(velocities, (self._model.nv,)))

    def begin(self, qpos: Array, qvel: Array) -> tuple[MjxState, Array]:
        """Start an episode at positions `[nq]` and velocities `[nv]` -> (state, observation)."""
        data = self._data.replace(qpos=qpos, qvel=qvel)
        for derive in (self._mjx.kinematics, self._mjx.com_pos, self._mjx.com_vel):
            data = derive(self._model, data)
        state = MjxState(qpos, qvel, jnp.zeros_like(qvel), self._forward(data) - qpos[0], jnp.int32(0))
        data = data.replace(qpos=qpos)  # undo MJX's normalisation of the quaternion: MuJoCo and gymnasium have none
        return state, self._observe(data, jnp.zeros((self._model.nbody, 6)))

    def step_one(self, key: Array, state: MjxState, action: Array) -> tuple[MjxState, Array, Array, Array, Array]:
        ground = self._task.ground
        data = self._data.replace(
            qpos=state.qpos.at[:ground].set(0.0), qvel=state.qvel, qacc_warmstart=state.warmstart, ctrl=action
        )
        data = jax.lax.fori_loop(0, self._frame_skip, lambda _, data: self._mjx.step(self._model, data), data)
        forward = self._forward(data)
        lead, velocity = forward - data.qpos[0], (forward - state.lead) / self._dt
        data = data.replace(qpos=data.qpos.at[:ground].add(state.qpos[:ground]))

        options = self._options
        healthy = self._healthy(data)
        reward = options["forward_reward_weight"] * velocity + options.get("healthy_reward", 0.0) * healthy
        reward -= options["ctrl_cost_weight"] * jnp.sum(action**2)
        forces = jnp.zeros((self._model.nbody, 6))
        if "contact_cost_weight" in options:
            forces = self._mjx.rne_postconstraint(self._model, data)._impl.cfrc_ext
            forces = jnp.clip(forces, *options.get("contact_force_range", (None, None)))
            cost = options["contact_cost_weight"] * jnp.sum(forces**2)
            reward -= jnp.clip(cost, *options.get("contact_cost_range", (None, None)))
        obs = self._observe(data, forces)

        finite = jnp.isfinite(obs).all() & jnp.isfinite(reward)
        steps = state.steps + 1
        terminated = (~healthy & options.get("terminate_when_unhealthy", False)) | ~finite
        state = MjxState(data.qpos, data.qvel, data.qacc_warmstart, lead, steps)
        obs, reward = jnp.where(finite, obs, 0.0), jnp.where(finite, reward, 0.0)
        return state, obs, reward, terminated, steps >= self.max_episode_steps

    def renderer(self) -> Renderer:
        """Renderer of the bodies. Raises ConfigError without OpenGL."""
        return mujoco_renderer(self._drawn, lambda state: state.qpos, 1 / float(self._dt))

    def _forward(self, data: Any) -> Array:
        """Coordinate x that the forward reward measures, in m."""
        if self._task.forward == "mass":
            return self._model.body_mass @ data.xipos[:, 0] / self._model.body_mass.sum()
        return data.xpos[1, 0] if self._task.forward == "body" else data.qpos[0]

    def _healthy(self, data: Any) -> Array:
        measured = {
            "healthy_state_range": jnp.concatenate([data.qpos, data.qvel])[2:],
            "healthy_z_range": data.qpos[self._task.ground],
            "healthy_angle_range": data.qpos[2],
        }
        inside = jnp.bool_(True)
        for key in measured.keys() & self._options.keys():
            low, high = self._options[key]
            inside &= jnp.all((low < measured[key]) & (measured[key] < high))
        return inside

    def _observe(self, data: Any, forces: Array) -> Array:
        """Observation; `forces` are the external forces on every body, `[nbody, 6]` (torque, force)."""
        skipped = self._task.ground if self._options["exclude_current_positions_from_observation"] else 0
        limit = self._task.velocity_limit
        parts = [data.qpos[skipped:], jnp.clip(data.qvel, -limit, limit)]
        # Leave out entries that are always zero: those of the world body, and the actuators' force on the root.
        derived = {
            "cinert": data._impl.cinert[1:],
            "cvel": data.cvel[1:],
            "qfrc_actuator": data.qfrc_actuator[6:],
            "cfrc_ext": forces[1:],
        }
        parts += [part for key, part in derived.items() if self._options.get(f"include_{key}_in_observation")]
        return jnp.concatenate([part.ravel() for part in parts])


def _uniform(key: Array, shape: tuple[int, ...]) -> Array:
    return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)


def _library() -> ModuleType:
    with contextlib.redirect_stdout(io.StringIO()):  # suppress the notice that Warp, which is not needed, is absent
        from mujoco import mjx
    return mjx


def _models() -> Any:
    """Folder of gymnasium's model files."""
    return importlib.resources.files("gymnasium") / "envs" / "mujoco" / "assets"
