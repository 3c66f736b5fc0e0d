"""Registry of environments by name: `suite/name`, matched tolerantly, with clear errors for unknown names.

A suite is a module of this package. It has `available()`, the names that it can make; `REFUSED`, names that it
does not offer, each with the reason; and `make(name, **kwargs)`. If a name such as `module:id` may register more
names, `candidates(name)` returns the names to search. A suite is imported at its first use,
so a missing package is an error only when its suite is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import ModuleType
from typing import Any, NamedTuple

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register as kinds
from stellaris_jax.config.schema import plain, shown
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import AS_GIVEN, HostEnv, Preprocessing, VecEnv
from stellaris_jax.envs.names import match, raised, suggest
from stellaris_jax.envs.rescale import is_far, rescale
from stellaris_jax.envs.shapes import check_declared, check_traced
from stellaris_jax.envs.wrappers import Wrapper, preprocess


class Suite(NamedTuple):
    """Suite of environments: its module, and the installation that it needs."""

    module: str
    needs: str = "nothing"


_FOLDER = "stellaris_jax.envs.suites"
for _suite, _needs in {
    "brax": "the brax extra: pip install 'stellaris-jax[brax]'",
    "diagnostic": "nothing",
    "envpool": "the envpool extra: pip install 'stellaris-jax[envpool]'",
    "gymnasium": "the gymnasium extra: pip install 'stellaris-jax[gymnasium]'",
    "gymnax": "the packages gymnax and six: pip install 'gymnax>=1.0.1,<2' six",
    "mjx": "the mujoco extra: pip install 'stellaris-jax[mujoco]'",
    "tokens": "nothing",
    "playground": "the playground extra: pip install 'stellaris-jax[playground]'",
}.items():
    kinds.suite(_suite)(Suite(f"{_FOLDER}.{_suite}", _needs))
kinds.suite("job")(Suite("stellaris_jax.many.scheduler_job"))


def register(name: str, factory: Callable[..., VecEnv | HostEnv]) -> None:
    """Register an environment of your own as `env.name=<name>`, where `name` is `suite/name`.

    The suite may be a new one or an existing one. `factory` is called with `env.kwargs` as
    keyword arguments and returns a `VecEnv` (or a `HostEnv`). With `AutoResetEnv` as base class, you only write a
    reset and a step of one environment. Registering a name again replaces it. Example:

        class Corridor(AutoResetEnv):
            '''Walk from 0 to `length`; every step costs 1.'''

            name = "mine/corridor"
            observation_space = Box((1,), (0.0,), (float("inf"),))
            action_space = Discrete(2)
            max_episode_steps = 100

            def __init__(self, length: int = 10):
                self.length = length

            def reset_one(self, key):
                state = (jnp.int32(0), jnp.int32(0))
                return state, jnp.zeros(1)

            def step_one(self, key, state, action):
                position, steps = state
                position, steps = jnp.maximum(position + 2 * action - 1, 0), steps + 1
                obs = position[None].astype(jnp.float32)
                terminated, truncated = position >= self.length, steps >= self.max_episode_steps
                return (position, steps), obs, jnp.float32(-1), terminated, truncated

        register("mine/corridor", Corridor)

    Raises ConfigError if `name` is not of the form `suite/name`.
    """
    _split(name)
    kinds.environment.replace(name, factory)


def make(
    name: str,
    kwargs: Mapping[str, Any],
    preprocessing: Preprocessing = AS_GIVEN,
    wrappers: Sequence[str] = (),
    rescale_action: bool = False,
) -> VecEnv | HostEnv:
    """Environment of a name, with preprocessing and wrappers.

    Args:
      name: name of the environment, as for `resolve`.
      kwargs: arguments of the environment.
      preprocessing: options of the preprocessing.
      wrappers: names of registered wrappers, the first innermost.
      rescale_action: whether the outermost layer rescales actions from -1 to 1.

    Raises:
      ConfigError: the suite, environment or an argument is unknown, a package is missing, or the environment is
        unsuitable for training (checked without a step).
    """
    canonical = resolve(name)
    suite, env = canonical.split("/", 1)
    registered = kinds.environment.get(canonical)
    factory = registered or partial(_load(suite, name).make, env)
    try:
        made = factory(**plain(kwargs))
    except ConfigError:
        raise
    except Exception as error:  # suites raise many kinds of errors for invalid arguments
        if kwargs:
            what = f"env.kwargs={shown(kwargs)} cannot be used with {canonical}"
        elif registered is not None:
            what = f"env.name={canonical} cannot be made"
        else:
            raise
        raise ConfigError(f"{what} ({raised(error)}).") from error
    check_declared(made)
    if registered is not None and not isinstance(made, HostEnv):
        check_traced(made)  # tests check our own suites
    made = preprocess(made, preprocessing)
    for wrapper in wrappers:
        made = _wrapped(made, wrapper)
    return rescale(made) if rescale_action else made


def _wrapped(env: VecEnv | HostEnv, wrapper: str) -> VecEnv | HostEnv:
    """Environment in a registered wrapper, checked like a registered environment."""
    registered = kinds.wrapper[wrapper]
    if isinstance(registered, type) and issubclass(registered, Wrapper) and not isinstance(env, AutoResetEnv):
        advice = "; gymnasium's own are named by env.kwargs.wrappers=[gymnasium.wrappers.NAME]"
        raise ConfigError(
            f"env.wrappers={wrapper} is for environments in JAX that are derived from AutoResetEnv, not for {env.name}"
            f"{advice if env.name.startswith('gymnasium/') else ''}."
        )
    try:
        made: VecEnv | HostEnv = registered(env)
        check_declared(made)
        if not isinstance(made, HostEnv):
            check_traced(made)
    except ConfigError as error:
        raise ConfigError(f"env.wrappers has {wrapper}, behind which {error}") from error
    except Exception as error:  # wrappers raise many kinds of errors for unsuitable environments
        raise ConfigError(f"env.wrappers={wrapper} cannot be put around {env.name} ({raised(error)}).") from error
    return made


def from_config(config: EnvConfig) -> VecEnv | HostEnv:
    """Environment of a configuration; see `make`."""
    options = {key: getattr(config, key) for key in Preprocessing._fields}
    return make(config.name, config.kwargs, Preprocessing(**options), config.wrappers, bool(config.rescale_action))


def settled(config: EnvConfig) -> EnvConfig:
    """Configuration in which the environment's spaces replace null values (`config.shipped.AUTOMATIC`)."""
    normalize, rescale_ = config.normalize_observation, config.rescale_action
    if normalize is not None and rescale_ is not None:
        return config
    unchanged = replace(config, normalize_observation=False, rescale_action=False)
    real, far = _automatic(unchanged, kinds.environment.get(config.name))
    return replace(
        config,
        normalize_observation=real if normalize is None else normalize,
        rescale_action=far if rescale_ is None else rescale_,
    )


