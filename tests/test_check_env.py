"""`check_env`: one environment that is wrong for each of its sentences, right ones beside them, and its command."""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_env import Clockwork, ClockworkPool

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.cli import check_env as cli
from stellaris_jax.envs import AutoResetEnv, Box, Discrete, MultiBinary, MultiDiscrete, check_env, make, register
from stellaris_jax.envs.base import HostStep, TimeStep
from stellaris_jax.envs.check import CheckWarning
from stellaris_jax.envs.shapes import NUM


class Line(AutoResetEnv):
    """A random walk that is truncated after 6 steps and terminates at 2; observes the place and the steps."""

    name = "test/line"
    observation_space: Any = Box((2,), (-9.0,) * 2, (9.0,) * 2)
    action_space: Any = Discrete(2)
    max_episode_steps: Any = 6
    start_pool = 4

    def reset_one(self, key: Any) -> Any:
        place = jax.random.uniform(key, minval=-1.0)
        return (place, jnp.int32(0)), jnp.stack([place, 0.0])

    def step_one(self, key: Any, state: Any, action: Any) -> Any:
        place, steps = state
        place, steps = place + jax.random.uniform(key, minval=-1.0), steps + 1
        return (place, steps), jnp.stack([place, steps]), place, place > 2, steps >= 6


class Still(Line):
    """Terminates with the time limit, as a task of a fixed length may."""

    def step_one(self, *given: Any) -> Any:
        state, obs, reward, _, over = super().step_one(*given)
        return state, obs, reward, over, False


def line(**changes: Any) -> Line:
    """The walk with other attributes or methods."""
    return type("Changed", (Line,), changes)()


def clockwork(**changes: Any) -> Clockwork:
    """The host environment, with other methods of its pools (`pool_...`) or other attributes."""
    pool_changes = {key.removeprefix("pool_"): changes.pop(key) for key in list(changes) if key.startswith("pool_")}
    pool = type("ChangedPool", (ClockworkPool,), pool_changes)
    changes.setdefault("open", lambda self, num_envs, seed, evaluation=False: pool(self, num_envs, seed))
    changes.setdefault("max_episode_steps", 9)
    return type("Changed", (Clockwork,), changes)()


def says(env: Any, sentence: str) -> None:
    """The error is one line that names the environment."""
    with pytest.raises(ConfigError, match=sentence) as error:
        check_env(env)
    assert re.fullmatch(r"env\.name=\S+ [^\n]+[^.]\.", str(error.value))


