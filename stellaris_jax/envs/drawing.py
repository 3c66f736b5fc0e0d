"""Pictures of environment states: MuJoCo models, boards of cells, and the mechanisms of classic control.

A picture is a uint8 array `[H, W, 3]`. Drawing needs no display and no GPU.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs.base import EnvState

SIDE = 480  # height and width of MuJoCo's pictures, in pixels
NO_GL = (
    "pictures of MuJoCo need OpenGL without a display (EGL): on Debian and Ubuntu apt-get install libegl1 "
    "libgl1-mesa-dri, elsewhere choose another kind with MUJOCO_GL=osmesa or MUJOCO_GL=glfw"
)

Point = tuple[float, float]
BACKGROUND, INK, BODY, ACCENT, GOAL = "white", "#444444", "#0072B2", "#D55E00", "#009E73"


class Renderer(NamedTuple):
    """Renderer of one environment's states.

    Attributes:
      draw: function from a state to a picture.
      steps_per_second: environment steps per second of real time.
    """

    draw: Callable[[EnvState], np.ndarray]
    steps_per_second: float


def not_drawn(name: str) -> ConfigError:
    """Error for an environment that cannot be drawn."""
    return ConfigError(
        f"env.name={name} cannot be drawn; those that can are envpool's, mjx's, brax's, playground's, and of gymnax "
        "classic control and boards such as MinAtar."
    )


# MuJoCo ------------------------------------------------------------------------------------------------------------


def mujoco_renderer(model: Any, qpos: Callable[[EnvState], Any], steps_per_second: float) -> Renderer:
    """Renderer of the bodies of a `mujoco.MjModel`.

    The view is the model's first camera, or a free camera that shows the whole model. Shadows and reflections are left
    out: without a GPU they cost three times the rest.

    Args:
      model: the MuJoCo model.
      qpos: function from a state to generalised positions `[nq]`.
      steps_per_second: environment steps per second of real time.

    Raises:
      ConfigError: OpenGL is not available.
    """
    import mujoco

    model.vis.global_.offwidth = max(SIDE, model.vis.global_.offwidth)
    model.vis.global_.offheight = max(SIDE, model.vis.global_.offheight)
    if not model.nlight:
        model.vis.headlight.ambient[:] = 0.5
    gl = _gl_context()
    data, scene, options = mujoco.MjData(model), mujoco.MjvScene(model, maxgeom=10_000), mujoco.MjvOption()
    scene.flags[[mujoco.mjtRndFlag.mjRND_SHADOW.value, mujoco.mjtRndFlag.mjRND_REFLECTION.value]] = 0
    context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
    mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, context)
    view, frame = mujoco.MjvCamera(), mujoco.MjrRect(0, 0, SIDE, SIDE)
    mujoco.mjv_defaultFreeCamera(model, view)
    if model.ncam:
        view.type, view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED.value, 0

    def draw(state: EnvState) -> np.ndarray:
        gl.make_current()
        data.qpos[:] = np.asarray(qpos(state))
        mujoco.mj_fwdPosition(model, data)
        mujoco.mjv_updateScene(model, data, options, None, view, mujoco.mjtCatBit.mjCAT_ALL.value, scene)
        mujoco.mjr_render(frame, scene, context)
        pixels = np.empty((SIDE, SIDE, 3), np.uint8)
        mujoco.mjr_readPixels(pixels, None, frame, context)
        return pixels[::-1]  # OpenGL counts rows from below

    def release() -> None:
        # Free the renderer's resources in its own OpenGL context, or the current context would be damaged.
        gl.make_current()
        context.free()
        gl.free()

    weakref.finalize(draw, release).atexit = False
    return Renderer(draw, steps_per_second)


def _gl_context() -> Any:
    """Current OpenGL context from MuJoCo: EGL on Linux unless `MUJOCO_GL` is set; MuJoCo's default needs a display."""
    try:
        if sys.platform == "linux" and not os.environ.get("MUJOCO_GL"):
            from mujoco.egl import GLContext
        else:
            from mujoco import GLContext
        context = GLContext(SIDE, SIDE)
        context.make_current()
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise ConfigError(f"{NO_GL} ({error}).") from error
    return context


# Boards ------------------------------------------------------------------------------------------------------------


def board(cells: np.ndarray) -> np.ndarray:
    """Picture of a board `[H, W]` or `[H, W, C]`, one pixel per cell, one colour per channel, the first one on top."""
    import matplotlib

    channels = cells.reshape(*cells.shape[:2], -1) > 0
    colours = np.array([matplotlib.colormaps["tab10"](c % 10)[:3] for c in range(channels.shape[-1])])
    picture = np.where(channels.any(-1, keepdims=True), colours[channels.argmax(-1)], 0.0)
    return np.round(255 * picture).astype(np.uint8)


# Classic control ---------------------------------------------------------------------------------------------------