@lru_cache(maxsize=64)
def _automatic(config: EnvConfig, _factory: Any) -> tuple[bool, bool]:
    """Whether to normalise observations (they are real numbers), and whether to rescale actions; cached for sweeps."""
    env = from_config(config)
    real = env.observation_space.dtype == "float32" and not getattr(env, "one_hot", False)
    return real, is_far(env.action_space)


def resolve(name: str) -> str:
    """Canonical `suite/name` of a name; case, punctuation and a missing version are ignored. Raises ConfigError."""
    given_suite, given_env = _split(name)
    suites = {*kinds.suite, *(_split(known)[0] for known in kinds.environment)}
    suite = match(given_suite, suites)
    if suite is None:
        raise ConfigError(
            f"env.name={name} names the unknown suite {given_suite}: {suggest(given_suite, suites)} "
            "An environment of your own needs its file: plugins=[FILE.py]."
        )
    registered = [env for owner, env in map(_split, kinds.environment) if owner == suite]
    if (env := match(given_env, registered)) is not None:
        return f"{suite}/{env}"
    refused: Mapping[str, str] = {}
    builtin: Sequence[str] = ()
    if suite in kinds.suite:
        module = _load(suite, name)
        refused = module.REFUSED
        builtin = module.candidates(given_env) if hasattr(module, "candidates") else module.available()
        if (env := match(given_env, builtin)) is not None:
            return f"{suite}/{env}"
    if (env := match(given_env, refused)) is not None:
        raise ConfigError(f"env.name={suite}/{env} is not offered: {refused[env]}.")
    known = sorted({*registered, *builtin})
    raise ConfigError(f"env.name={name} is not an environment of {suite}: {suggest(given_env, known)}")


def available(suite: str) -> list[str]:
    """Names that `make` accepts after `suite/`, sorted; empty for an unknown suite."""
    registered = [env for owner, env in map(_split, kinds.environment) if owner == suite]
    builtin = _load(suite, suite).available() if suite in kinds.suite else []
    return sorted({*registered, *builtin})


def _split(name: str) -> tuple[str, str]:
    suite, _, env = name.partition("/")
    if suite and env:
        return suite, env
    raise ConfigError(f"env.name={name} must be of the form suite/name, for example gymnax/CartPole-v1.")


def _load(suite: str, name: str) -> ModuleType:
    try:
        module = importlib.import_module(kinds.suite[suite].module)
        module.available()
    except ModuleNotFoundError as error:
        raise ConfigError(f"env.name={name} needs {kinds.suite[suite].needs}") from error
    return module
