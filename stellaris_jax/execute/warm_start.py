"""Warm start: a policy that has imitated an environment's demonstrations before the first round.

The result is cached on disk by a digest of its program and seed, as arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stellaris_jax.agent.networks import PolicyNetwork, normalizer
from stellaris_jax.agent.networks.recurrent import Past
from stellaris_jax.base.checked_files import read_checked, write_checked
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.machine import Part, check_fits
from stellaris_jax.base.outputs import cache_folder
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.keys import SeedKeys, folded
from stellaris_jax.runs.start import Start, is_under_way

WORD = 4
"""Bytes of a number."""
STREAM = 0xDE
"""Number that separates the keys of demonstrations from others."""


def warm_started(config: Config, env: Any, network: PolicyNetwork, working: Callable[[str], None]) -> Start | None:
    """Start of every seed that `warm_start` asks for; `None` without one.

    Args:
      config: configuration of the run.
      env, network: its environment and network.
      working: told of each seed whose policy is not on disk, before it is trained.

    Raises:
      ConfigError: the environment has no demonstrations.
    """
    if not config.warm_start.updates or is_under_way(config):
        return None
    if not hasattr(env, "demonstrations"):
        raise ConfigError(
            f"warm_start.updates={config.warm_start.updates} needs an environment with demonstrations, such as "
            f"tokens/..., which env.name={config.env.name} has not; accepted: 0."
        )
    seeds = range(config.seed, config.seed + config.num_seeds)
    lowered = jax.jit(lambda seed: imitated(config, env, network, seed)).lower(np.uint32(0))
    digest = hashlib.sha256(f"{jax.__version__} {jax.default_backend()} {lowered.as_text()}".encode()).hexdigest()
    rows, compiled, root = [], None, cache_folder()
    for seed in seeds:
        place = None if root is None else root / "warm_starts" / f"{digest[:40]}-{seed}"
        params = _stored(place, network)
        if params is None:
            working(f"warm start of seed {seed}: {config.warm_start.updates} updates on demonstrations")
            compiled = compiled or _compiled(lowered, config)
            params = np.asarray(compiled(np.uint32(seed)))
            if place is not None:
                with suppress(OSError):
                    place.parent.mkdir(parents=True, exist_ok=True)
                write_checked(place, params.astype("<f4").tobytes())
        rows.append(params)
    statistics = normalizer.init(network.observation_space.shape)
    return Start(np.stack(rows), jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], len(seeds), axis=0), statistics))


def _compiled(lowered: Any, config: Config) -> Any:
    """Compiled imitation. Raises ConfigError if it needs more memory than there is."""
    compiled = lowered.compile()
    needed = getattr(compiled.memory_analysis(), "temp_size_in_bytes", 0)
    check_fits([Part("demonstrations", needed, 0, (f"warm_start.batch={config.warm_start.batch}",))])
    return compiled


def imitated(config: Config, env: Any, network: PolicyNetwork, seed: jax.Array) -> jax.Array:
    """Parameters `[P]` of one seed, by Adam on the cross-entropy of demonstrated actions."""
    options = config.warm_start
    keys = SeedKeys.of(jax.random.key(seed))
    optimizer = optax.adam(options.learning_rate)

    def loss(params: jax.Array, key: jax.Array) -> jax.Array:
        shown = env.demonstrations(key, options.batch, options.errors)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), shown)
        first = jnp.zeros(len(flat.action), bool)
        past = Past(network.stored(network.initial_carry(options.batch)), first) if network.recurrent else None
        parameters = network.policy(network.unravel(params), flat.obs, past)
        log_prob = network.distribution.log_prob(parameters, flat.action)
        return -jnp.sum(jnp.where(flat.valid, log_prob, 0.0)) / jnp.sum(flat.valid)

    def step(so_far: Any, number: jax.Array) -> tuple[Any, None]:
        params, state = so_far
        gradient = jax.grad(loss)(params, folded(keys.run, [STREAM, number]))
        updates, state = optimizer.update(gradient, state)
        return (params + updates, state), None

    params = network.init(keys.params)
    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(options.updates))
    return params


def _stored(place: Path | None, network: PolicyNetwork) -> np.ndarray | None:
    """Parameters stored in a file; `None` if there are none, or they are damaged."""
    (size,) = jax.eval_shape(network.init, jax.random.key(0)).shape
    numbers = None if place is None else read_checked(place, WORD * size)
    if numbers is None or len(numbers) != WORD * size:
        return None
    params = np.frombuffer(numbers, "<f4").copy()
    return params if np.isfinite(params).all() else None