class Canvas:
    """Canvas: a white rectangle of the plane, `height` pixels high, with coordinates in the plane's units."""

    def __init__(self, left: float, right: float, bottom: float, top: float, height: int = 320):
        from PIL import Image, ImageDraw

        self._oversampling = 2  # smooths edges
        self._left, self._top = left, top
        self._scale = self._oversampling * height / (top - bottom)
        width = 2 * round(height * (right - left) / (top - bottom) / 2)
        self._image = Image.new("RGB", (self._oversampling * width, self._oversampling * height), BACKGROUND)
        self._pen = ImageDraw.Draw(self._image)

    def _pixel(self, point: Point) -> Point:
        return (point[0] - self._left) * self._scale, (self._top - point[1]) * self._scale

    def disc(self, centre: Point, radius: float, colour: str) -> None:
        (x, y), r = self._pixel(centre), radius * self._scale
        self._pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)

    def polygon(self, points: Sequence[Point], colour: str) -> None:
        self._pen.polygon([self._pixel(point) for point in points], fill=colour)

    def line(self, points: Sequence[Point], width: float, colour: str) -> None:
        """Draw a polyline with round ends."""
        pixels = [self._pixel(point) for point in points]
        self._pen.line(pixels, fill=colour, width=max(1, round(width * self._scale)), joint="curve")
        for end in (points[0], points[-1]):
            self.disc(end, width / 2, colour)

    def picture(self) -> np.ndarray:
        return np.asarray(self._image.reduce(self._oversampling))


def cartpole(state: Any, params: Any) -> np.ndarray:
    """Picture of the cart on its track; the ends of the track are the limits of an episode."""
    edge, x, theta = float(params.x_threshold), float(state.x), float(state.theta)
    canvas = Canvas(-1.1 * edge, 1.1 * edge, -0.25 * edge, 0.85 * edge)
    canvas.line([(-edge, 0), (edge, 0)], 0.03, INK)
    canvas.polygon([(x - 0.3, -0.15), (x + 0.3, -0.15), (x + 0.3, 0.15), (x - 0.3, 0.15)], BODY)
    pole = 2 * float(params.length)
    canvas.line([(x, 0.1), (x + pole * np.sin(theta), 0.1 + pole * np.cos(theta))], 0.1, ACCENT)
    return canvas.picture()


def acrobot(state: Any, params: Any) -> np.ndarray:
    """Picture of both links, and the height that the tip has to reach."""
    upper, lower = float(state.joint_angle1), float(state.joint_angle1 + state.joint_angle2)
    first, second = float(params.link_length_1), float(params.link_length_2)
    reach = 1.1 * (first + second)
    canvas = Canvas(-reach, reach, -reach, reach)
    canvas.line([(-reach, 1), (reach, 1)], 0.03, GOAL)
    elbow = (first * np.sin(upper), -first * np.cos(upper))
    tip = (elbow[0] + second * np.sin(lower), elbow[1] - second * np.cos(lower))
    canvas.line([(0, 0), elbow], 0.2, BODY)
    canvas.line([elbow, tip], 0.2, ACCENT)
    for joint in ((0.0, 0.0), elbow):
        canvas.disc(joint, 0.06, INK)
    return canvas.picture()


def pendulum(state: Any, params: Any) -> np.ndarray:
    """Picture of the rod (upright is the goal); a dot on the rim shows the torque as its distance from the top."""
    length, theta = float(params.l), float(np.squeeze(state.theta))
    torque = float(np.squeeze(state.last_u)) / float(params.max_torque)
    canvas = Canvas(-1.3 * length, 1.3 * length, -1.3 * length, 1.3 * length)
    canvas.line([(0, 0), (-length * np.sin(theta), length * np.cos(theta))], 0.2 * length, ACCENT)
    canvas.disc((0, 0), 0.05 * length, INK)
    canvas.disc((-1.2 * length * np.sin(torque), 1.2 * length * np.cos(torque)), 0.04 * length, BODY)
    return canvas.picture()


def mountain_car(state: Any, params: Any) -> np.ndarray:
    """Picture of the car in its valley, and the flag to reach."""

    def on_hill(x: float, above: float = 0.0) -> Point:
        return x, 0.45 * np.sin(3 * x) + 0.55 + above

    left, right = float(params.min_position), float(params.max_position)
    canvas = Canvas(left, right, 0.0, 1.2)
    canvas.line([on_hill(x) for x in np.linspace(left, right, 100)], 0.01, INK)
    flag = float(params.goal_position)
    canvas.line([on_hill(flag), on_hill(flag, 0.15)], 0.01, INK)
    canvas.polygon([on_hill(flag, 0.15), on_hill(flag, 0.09), (flag + 0.08, on_hill(flag, 0.12)[1])], GOAL)
    canvas.disc(on_hill(float(state.position), 0.045), 0.04, ACCENT)
    return canvas.picture()


# Drawing functions of gymnax's environments, and their steps per second.
CLASSIC_CONTROL: dict[str, tuple[Callable[[Any, Any], np.ndarray], float]] = {
    "CartPole-v1": (cartpole, 50.0),
    "Acrobot-v1": (acrobot, 15.0),
    "Pendulum-v1": (pendulum, 20.0),
    "MountainCar-v0": (mountain_car, 30.0),
    "MountainCarContinuous-v0": (mountain_car, 30.0),
}
BOARD_STEPS_PER_SECOND = 10.0