@pytest.mark.parametrize(
    "env",
    [line(), clockwork(), line(max_episode_steps=None), clockwork(max_episode_steps=None)],
    ids=["jax", "host", "jax without a limit", "host without a limit"],
)
def test_nothing_is_said_of_what_is_right(env: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


def test_bounds_are_one_number_or_one_for_each_element() -> None:
    flat = Box((2, 3), (0.0,) * 6, (1.0,) * 6)
    given: list[Any] = [0, 0.0, np.zeros((2, 3)), jnp.zeros((2, 3)), [[0.0] * 3] * 2]
    for low in given:
        assert Box((2, 3), low, np.float32(1.0)) == flat and hash(Box([2, 3], low, 1.0)) == hash(flat)
    assert MultiDiscrete([3, 2]) == MultiDiscrete(np.array([3, 2])) == MultiDiscrete((3, 2))
    check_env(line(observation_space=Box((2,), -9, [9.0, 9.0]), action_space=MultiDiscrete([3])))


UNBOUNDED = float("inf")
DECLARED: list[tuple[dict[str, Any], str]] = [
    ({"step": None, "starts": None}, "has no method starts or step of a VecEnv, and no open of a HostEnv"),
    ({"name": 3}, "has a name that is no text: 3"),
    ({"max_episode_steps": "9"}, "has max_episode_steps='9', not an integer of at least 1, or None for no time limit"),
    ({"max_episode_steps": 2.5}, "has max_episode_steps=2.5, not an integer"),
    ({"observation_space": Discrete(3)}, "as observation_space a stellaris_jax.envs.Discrete, not a .*envs.Box"),
    ({"observation_space": Box((), (), ())}, r"has in observation_space the shape \(\), not a tuple of integers"),
    ({"observation_space": Box((2,), (0.0,), (1.0,) * 2)}, "in observation_space as low 1, not a tuple of 2 numbers"),
    ({"observation_space": Box((2,), (0.0,) * 2, "11")}, "as high a str, not a tuple of 2 numbers"),
    ({"observation_space": Box((1,), (1.0,), (0.0,))}, "in observation_space a lower bound above the upper one"),
    ({"observation_space": Box((1,), (0.0,), (1.0,), "int8")}, "the dtype 'int8', not float32 or uint8"),
    ({"action_space": range(3)}, "as action_space a builtins.range, not a Discrete, MultiDis"),
    ({"action_space": Discrete(0)}, r"action_space=Discrete\(n=0\), whose n must be"),
    ({"action_space": MultiBinary(1.5)}, r"action_space=MultiBinary\(n=1.5\), whose n must be"),
    ({"action_space": MultiDiscrete((2, 0))}, r"nvec=\(2, 0\)\), whose nvec must be a tuple of integers from 1"),
    ({"action_space": Box((1, 2), (0.0,) * 2, (1.0,) * 2)}, r"has actions of shape \(1, 2\), where a Box must"),
]


@pytest.mark.parametrize(("changes", "sentence"), DECLARED, ids=[sentence for _, sentence in DECLARED])
def test_what_is_declared(changes: dict[str, Any], sentence: str) -> None:
    says(line(**changes), sentence)


def test_attributes_that_are_missing() -> None:
    class Bare:
        name = "test/bare"
        reset = starts = step = lambda self: None
        observation_space = Line.observation_space

    says(Bare(), "has no attribute action_space")


def changed_reset(change: Any) -> dict[str, Any]:
    return {"reset_one": lambda self, key: change(*Line.reset_one(self, key))}


def changed_step(change: Any) -> dict[str, Any]:
    """`change(state, obs, reward, terminated, truncated)`."""
    return {"step_one": lambda self, *given: change(*Line.step_one(self, *given))}


def changed_batch(change: Any) -> dict[str, Any]:
    """`change(state, TimeStep)` of all environments."""
    return {"step": lambda self, *given: change(*Line.step(self, *given))}


TRACED: list[tuple[dict[str, Any], str]] = [
    (changed_reset(lambda state, obs: 1 / 0), "cannot be traced by JAX: its reset_one fails .ZeroDivisionError"),
    (changed_reset(lambda state, obs: obs), r"does not return \(state, observation\) from reset_one"),
    (changed_reset(lambda state, obs: (state, 0.0)), "observation of .* from reset_one, not of .2,., the shape"),
    (changed_reset(lambda state, obs: (state, obs[:1])), r"of shape \(1,\) from reset_one, not of \(2,\), the shape"),
    (changed_step(lambda *all: all[:4]), "does not return .state, observation, reward, .* from step_one"),
    (changed_step(lambda state, _, *rest: (state, jnp.ones(3), *rest)), r"shape \(3,\) from step_one, not of \(2,\)"),
    (changed_step(lambda s, o, _, *ends: (s, o, o, *ends)), r"reward of shape \(2,\) from step_one, not of \(\)"),
    (changed_step(lambda s, o, r, terminated, t: (s, o, r, o, t)), r"terminated of shape \(2,\) from step_one"),
    (changed_step(lambda s, o, r, t, truncated: (s, o, r, t, o)), r"truncated of shape \(2,\) from step_one"),
    (changed_step(lambda state, *rest: (state[0], *rest)), "from step_one a state of another structure than"),
    (
        changed_step(lambda state, *rest: ((jnp.ones(2), state[1]), *rest)),
        r"from step_one a state\[0\] of float32\[2\], which was float32\[\] at its reset",
    ),
    (
        {"reset": lambda self, keys: (Line.reset(self, keys)[0], jnp.zeros((3, 2)))},
        r"observations of shape \(3, 2\) from reset for 4 environments, not of \(4, 2\)",
    ),
    (
        {"reset": lambda self, keys: ((jnp.zeros(1),), Line.reset(self, keys)[1])},
        r"has in its state\[0\] the shape \(1,\), not \(4, ...\), for 4 keys",
    ),
    (
        {"reset": lambda self, keys: (Line.reset(self, keys)[0], jnp.zeros((4, 2), jnp.uint8))},
        "returns observations of dtype uint8 from reset, not float32",
    ),
    (changed_batch(lambda state, step: (state, tuple(step))), "from step as second a tuple, not a .*TimeStep"),
    (changed_batch(lambda state, step: step), r"does not return \(state, TimeStep\) from step"),
    (
        changed_batch(lambda state, step: (state, step._replace(final_obs=step.reward))),
        r"returns final_obs of shape \(4,\) from step for 4 environments, not of \(4, 2\)",
    ),
    (
        changed_batch(lambda state, step: (state, step._replace(terminated=step.reward))),
        "returns terminated of dtype float32 from step, not bool",
    ),
    (
        changed_batch(lambda state, step: ((state[1], state[1]), step)),
        r"from step a state\[0\] of int32\[4\], which was float32\[4\] at its reset",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), TRACED, ids=[sentence for _, sentence in TRACED])
def test_what_jax_makes_of_it(changes: dict[str, Any], sentence: str) -> None:
    says(line(**changes), sentence)


def unreset(env: Line, keys: Any, state: Any, action: Any, starts: Any) -> Any:
    """A step without a reset."""
    state, obs, reward, terminated, truncated = jax.vmap(env.step_one)(keys, state, action)
    return state, TimeStep(obs, reward, terminated, truncated, obs)


def half_reset(env: Line, keys: Any, state: Any, action: Any, starts: Any) -> Any:
    """A step that shows a new episode and goes on with the old one."""
    shown = Line.step(env, keys, state, action, starts)[1]
    return unreset(env, keys, state, action, starts)[0], shown


STEPPED: list[tuple[dict[str, Any], str]] = [
    (changed_reset(lambda state, obs: (state, obs / 0)), "begins an episode with an observation that is not finite"),
    (changed_step(lambda s, o, r, *ends: (s, o, np.random.normal(), *ends)), "gives other episodes for the same keys"),
    (
        changed_batch(lambda state, step: (state, step._replace(obs=step.obs + 1))),
        "returns an obs other than final_obs from a step that ends no episode",
    ),
    ({"step": unreset}, "shows one observation twice where an episode ends"),
    (
        changed_batch(lambda state, step: (state, step._replace(final_obs=step.obs))),
        "shows one observation twice where an episode ends",
    ),
    ({"step": half_reset}, "ends every episode but the first with its first step"),
    ({"max_episode_steps": 5}, "goes on for more steps than max_episode_steps=5"),
]


@pytest.mark.parametrize(("changes", "sentence"), STEPPED, ids=[str(i) for i in range(len(STEPPED))])
def test_what_it_does(changes: dict[str, Any], sentence: str) -> None:
    says(line(**changes), sentence)


def test_what_is_seldom_meant_is_a_warning() -> None:
    small = Box((2,), (-9.0, 0.0), (9.0, 3.0))
    with pytest.warns(CheckWarning, match="test/line observes what is out of the bounds of observation_space"):
        check_env(line(observation_space=small))
    with pytest.warns(CheckWarning, match="test/line is terminated, not truncated, at max_episode_steps=6"):
        check_env(Still())


def test_what_random_actions_earn() -> None:
    """A point a step for six steps, in both protocols: six, whatever the actions."""

    def paid(self: Any, *given: Any) -> Any:
        state, obs, _, _, over = Line.step_one(self, *given)
        return state, obs, jnp.float32(1), False, over

    found = check_env(line(step_one=paid))
    assert set(found.steps) == set(found.returns) == {6.0} and len(found.returns) >= NUM and not found.unfinished
    found = check_env(clockwork())
    lengths = (np.sqrt(8 * found.returns + 1) - 1) / 2  # the host environment pays 1, 2, 3 and so on
    assert set(lengths) == {3, 4, 5, 6} and found.steps == pytest.approx(lengths) and not found.unfinished


# Host environments -------------------------------------------------------------------------------------------------


def changed_recv(change: Any) -> dict[str, Any]:
    """`change(pool, HostStep)` of what pools return."""
    return {"pool_recv": lambda self: change(self, ClockworkPool.recv(self))}


def same_step(pool: ClockworkPool, step: HostStep) -> HostStep:
    """Pays in the dead step."""
    return step._replace(reward=step.reward + (pool.count > 0))


def moved(pool: ClockworkPool, action: np.ndarray) -> None:
    """Steps all environments, whichever take part."""
    ClockworkPool.send(pool, np.zeros(len(pool.lengths), int))
    pool.next = HostStep(*(column[: len(action)] for column in pool.next))


def heeds(pool: ClockworkPool, action: np.ndarray) -> None:
    """The action of a dead step picks what is observed first."""
    dead = pool.over[: len(action)].copy()
    ClockworkPool.send(pool, action)
    pool.next.obs[:, 3] = np.where(dead, action, 1)


def stuck(pool: ClockworkPool, action: np.ndarray) -> None:
    """A dead step returns what the last episode ended with."""
    dead, before = pool.over[: len(action)].copy(), pool.next.obs
    ClockworkPool.send(pool, action)
    if len(before) == len(action):
        pool.next.obs[dead] = before[dead]


def entangled(pool: ClockworkPool, action: np.ndarray) -> None:
    """How many take part shows in what the first ones observe."""
    ClockworkPool.send(pool, action)
    pool.next.obs[:, 3] = len(action)


def wide(pool: ClockworkPool, step: HostStep) -> HostStep:
    return HostStep(*(np.resize(column, (4, *column.shape[1:])) for column in step))


POOLS: list[tuple[dict[str, Any], str]] = [
    ({"open": lambda self, num_envs, seed: [].clear()}, "opens a pool that has no method send or recv or close"),
    ({"open": lambda self, num_envs: 0}, "cannot be opened .TypeError: .*positional"),
    (
        {"pool_send": lambda self, action: 1 / 0},
        r"fails when it is stepped .Zero.*; /.*/test_check_env.py, line \d+",
    ),
    (changed_recv(lambda pool, step: tuple(step)), "returns from recv a tuple, not a .*HostStep"),
    (changed_recv(lambda pool, step: step._replace(obs=step.obs[:, :3])), r"obs of shape \(4, 3\) from recv for 4 env"),
    (changed_recv(lambda pool, step: step._replace(obs=step.obs.astype(float))), "obs of dtype float64 from recv"),
    (changed_recv(lambda pool, step: step._replace(reward=0.0)), "reward of a float from recv for 4"),
    (changed_recv(lambda pool, step: step._replace(truncated=step.truncated * 1)), "truncated of dtype int"),
    (changed_recv(lambda pool, step: step._replace(reward=step.reward + 1)), "a reward or an end with the first obs"),
    (changed_recv(same_step), "a reward or an end from the step after an episode's end"),
    ({"pool_send": heeds}, "lets an action change what comes from the step after an episode's end"),
    ({"pool_send": stuck}, "shows one observation twice where an episode ends"),
    ({"pool_send": moved}, "steps environments of a pool that take no part"),
    ({"pool_send": entangled}, "steps the first environments of a pool otherwise where the rest take no part"),
    (changed_recv(wide), "returns obs of shape .4, 4. from recv for 2 environments, not of .2, 4."),
    (
        changed_recv(lambda pool, step: step._replace(obs=step.obs + np.float32(np.random.normal()))),
        "gives other episodes for the same seed",
    ),
    ({"max_episode_steps": 5}, "goes on for more steps than max_episode_steps=5"),
]


def test_wrong_returns_of_a_jax_environment_come_with_file_and_line() -> None:
    class Wide(Line):
        def reset_one(self, key: Any) -> Any:
            return (jnp.float32(0), jnp.int32(0)), jnp.zeros(3)

    class Short(Line):
        def step_one(self, *given: Any) -> Any:
            return super().step_one(*given)[:4]

    place = r"; /.*/test_check_env\.py, line "
    for env in (Wide(), Short()):
        method = "reset_one" if isinstance(env, Wide) else "step_one"
        says(env, rf"from {method}.*{place}{getattr(type(env), method).__code__.co_firstlineno}\.")


@pytest.mark.parametrize(("changes", "sentence"), POOLS, ids=[sentence for _, sentence in POOLS])
def test_what_pools_do(changes: dict[str, Any], sentence: str) -> None:
    says(clockwork(**changes), sentence)


# Where it runs -----------------------------------------------------------------------------------------------------


def test_making_an_environment_checks_what_is_cheap() -> None:
    """A wrong shape and a missing time limit are told before a network is made of them."""
    for changes, sentence in ((TRACED[3]), (DECLARED[2]), (TRACED[12])):
        register("test/changed", lambda changes=changes: line(**changes))  # type: ignore[misc]
        with pytest.raises(ConfigError, match=sentence):
            make("test/changed", {})
    register("test/changed", lambda: clockwork(max_episode_steps=0))
    with pytest.raises(ConfigError, match="max_episode_steps=0"):
        make("test/changed", {})


def test_the_command_tells_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    register("test/still", Still)
    cli.main(["test/still"])
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "test/line: no fault found" and "at most 6 steps" in out
    pattern = r"^random actions return -?[\d.]+ ± [\d.]+ per episode, of [\d.]+ steps \(means over \d+\)$"
    assert re.search(pattern, out, re.M)
    playing, warning = err.splitlines()
    assert playing == "playing test/line with random actions"
    assert warning.startswith("warning: env.name=test/line is terminated")
    register("test/broken", lambda length: line(max_episode_steps=length))
    with pytest.raises(SystemExit) as end:
        cli.main(["test/broken", "env.kwargs.length=5"])
    out, err = capsys.readouterr()
    assert end.value.code == 2 and not out
    assert err.splitlines()[-1].startswith("error: env.name=test/line goes on for more steps") and err.count("\n") == 2


def test_the_command_names_the_line_that_raises(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the user's own file, whether the environment fails when it is made, traced or stepped; without a traceback."""
    raising = "def broken(*given):\n    return [1, 2][len(given) + 2]\n"
    (tmp_path / "mine.py").write_text(raising)
    monkeypatch.syspath_prepend(tmp_path)
    broken = importlib.import_module("mine").broken
    register("test/unmade", broken)
    register("test/untraced", lambda: line(reset_one=lambda self, key: broken(key)))
    register("test/unstepped", lambda: clockwork(pool_send=lambda self, action: broken(action)))
    for name in ("unmade", "untraced", "unstepped"):
        with pytest.raises(SystemExit) as end:
            cli.main([f"test/{name}"])
        out, err = capsys.readouterr()
        last = err.splitlines()[-1]
        assert end.value.code == 2 and not out and "Traceback" not in err
        assert last.startswith("error: env.name=test/")
        assert last.endswith(f"(IndexError: list index out of range; {tmp_path}/mine.py, line 2).")
