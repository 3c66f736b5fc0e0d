"""Environments by name: `suite/name`, typed loosely, with a clear sentence for a name that means nothing.

A suite is a module of this package. It has `available()`, the names it can make; `REFUSED`, names it knows
but does not offer, each with the reason; and `make(name, **kwargs)`. Where a name may bring others with it, as
`module:id` does, `candidates(name)` are those it is looked for among. A suite is imported when first asked for,
so one whose package is not installed costs nothing and fails only when used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import ModuleType
from typing import Any, NamedTuple

from stellaris_jax.config.schema import ConfigError, plain, shown
from stellaris_jax.config.tree import EnvConfig
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import AS_GIVEN, HostEnv, Preprocessing, VecEnv
from stellaris_jax.envs.names import match, raised, suggest
from stellaris_jax.envs.rescale import is_far, rescale
from stellaris_jax.envs.shapes import check_declared, check_traced
from stellaris_jax.envs.wrappers import Wrapper, preprocess
from stellaris_jax.registry import register as kinds


class Suite(NamedTuple):
    """A suite: the module it is in, and what has to be installed for it."""

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
    "playground": "the playground extra: pip install 'stellaris-jax[playground]'",
}.items():
    kinds.suite(_suite)(Suite(f"{_FOLDER}.{_suite}", _needs))
kinds.suite("job")(Suite("stellaris_jax.reproduce.minionsrl.job"))


def register(name: str, factory: Callable[..., VecEnv | HostEnv]) -> None:
    """Make an environment of your own available as `env.name=<name>`, where `name` is `suite/name`.

    The suite is free to choose, a new one or an existing one. `factory` is called with `env.kwargs` as
    keyword arguments and returns a `VecEnv` (or a `HostEnv`); deriving from `AutoResetEnv` leaves a reset
    and a step of one environment to write. Registering a name again replaces it. Example:

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
    """The environment called `name`, built with `kwargs`, behind `preprocessing` and registered `wrappers`.

    Actions are rescaled outside of all these, if they are.

    Raises ConfigError, in one sentence, for an unknown suite, environment or argument, for a package that
    is missing, and for an environment that cannot be trained on here, as far as that is seen without a step.
    """
    canonical = resolve(name)
    suite, env = canonical.split("/", 1)
    own = kinds.environment.get(canonical)
    factory = own or partial(_load(suite, name).make, env)
    try:
        made = factory(**plain(kwargs))
    except ConfigError:
        raise
    except Exception as error:  # whatever a suite makes of arguments that it cannot take
        if kwargs:
            what = f"env.kwargs={shown(kwargs)} cannot be used with {canonical}"
        elif own is not None:
            what = f"env.name={canonical} cannot be made"
        else:
            raise
        raise ConfigError(f"{what} ({raised(error)}).") from error
    check_declared(made)
    if own is not None and not isinstance(made, HostEnv):
        check_traced(made)  # of our suites the tests see to that
    made = preprocess(made, preprocessing)
    for wrapper in wrappers:
        made = _wrapped(made, wrapper)
    return rescale(made) if rescale_action else made


def _wrapped(env: VecEnv | HostEnv, wrapper: str) -> VecEnv | HostEnv:
    """The environment behind a registered wrapper, checked as an environment of a user's own is."""
    registered = kinds.wrapper[wrapper]
    if isinstance(registered, type) and issubclass(registered, Wrapper) and not isinstance(env, AutoResetEnv):
        own = "; gymnasium's own are named by env.kwargs.wrappers=[gymnasium.wrappers.NAME]"
        raise ConfigError(
            f"env.wrappers={wrapper} is for environments in JAX that are derived from AutoResetEnv, not for {env.name}"
            f"{own if env.name.startswith('gymnasium/') else ''}."
        )
    try:
        made: VecEnv | HostEnv = registered(env)
        check_declared(made)
        if not isinstance(made, HostEnv):
            check_traced(made)
    except ConfigError as error:
        raise ConfigError(f"env.wrappers has {wrapper}, behind which {error}") from error
    except Exception as error:  # whatever it makes of an environment that it is not for
        raise ConfigError(f"env.wrappers={wrapper} cannot be put around {env.name} ({raised(error)}).") from error
    return made


def from_config(config: EnvConfig) -> VecEnv | HostEnv:
    """The environment of a configuration; see `make`."""
    options = {key: getattr(config, key) for key in Preprocessing._fields}
    return make(config.name, config.kwargs, Preprocessing(**options), config.wrappers, bool(config.rescale_action))


def settled(config: EnvConfig) -> EnvConfig:
    """The configuration with what its environment's spaces decide (`config.sources.AUTOMATIC`) in the place of null."""
    normalize, rescale_ = config.normalize_observation, config.rescale_action
    if normalize is not None and rescale_ is not None:
        return config
    as_it_is = replace(config, normalize_observation=False, rescale_action=False)
    real, far = _asked_for(as_it_is, kinds.environment.get(config.name))
    return replace(
        config,
        normalize_observation=real if normalize is None else normalize,
        rescale_action=far if rescale_ is None else rescale_,
    )


@lru_cache(maxsize=64)
def _asked_for(config: EnvConfig, _factory: Any) -> tuple[bool, bool]:
    """Whether an environment observes real numbers, and whether its actions are to be rescaled; kept for other points
    of a sweep."""
    env = from_config(config)
    real = env.observation_space.dtype == "float32" and not getattr(env, "one_hot", False)
    return real, is_far(env.action_space)


def resolve(name: str) -> str:
    """The canonical `suite/name` meant by `name`, whose case, punctuation and missing version do not matter."""
    given_suite, given_env = _split(name)
    suites = {*kinds.suite, *(_split(registered)[0] for registered in kinds.environment)}
    suite = match(given_suite, suites)
    if suite is None:
        raise ConfigError(f"env.name={name} names the unknown suite {given_suite}: {suggest(given_suite, suites)}")
    mine = [env for owner, env in map(_split, kinds.environment) if owner == suite]
    if (env := match(given_env, mine)) is not None:
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
    known = sorted({*mine, *builtin})
    raise ConfigError(f"env.name={name} is not an environment of {suite}: {suggest(given_env, known)}")


def available(suite: str) -> list[str]:
    """The names `make` accepts after `suite/`, sorted; empty for a suite that does not exist."""
    mine = [env for owner, env in map(_split, kinds.environment) if owner == suite]
    builtin = _load(suite, suite).available() if suite in kinds.suite else []
    return sorted({*mine, *builtin})


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
